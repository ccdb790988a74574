/* Reading JSON by libyaml: JSON is YAML. */
#ifndef OM_JSON_H
#define OM_JSON_H

#include <string.h>
#include <yaml.h>

#include "om_rt.h"

/* Reads one document of text; false: it isn't one. */
static inline bool
om_json_load(yaml_document_t *doc, const char *text, size_t n)
{
	yaml_parser_t parser;
	bool ok;

	if (!yaml_parser_initialize(&parser))
		om_die("memory", "cannot start the YAML parser");
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
	ok = yaml_parser_load(&parser, doc);
	yaml_parser_delete(&parser);
	if (ok && !yaml_document_get_root_node(doc)) {
		yaml_document_delete(doc);
		ok = false;
	}
	return ok;
}

/* A scalar's text, "" of anything else. */
static inline const char *
om_json_text(const yaml_node_t *node)
{
	return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

/* A mapping's value, NULL: it has no such key, or is no mapping. */
static inline yaml_node_t *
om_json_get(yaml_document_t *doc, const yaml_node_t *map, const char *key)
{
	if (map && map->type == YAML_MAPPING_NODE)
		for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
		     p < map->data.mapping.pairs.top; p++)
			if (strcmp(om_json_text(yaml_document_get_node(doc, p->key)), key) == 0)
				return yaml_document_get_node(doc, p->value);
	return NULL;
}

#endif
