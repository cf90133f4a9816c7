/* safetensors.h: one safetensors file, read-only: its directory of tensors.
 *
 * Opening reads and checks the header only. It is as strict as the reference implementation: every tensor has
 * a known dtype, its shape times the dtype's size is exactly its range of bytes, and the ranges fill the data
 * section without overlap or hole, so that one file has one meaning. A dtype that yoke has no kernels for
 * (I64, F8_E5M2) stops nothing: such a tensor is listed, and refused only by who wants to multiply with it.
 * All pointers handed out belong to the object and live until safetensors_close.
 */
#ifndef YOKE_FORMATS_SAFETENSORS_H
#define YOKE_FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/dtype.h"
#include "base/err.h"

struct safetensors;

#define SAFETENSORS_DIMS_MAX 8

struct safetensor {
    const char *name;
    const char *dtype_name;            /* as in the file: "BF16" */
    enum dtype dtype;                  /* DT_NONE if base/dtype.h has none for it */
    int n_dims;                        /* 0: a scalar */
    int64_t dim[SAFETENSORS_DIMS_MAX]; /* outermost first */
    uint64_t offset;                   /* of the first byte, from the start of the file */
    uint64_t n_bytes;
};

int safetensors_open(const char *path, struct safetensors **ret, struct err *e);
/* The same from bytes in memory (fuzzing, tests); `data` is not needed afterwards. */
int safetensors_open_bytes(const void *data, size_t size, const char *where, struct safetensors **ret,
                           struct err *e);
void safetensors_close(struct safetensors *s); /* NULL is fine */

size_t safetensors_n_tensors(const struct safetensors *s);
/* In the order of their bytes. */
const struct safetensor *safetensors_tensor(const struct safetensors *s, size_t i);
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name); /* NULL: none */
/* "__metadata__", an object of strings; NULL if there is none. */
const json_t *safetensors_metadata(const struct safetensors *s);

#endif
