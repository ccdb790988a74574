/* Counts what is dear in a YAML text before all of it is read. */
#include <stdbool.h>

#include "yaml_limits.h"

/* One token's part of the counts; NULL, or what is too much. */
static const char *
count(const yaml_token_t *token, int *depth, int *names)
{
	switch (token->type) {
	case YAML_BLOCK_SEQUENCE_START_TOKEN:
	case YAML_BLOCK_MAPPING_START_TOKEN:
	case YAML_FLOW_SEQUENCE_START_TOKEN:
	case YAML_FLOW_MAPPING_START_TOKEN:
		return ++*depth > OM_YAML_DEPTH ? "there are more than 100 levels here" : NULL;
	case YAML_BLOCK_END_TOKEN:
	case YAML_FLOW_SEQUENCE_END_TOKEN:
	case YAML_FLOW_MAPPING_END_TOKEN:
		--*depth;
		return NULL;
	case YAML_ANCHOR_TOKEN:
	case YAML_TAG_DIRECTIVE_TOKEN:
		return ++*names > OM_YAML_ANCHORS ? "there are more than 100 anchors or %TAG lines"
						  : NULL;
	default:
		return NULL;
	}
}

const char *
om_yaml_limits(const char *s, size_t n, yaml_mark_t *at)
{
	const char *why = NULL;
	int depth = 0, names = 0;
	yaml_parser_t parser;
	yaml_token_t token;
	bool more = true;

	if (!yaml_parser_initialize(&parser))
		return "there is not enough memory";
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (const unsigned char *)s, n);
	while (!why && more && yaml_parser_scan(&parser, &token)) {
		why = count(&token, &depth, &names);
		*at = token.start_mark;
		more = token.type != YAML_STREAM_END_TOKEN && token.type != YAML_NO_TOKEN;
		yaml_token_delete(&token);
	}
	yaml_parser_delete(&parser);
	return why;
}
