/* A safetensors file of any bytes: what is opened lies within the file, in order, without overlap. */
#include <assert.h>
#include <stdint.h>
#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *s;
    struct err e = {0};
    if (safetensors_open_bytes(data, size, "fuzz", &s, &e)) {
        assert(e.code < 0 && e.msg[0]);
        return 0;
    }
    uint64_t at = 0;
    for (size_t i = 0; i < safetensors_n_tensors(s); i++) {
        const struct safetensor *t = safetensors_tensor(s, i);
        assert(safetensors_find(s, t->name) == t);
        assert(i == 0 || t->offset == at);
        at = t->offset + t->n_bytes;
        assert(at <= size);
        if (t->dtype == DT_NONE)
            continue;
        int64_t n = 1;
        for (int d = 0; d < t->n_dims; d++)
            n *= t->dim[d];
        assert(dtype_bytes(t->dtype, (size_t)n) == t->n_bytes);
    }
    assert(safetensors_n_tensors(s) == 0 || at == size);
    (void)safetensors_metadata(s);
    safetensors_close(s);
    return 0;
}
