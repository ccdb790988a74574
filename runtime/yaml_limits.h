/* What keeps libyaml's time and memory in proportion to a text that others wrote. */
#ifndef OM_YAML_LIMITS_H
#define OM_YAML_LIMITS_H

#include <stddef.h>
#include <yaml.h>

enum { OM_YAML_DEPTH = 100, OM_YAML_ANCHORS = 100 };

/*
 * What is too much in n bytes of text, and where; NULL: nothing, as far as it is YAML. Deeper
 * levels, and more anchors and %TAG lines, each cost libyaml a look at all of them.
 */
const char *om_yaml_limits(const char *s, size_t n, yaml_mark_t *at);

#endif
