/* json.h: typed access to jansson values, with errors that name the place.
 *
 * jansson parses and owns; these read. `where` is the path for messages, such as "config.json: rope_scaling".
 * A missing key (or JSON null) yields the fallback; a key of the wrong type is an error, never a fallback.
 */
#ifndef YOKE_BASE_JSON_H
#define YOKE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/buf.h"
#include "base/err.h"

/* Parses text (need not be terminated). Depth and duplicate keys are jansson's rules; the error has line and
 * column. The caller json_decref()s. */
int json_parse(const char *text, size_t n, const char *where, json_t **ret, struct err *e);
int json_parse_file(const char *path, size_t max_bytes, json_t **ret, struct err *e);

int json_get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t fallback,
                 const char *where, int64_t *ret,
                 struct err *e); /* numbers such as 4.0 count; outside [lo, hi] is an error */
int json_get_double(const json_t *o, const char *key, double fallback, const char *where, double *ret,
                    struct err *e);
int json_get_bool(const json_t *o, const char *key, bool fallback, const char *where, bool *ret,
                  struct err *e);
int json_get_string(const json_t *o, const char *key, const char *fallback, const char *where,
                    const char **ret, struct err *e); /* borrowed from o */

/* Appends v as text; flags are jansson's (JSON_INDENT(1), JSON_SORT_KEYS, ...). */
void json_print(const json_t *v, size_t flags, struct buf *out);

#endif
