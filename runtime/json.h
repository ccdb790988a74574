/*
 * JSON that others wrote, read by jansson within limits that it does not have itself. What is read
 * is used by jansson's own functions.
 */
#ifndef OM_JSON_H
#define OM_JSON_H

#if !__has_include(<jansson.h>)
#error jansson.h is missing: install libjansson-dev (Debian, Ubuntu) or jansson-devel (Fedora)
#endif
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
	OM_JSON_MOST = 100000000, /* bytes of a file or header */
	OM_JSON_DEPTH = 100,      /* levels of { and [ */
	OM_JSON_WHY = 320
};

/*
 * The object that n bytes of text are; json_decref() it. NULL: why says what is wrong, with line
 * and column. No name twice, no zero byte in a string, nothing after the object. The memory that
 * it takes is at most some tens of times the text's, whose length is the caller's to limit.
 */
json_t *om_json_parse(const char *s, size_t n, char why[OM_JSON_WHY]);
/* The same of a file; NULL: errno is ENOENT where there is none. */
json_t *om_json_file(const char *path, char why[OM_JSON_WHY]);
/* A whole number from 0 on, UINT64_MAX: it is none, or NULL. */
uint64_t om_json_whole(const json_t *x);
/* Quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
void om_json_string(FILE *f, const char *s);

#endif
