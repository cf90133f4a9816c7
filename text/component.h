/* component.h: what the parts of a tokenizer.json have in common: normalizer, pre_tokenizer, post_processor
 * and decoder are each null, for nothing; or an object with a "type"; or a "Sequence" of such objects.
 */
#ifndef YOKE_TEXT_COMPONENT_H
#define YOKE_TEXT_COMPONENT_H

#include <jansson.h>
#include "base/err.h"

/* Takes one object that is no Sequence; an unknown type is its error to report. */
typedef int component_fn(void *self, const json_t *v, const char *type, const char *where, struct err *e);

/* Calls take(self, ...) for the object v, or for each one of a Sequence, in order. `list` is the key under
 * which this kind of component keeps the objects of a Sequence. v may be NULL, as null. */
int component_read(const json_t *v, const char *list, component_fn *take, void *self, const char *where,
                   struct err *e);

/* A string of exactly one character; borrowed from o. */
int component_character(const json_t *o, const char *key, const char *fallback, const char *where,
                        const char **ret, struct err *e);

#endif
