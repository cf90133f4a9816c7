/* rows.h: every slot, sizes 1..130 and a few long ones, unaligned, in place where that is legal. */
#include "tests/checkasm/checkasm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

static const int32_t long_sizes[] = {255, 256, 576, 896, 1537, 4096};

/* Sizes to check: 1..130, then the long ones. 0 ends. */
static int32_t size_after(int32_t n)
{
    if (n < 130)
        return n + 1;
    for (size_t i = 0; i < ARRAY_LEN(long_sizes); i++)
        if (long_sizes[i] > n)
            return long_sizes[i];
    return 0;
}

static float *floats(struct check *c, enum random_floats kind, int32_t n)
{
    float *x = guarded(c, sizeof(float) * (size_t)n, 4);
    random_floats(c, kind, x, (size_t)n);
    return x;
}

static float *copy(struct check *c, const float *x, int32_t n)
{
    float *y = guarded(c, sizeof(float) * (size_t)n, 4);
    memcpy(y, x, sizeof(float) * (size_t)n);
    return y;
}

/* Values that rms_norm, gates and exp treat in a special way, mixed into random ones. */
static void season(struct check *c, float *x, int32_t n)
{
    static const float special[] = {0.0f,         -0.0f,         INFINITY,    -INFINITY,    NAN,
                                    88.722831f,   88.722839f,    -88.722839f, -88.72284f,   -87.336540f,
                                    -87.336548f,  87.336540f,    87.336548f,  1e-45f,       -1e-45f,
                                    3.402823e38f, -3.402823e38f, 0.34657359f, -0.34657359f, -104.0f,
                                    0x1p-126f,    1.0f,          -1.0f,       7.5f,         -9.6f};
    for (int32_t i = 0; i < n; i++)
        if (random_bits(c) % 4 == 0)
            x[i] = special[random_bits(c) % ARRAY_LEN(special)];
}

static void check_rms_norm(struct check *c)
{
    if (!check_slot(c, FN(c->c.rows.rms_norm), FN(c->k.rows.rms_norm), "rows.rms_norm"))
        return;
    for (int32_t n = 1; n && check_ok(c); n = size_after(n)) {
        for (int kind = 0; kind < RANDOM_KINDS; kind++) {
            float *x = floats(c, kind, n), *w = floats(c, kind, n), *want = copy(c, x, n),
                  *got = copy(c, x, n);
            float eps = random_bits(c) & 1 ? 1e-6f : 0.0f;
            c->c.rows.rms_norm(x, w, n, eps, want);
            c->k.rows.rms_norm(x, w, n, eps, got);
            same_floats(c, want, got, (size_t)n, "n %d kind %d", n, kind);
            float *in_place = copy(c, x, n);
            c->k.rows.rms_norm(in_place, w, n, eps, in_place);
            same_floats(c, want, in_place, (size_t)n, "in place, n %d kind %d", n, kind);
            guarded_end(c);
        }
    }
    int32_t n = 4096;
    float *x = guarded(c, 4 * (size_t)n, 64), *w = guarded(c, 4 * (size_t)n, 64),
          *y = guarded(c, 4 * (size_t)n, 64);
    random_floats(c, RANDOM_PLAIN, x, (size_t)n);
    random_floats(c, RANDOM_PLAIN, w, (size_t)n);
    BENCH(c, 12.0 * n, "GB/s", "n 4096", c->k.rows.rms_norm(x, w, n, 1e-6f, y));
    guarded_end(c);
}

typedef void (*binary_fn)(const float *a, const float *b, int32_t n, float *y);

