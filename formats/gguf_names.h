/* gguf_names.h: a GGUF model told the Hugging Face way: tensor names, config.json, generation_config.json.
 *
 * Table-driven: an architecture is a row of `archs` in gguf_names.c, with the keys that only it has. What a
 * converter loses is lost (initialisation ranges, dropout); what inference needs is there, or opening fails
 * and says which key is missing.
 */
#ifndef YOKE_FORMATS_GGUF_NAMES_H
#define YOKE_FORMATS_GGUF_NAMES_H

#include <stddef.h>
#include <jansson.h>
#include "base/buf.h"
#include "base/err.h"
#include "formats/gguf.h"

struct gguf_arch;

/* A model in one file or in several parts; the metadata is the first one's. */
struct gguf_parts {
    struct gguf **part;
    int n;
};
const struct gguf_tensor *gguf_parts_find(const struct gguf_parts *p, const char *name); /* NULL: none */

/* By "general.architecture"; ERR_UNSUPPORTED with the list of those known. */
int gguf_arch_find(const struct gguf *g, const struct gguf_arch **ret, struct err *e);

/* Appends the Hugging Face name of a tensor; a name that is in no table is appended as it is. */
void gguf_hf_name(const struct gguf_arch *a, const char *name, struct buf *out);

/* The two configurations; the caller json_decref()s. The second one is NULL if the metadata has nothing for
 * it. "rope_freq_factors" needs a tensor's bytes and is left to the caller. */
int gguf_hf_config(const struct gguf_arch *a, const struct gguf_parts *p, json_t **ret_config,
                   json_t **ret_generation_config, struct err *e);

#endif
