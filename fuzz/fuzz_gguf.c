/* A GGUF header of any bytes: opened, every value asked for in every way, told as a Hugging Face model. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "base/buf.h"
#include "formats/gguf.h"
#include "formats/gguf_names.h"

static size_t use(const struct gguf_str *s)
{
    assert(s->s[s->len] == 0);
    return strlen(s->s);
}

static void ask(const struct gguf *g, const char *key)
{
    struct gguf_str s;
    enum gguf_type type;
    size_t n;
    int64_t i;
    double d;
    bool b;
    gguf_get_int(g, key, &i);
    gguf_get_double(g, key, &d);
    gguf_get_bool(g, key, &b);
    if (gguf_get_string(g, key, &s))
        use(&s);
    if (!gguf_get_array(g, key, &type, &n))
        return;
    for (size_t k = 0; k <= n; k += k < 8 || k + 8 > n ? 1 : n - k - 8 + 1) { /* both ends, and one beyond */
        if (gguf_array_string(g, key, k, &s))
            use(&s);
        gguf_array_int(g, key, k, &i);
        gguf_array_double(g, key, k, &d);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct err e = {0};
    if (gguf_open_bytes(data, size, "fuzz", &g, &e)) {
        assert(e.code < 0 && e.msg[0]);
        return 0;
    }
    for (size_t i = 0; i < gguf_n_keys(g); i++)
        ask(g, gguf_key(g, i));
    ask(g, "no such key");
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        assert(gguf_find(g, t->name) == t);
        assert(t->n_bytes <= size && t->offset <= size - t->n_bytes);
        int64_t n = 1;
        for (int d = 0; d < t->n_dims; d++)
            n *= t->dim[d];
        assert(dtype_bytes(t->dtype, (size_t)n) == t->n_bytes);
        sum += t->n_bytes;
    }
    assert(sum <= size);

    const struct gguf_arch *a;
    if (!gguf_arch_find(g, &a, &e)) {
        struct gguf_parts parts = {&g, 1};
        struct buf name = BUF_INIT;
        json_t *config = NULL, *generation = NULL;
        for (size_t i = 0; i < gguf_n_tensors(g); i++)
            gguf_hf_name(a, gguf_tensor(g, i)->name, &name);
        if (gguf_hf_config(a, &parts, &config, &generation, &e))
            assert(e.msg[0]);
        else
            assert(json_is_object(config) && json_object_get(config, "hidden_size"));
        json_decref(config);
        json_decref(generation);
        buf_release(&name);
    }
    gguf_close(g);
    return 0;
}