static void check_binary(struct check *c, binary_fn ref, binary_fn fn, const char *name, bool seasoned)
{
    if (!check_slot(c, FN(ref), FN(fn), name))
        return;
    for (int32_t n = 1; n && check_ok(c); n = size_after(n)) {
        for (int kind = 0; kind < RANDOM_KINDS; kind++) {
            float *a = floats(c, kind, n), *b = floats(c, kind, n), *want = copy(c, a, n),
                  *got = copy(c, a, n);
            if (seasoned)
                season(c, a, n);
            ref(a, b, n, want);
            fn(a, b, n, got);
            same_floats(c, want, got, (size_t)n, "n %d kind %d", n, kind);
            float *in_place = copy(c, a, n);
            fn(in_place, b, n, in_place);
            same_floats(c, want, in_place, (size_t)n, "in place, n %d kind %d", n, kind);
            guarded_end(c);
        }
    }
    int32_t n = 4096;
    float *a = guarded(c, 4 * (size_t)n, 64), *b = guarded(c, 4 * (size_t)n, 64),
          *y = guarded(c, 4 * (size_t)n, 64);
    random_floats(c, RANDOM_PLAIN, a, (size_t)n);
    random_floats(c, RANDOM_PLAIN, b, (size_t)n);
    BENCH(c, 12.0 * n, "GB/s", "n 4096", fn(a, b, n, y));
    guarded_end(c);
}

static void check_scale(struct check *c)
{
    if (!check_slot(c, FN(c->c.rows.scale), FN(c->k.rows.scale), "rows.scale"))
        return;
    for (int32_t n = 1; n && check_ok(c); n = size_after(n)) {
        for (int kind = 0; kind < RANDOM_KINDS; kind++) {
            float *a = floats(c, kind, n), *want = copy(c, a, n), *got = copy(c, a, n), s;
            random_floats(c, kind, &s, 1);
            c->c.rows.scale(a, s, n, want);
            c->k.rows.scale(a, s, n, got);
            same_floats(c, want, got, (size_t)n, "n %d kind %d", n, kind);
            c->k.rows.scale(a, s, n, a);
            same_floats(c, want, a, (size_t)n, "in place, n %d kind %d", n, kind);
            guarded_end(c);
        }
    }
    int32_t n = 4096;
    float *a = guarded(c, 4 * (size_t)n, 64), *y = guarded(c, 4 * (size_t)n, 64);
    random_floats(c, RANDOM_PLAIN, a, (size_t)n);
    BENCH(c, 8.0 * n, "GB/s", "n 4096", c->k.rows.scale(a, 0.5f, n, y));
    guarded_end(c);
}

static void check_exp(struct check *c)
{
    if (!check_slot(c, FN(c->c.rows.exp), FN(c->k.rows.exp), "rows.exp"))
        return;
    for (int32_t n = 1; n && check_ok(c); n = size_after(n)) {
        for (int kind = 0; kind < RANDOM_KINDS; kind++) {
            float *x = floats(c, kind, n), *want = copy(c, x, n), *got = copy(c, x, n);
            for (int32_t i = 0; i < n && kind == RANDOM_PLAIN; i++)
                x[i] *= 60.0f; /* covers the range that has results */
            season(c, x, n);
            c->c.rows.exp(x, n, want);
            c->k.rows.exp(x, n, got);
            same_floats(c, want, got, (size_t)n, "n %d kind %d", n, kind);
            c->k.rows.exp(x, n, x);
            same_floats(c, want, x, (size_t)n, "in place, n %d kind %d", n, kind);
            guarded_end(c);
        }
    }
    /* A comb through all floats: every exponent, every place in the significand. */
    enum { N = 4096 };
    float *x = guarded(c, 4 * N, 4), *want = guarded(c, 4 * N, 4), *got = guarded(c, 4 * N, 4);
    for (uint32_t at = 0; at < 256 && check_ok(c); at++) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t u = (at * N + i) * 4093u;
            memcpy(&x[i], &u, 4);
        }
        c->c.rows.exp(x, N, want);
        c->k.rows.exp(x, N, got);
        same_floats(c, want, got, N, "comb %u", at);
    }
    random_floats(c, RANDOM_PLAIN, x, N);
    BENCH(c, 1.0 * N, "Gelem/s", "n 4096", c->k.rows.exp(x, N, got));
    guarded_end(c);
}

typedef void (*rope_fn)(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cosines,
                        const float *sines);

