/* gguf.h: a GGUF file (version 2 or 3), read-only: its metadata and its directory of tensors.
 *
 * Opening reads and checks the header only; tensor bytes are read later, by slices, through the checkpoint.
 * Every count, length and offset in the file is checked for range and overlap here, so that what is handed
 * out can be trusted: strings are valid for their length, tensors lie within the file. All pointers handed
 * out belong to the gguf object and live until gguf_close.
 */
#ifndef YOKE_FORMATS_GGUF_H
#define YOKE_FORMATS_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/dtype.h"
#include "base/err.h"

struct gguf;

enum gguf_type { /* as in the file */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STRING,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64
};

struct gguf_str {
    const char *s; /* terminated by a 0 that does not count; may contain others */
    size_t len;
};

struct gguf_tensor {
    const char *name;
    enum dtype dtype;
    int n_dims;
    int64_t dim[4]; /* outermost first, as in PyTorch: [out, in] (the file stores them the other way round) */
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t n_bytes;
};

int gguf_open(const char *path, struct gguf **ret, struct err *e);
/* The same from bytes in memory (fuzzing, tests); `data` must outlive the object. */
int gguf_open_bytes(const void *data, size_t size, const char *where, struct gguf **ret, struct err *e);
void gguf_close(struct gguf *g); /* NULL is fine */

const char *gguf_path(const struct gguf *g);

/* Metadata. The typed getters return false when the key is absent or of another kind; any integer type is
 * accepted for int, and any integer or float type for double. */
bool gguf_get_int(const struct gguf *g, const char *key, int64_t *ret);
bool gguf_get_double(const struct gguf *g, const char *key, double *ret);
bool gguf_get_bool(const struct gguf *g, const char *key, bool *ret);
bool gguf_get_string(const struct gguf *g, const char *key, struct gguf_str *ret);
/* An array's element type and length; false if the key is absent or no array. Elements one by one: */
bool gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *ret_type, size_t *ret_n);
bool gguf_array_string(const struct gguf *g, const char *key, size_t i, struct gguf_str *ret); /* O(1) */
bool gguf_array_int(const struct gguf *g, const char *key, size_t i, int64_t *ret);
bool gguf_array_double(const struct gguf *g, const char *key, size_t i, double *ret);
size_t gguf_n_keys(const struct gguf *g);
const char *gguf_key(const struct gguf *g, size_t i);

/* Appends a GGUF of the same metadata, byte for byte, and no tensors: enough for a tokenizer. Reads the file
 * again; not for one opened from memory. */
int gguf_metadata_only(const struct gguf *g, struct buf *out, struct err *e);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name); /* NULL if there is none */

#endif