static void check_rope(struct check *c, rope_fn ref, rope_fn fn, const char *name)
{
    if (!check_slot(c, FN(ref), FN(fn), name))
        return;
    for (int i = 0; i < 800 && check_ok(c); i++) {
        int kind = i % RANDOM_KINDS;
        int32_t head_dim = i < 130 ? i + 1 : random_int(c, 1, 260), n_heads = random_int(c, 1, 5);
        int32_t rot = i % 3 ? head_dim / 2 * 2 : random_int(c, 0, head_dim / 2) * 2, n = n_heads * head_dim;
        float *x = floats(c, kind, n), *want = copy(c, x, n);
        float *cosines = floats(c, RANDOM_PLAIN, rot / 2), *sines = floats(c, RANDOM_PLAIN, rot / 2);
        ref(want, n_heads, head_dim, rot, cosines, sines);
        fn(x, n_heads, head_dim, rot, cosines, sines);
        same_floats(c, want, x, (size_t)n, "head_dim %d rot %d kind %d", head_dim, rot, kind);
        guarded_end(c);
    }
    float *x = guarded(c, 4 * 32 * 128, 64), *cosines = guarded(c, 4 * 64, 64),
          *sines = guarded(c, 4 * 64, 64);
    random_floats(c, RANDOM_PLAIN, x, 32 * 128);
    for (int i = 0; i < 64; i++) { /* a rotation: the vector keeps its length however often it is turned */
        cosines[i] = cosf((float)i);
        sines[i] = sinf((float)i);
    }
    BENCH(c, 8.0 * 32 * 128, "GB/s", "32 heads of 128", fn(x, 32, 128, 128, cosines, sines));
    guarded_end(c);
}

static void check_kv_store(struct check *c, enum kv_dtype t, const char *name)
{
    if (!check_slot(c, FN(c->c.rows.kv_store[t]), FN(c->k.rows.kv_store[t]), name))
        return;
    for (int32_t n = 1; n && check_ok(c); n = size_after(n)) {
        for (int kind = 0; kind < 2 * RANDOM_KINDS; kind++) {
            size_t bytes = kv_record_bytes(t, n);
            float *x = floats(c, kind / 2, n);
            for (int32_t i = 0; i < n && kind % 2;
                 i++) /* around the ends of f16, and halves that must round to even */
                x[i] = kind / 2 == RANDOM_ANY
                           ? x[i]
                           : ldexpf((float)random_int(c, -4096, 4096), random_int(c, -36, 6));
            void *want = guarded(c, bytes, t == KV_F32 || t == KV_I8 ? 4 : 2);
            void *got = guarded(c, bytes, t == KV_F32 || t == KV_I8 ? 4 : 2);
            c->c.rows.kv_store[t](x, n, want);
            c->k.rows.kv_store[t](x, n, got);
            same_bytes(c, want, got, bytes, "n %d kind %d", n, kind);
            guarded_end(c);
        }
    }
    float *x = guarded(c, 4 * 128, 64);
    void *record = guarded(c, 4 * 128 + 4, 64);
    random_floats(c, RANDOM_PLAIN, x, 128);
    BENCH(c, 4.0 * 128 + (double)kv_record_bytes(t, 128), "GB/s", "n 128",
          c->k.rows.kv_store[t](x, 128, record));
    guarded_end(c);
}

void check_rows(struct check *c)
{
    const struct rows_kernels *ref = &c->c.rows, *new = &c->k.rows;
    check_rms_norm(c);
    check_binary(c, ref->add, new->add, "rows.add", false);
    check_binary(c, ref->mul, new->mul, "rows.mul", false);
    check_scale(c);
    check_binary(c, ref->glu[GLU_SILU], new->glu[GLU_SILU], "rows.glu_silu", true);
    check_binary(c, ref->glu[GLU_GELU_TANH], new->glu[GLU_GELU_TANH], "rows.glu_gelu_tanh", true);
    check_rope(c, ref->rope_half, new->rope_half, "rows.rope_half");
    check_rope(c, ref->rope_pairs, new->rope_pairs, "rows.rope_pairs");
    check_exp(c);
    check_kv_store(c, KV_F32, "rows.kv_store_f32");
    check_kv_store(c, KV_F16, "rows.kv_store_f16");
    check_kv_store(c, KV_BF16, "rows.kv_store_bf16");
    check_kv_store(c, KV_I8, "rows.kv_store_i8");
}
