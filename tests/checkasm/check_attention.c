/* attention.h: every slot, head sizes 1..130 and the usual larger ones, 1..70 queries, runs of any length. */
#include "tests/checkasm/checkasm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

/* n records of d elements, `stride` bytes apart, stored by the C kernel from random floats; f32 records may
 * hold anything. */
static uint8_t *records(struct check *c, enum kv_dtype t, enum random_floats kind, int32_t n, int32_t d,
                        size_t stride)
{
    float x[1024];
    size_t bytes = kv_record_bytes(t, d);
    uint8_t *r = guarded(c, (size_t)(n - 1) * stride + bytes, t == KV_F32 || t == KV_I8 ? 4 : 2);
    for (int32_t j = 0; j < n; j++) {
        random_floats(c, kind, x, (size_t)d);
        c->c.rows.kv_store[t](x, d, r + (size_t)j * stride);
    }
    return r;
}

struct shape {
    int32_t n_q, n, d;
    size_t ld, stride; /* of queries or outputs, in floats; of records, in bytes */
};

static struct shape random_shape(struct check *c, enum kv_dtype t, int i)
{
    static const int32_t usual[] = {64, 80, 96, 128, 192, 256, 576};
    struct shape s = {.n_q = i % 2 ? random_int(c, 1, 9) : random_int(c, 1, 70),
                      .n = random_int(c, 1, ATTN_BLOCK)};
    s.d = i < 130 ? i + 1 : usual[i % (int)ARRAY_LEN(usual)];
    s.ld = (size_t)s.d + (size_t)random_int(c, 0, 9);
    s.stride = kv_record_bytes(t, s.d) + 4 * (size_t)random_int(c, 0, 9);
    return s;
}

static void check_scores(struct check *c, enum kv_dtype t)
{
    static const char *const names[KV_DTYPES] = {"attention.scores_f32", "attention.scores_f16",
                                                 "attention.scores_bf16", "attention.scores_i8"};
    if (!check_slot(c, FN(c->c.attention.scores[t]), FN(c->k.attention.scores[t]), names[t]))
        return;
    for (int i = 0; i < 200 && check_ok(c); i++) {
        enum random_floats kind = (enum random_floats)(i % RANDOM_KINDS);
        struct shape z = random_shape(c, t, i);
        float *q = guarded(c, 4 * ((size_t)(z.n_q - 1) * z.ld + (size_t)z.d), 4);
        random_floats(c, kind, q, (size_t)(z.n_q - 1) * z.ld + (size_t)z.d);
        const uint8_t *k = records(c, t, kind, z.n, z.d, z.stride);
        size_t n_s = (size_t)(z.n_q - 1) * ATTN_BLOCK + (size_t)z.n;
        float *want = guarded(c, 4 * n_s, 4), *got = guarded(c, 4 * n_s, 4), scale = 1 / sqrtf((float)z.d);
        memset(want, 0x5a, 4 * n_s); /* what lies between the rows must stay */
        memset(got, 0x5a, 4 * n_s);
        c->c.attention.scores[t](q, z.ld, z.n_q, k, z.stride, z.n, z.d, scale, want);
        c->k.attention.scores[t](q, z.ld, z.n_q, k, z.stride, z.n, z.d, scale, got);
        same_floats(c, want, got, n_s, "n_q %d n %d d %d kind %d", z.n_q, z.n, z.d, kind);
        guarded_end(c);
    }
    static const int32_t bench_d[] = {64, 128}, bench_q[] = {1, 7, 8, 64};
    for (size_t a = 0; a < ARRAY_LEN(bench_d) && bench_wanted(c); a++) {
        for (size_t b = 0; b < ARRAY_LEN(bench_q); b++) {
            int32_t d = bench_d[a], n_q = bench_q[b];
            size_t stride = kv_record_bytes(t, d);
            float *q = guarded(c, 4 * (size_t)n_q * (size_t)d, 64),
                  *s = guarded(c, 4 * (size_t)n_q * ATTN_BLOCK, 64);
            random_floats(c, RANDOM_PLAIN, q, (size_t)n_q * (size_t)d);
            const uint8_t *k = records(c, t, RANDOM_PLAIN, ATTN_BLOCK, d, stride);
            char what[64];
            snprintf(what, sizeof(what), "d %d, %d queries", d, n_q);
            BENCH(c, 2.0 * n_q * ATTN_BLOCK * d, "GFLOP/s", what,
                  c->k.attention.scores[t](q, (size_t)d, n_q, k, stride, ATTN_BLOCK, d, 0.125f, s));
            guarded_end(c);
        }
    }
}

static void check_values(struct check *c, enum kv_dtype t)
{
    static const char *const names[KV_DTYPES] = {"attention.values_f32", "attention.values_f16",
                                                 "attention.values_bf16", "attention.values_i8"};
    if (!check_slot(c, FN(c->c.attention.values[t]), FN(c->k.attention.values[t]), names[t]))
        return;
    for (int i = 0; i < 200 && check_ok(c); i++) {
        enum random_floats kind = (enum random_floats)(i % RANDOM_KINDS);
        struct shape z = random_shape(c, t, i);
        size_t n_p = (size_t)(z.n_q - 1) * ATTN_BLOCK + (size_t)z.n,
               n_o = (size_t)(z.n_q - 1) * z.ld + (size_t)z.d;
        float *p = guarded(c, 4 * n_p, 4), *want = guarded(c, 4 * n_o, 4), *got = guarded(c, 4 * n_o, 4);
        random_floats(c, kind, p, n_p);
        for (size_t j = 0; j < n_p; j++)
            if (random_bits(c) % 4 == 0)
                p[j] = 0;
        random_floats(c, kind, want, n_o); /* the chain goes on from what is there */
        memcpy(got, want, 4 * n_o);
        const uint8_t *v = records(c, t, kind, z.n, z.d, z.stride);
        c->c.attention.values[t](p, z.n_q, v, z.stride, z.n, z.d, want, z.ld);
        c->k.attention.values[t](p, z.n_q, v, z.stride, z.n, z.d, got, z.ld);
        same_floats(c, want, got, n_o, "n_q %d n %d d %d kind %d", z.n_q, z.n, z.d, kind);
        guarded_end(c);
    }
    static const int32_t bench_d[] = {64, 128}, bench_q[] = {1, 7, 8, 64};
    for (size_t a = 0; a < ARRAY_LEN(bench_d) && bench_wanted(c); a++) {
        for (size_t b = 0; b < ARRAY_LEN(bench_q); b++) {
            int32_t d = bench_d[a], n_q = bench_q[b];
            size_t stride = kv_record_bytes(t, d), n_o = (size_t)n_q * (size_t)d;
            float *p = guarded(c, 4 * (size_t)n_q * ATTN_BLOCK, 64), *o = guarded(c, 4 * n_o, 64);
            for (size_t j = 0; j < (size_t)n_q * ATTN_BLOCK; j++)
                p[j] = 0x1p-10f;
            memset(o, 0, 4 * n_o);
            const uint8_t *v = records(c, t, RANDOM_PLAIN, ATTN_BLOCK, d, stride);
            char what[64];
            snprintf(what, sizeof(what), "d %d, %d queries", d, n_q);
            BENCH(c, 2.0 * n_q * ATTN_BLOCK * d, "GFLOP/s", what,
                  c->k.attention.values[t](p, n_q, v, stride, ATTN_BLOCK, d, o, (size_t)d));
            guarded_end(c);
        }
    }
}

static void check_softmax(struct check *c)
{
    if (!check_slot(c, FN(c->c.attention.softmax), FN(c->k.attention.softmax), "attention.softmax"))
        return;
    for (int i = 0; i < 3000 && check_ok(c); i++) {
        int32_t n = random_int(c, 1, ATTN_BLOCK), lo = random_int(c, 0, n - 1), hi = random_int(c, lo + 1, n);
        if (i % 3 == 0)
            lo = 0;
        int kind = i % RANDOM_KINDS;
        float *want = guarded(c, 4 * (size_t)n, 4), *got = guarded(c, 4 * (size_t)n, 4), m[2], l[2];
        random_floats(c, kind, want, (size_t)n);
        for (int32_t j = 0; j < n; j++) {
            uint32_t r = (uint32_t)random_bits(c);
            if (kind == RANDOM_PLAIN)
                want[j] *= 20;
            if (i % 5 == 1 && r % 2)
                want[j] = -INFINITY;
            if (i % 7 == 1) /* nothing but -inf; at times one NaN or +inf among them */
                want[j] = r % 256 == 3 ? NAN : r % 256 == 4 ? INFINITY : -INFINITY;
            if (i % 11 == 1)
                want[j] = r & 1 ? 0.0f : -0.0f;
        }
        memcpy(got, want, 4 * (size_t)n);
        c->c.attention.softmax(want, lo, hi, n, &m[0], &l[0]);
        c->k.attention.softmax(got, lo, hi, n, &m[1], &l[1]);
        same_floats(c, want, got, (size_t)n, "p, lo %d hi %d n %d case %d", lo, hi, n, i);
        same_floats(c, &m[0], &m[1], 1, "m, lo %d hi %d n %d case %d", lo, hi, n, i);
        same_floats(c, &l[0], &l[1], 1, "l, lo %d hi %d n %d case %d", lo, hi, n, i);
        guarded_end(c);
    }
    /* Row after row, as a caller does; on one row each call would wait for the one before. */
    float *s = guarded(c, 4 * 64 * ATTN_BLOCK, 64), m, l;
    memset(s, 0, 4 * 64 * ATTN_BLOCK);
    BENCH(c, 1.0 * ATTN_BLOCK, "Gelem/s", "n 64",
          c->k.attention.softmax(s + bench_i_ % 64 * ATTN_BLOCK, 0, ATTN_BLOCK, ATTN_BLOCK, &m, &l));
    guarded_end(c);
}

static void check_join(struct check *c)
{
    if (!check_slot(c, FN(c->c.attention.join), FN(c->k.attention.join), "attention.join"))
        return;
    static const float special[] = {-INFINITY, INFINITY, NAN, 3.402823e38f, -3.402823e38f, 0, 100, -100};
    for (int i = 0; i < 1500 && check_ok(c); i++) {
        int32_t d = i % 300 + 1;
        int kind = i % RANDOM_KINDS;
        float *o1 = guarded(c, 4 * (size_t)d, 4), *want = guarded(c, 4 * (size_t)d, 4),
              *got = guarded(c, 4 * (size_t)d, 4);
        float m[3], l[3];
        random_floats(c, kind, o1, (size_t)d);
        random_floats(c, kind, want, (size_t)d);
        random_floats(c, RANDOM_PLAIN, m, 3);
        random_floats(c, kind, l, 3);
        if (i % 4 == 0)
            m[0] = special[random_bits(c) % ARRAY_LEN(special)];
        if (i % 8 >= 6)
            m[2] = special[random_bits(c) % ARRAY_LEN(special)];
        m[1] = m[0];
        l[1] = l[0];
        memcpy(got, want, 4 * (size_t)d);
        c->c.attention.join(&m[0], &l[0], want, m[2], l[2], o1, d);
        c->k.attention.join(&m[1], &l[1], got, m[2], l[2], o1, d);
        same_floats(c, want, got, (size_t)d, "o, d %d case %d", d, i);
        same_floats(c, &m[0], &m[1], 1, "m, d %d case %d", d, i);
        same_floats(c, &l[0], &l[1], 1, "l, d %d case %d", d, i);
        guarded_end(c);
    }
    float *o1 = guarded(c, 4 * 128, 64), *o = guarded(c, 4 * 128, 64), m = 1, l = 1;
    random_floats(c, RANDOM_PLAIN, o1, 128);
    random_floats(c, RANDOM_PLAIN, o, 128);
    BENCH(c, 12.0 * 128, "GB/s", "d 128", c->k.attention.join(&m, &l, o, 0, 0, o1, 128));
    guarded_end(c);
}

static void check_finish(struct check *c)
{
    if (!check_slot(c, FN(c->c.attention.finish), FN(c->k.attention.finish), "attention.finish"))
        return;
    for (int i = 0; i < 1500 && check_ok(c); i++) {
        int32_t d = i % 300 + 1;
        int kind = i % RANDOM_KINDS;
        float *o = guarded(c, 4 * (size_t)d, 4), *want = guarded(c, 4 * (size_t)d, 4),
              *got = guarded(c, 4 * (size_t)d, 4), l;
        random_floats(c, kind, o, (size_t)d);
        random_floats(c, kind, &l, 1);
        if (i % 16 == 1)
            l = 0;
        c->c.attention.finish(o, l, d, want);
        c->k.attention.finish(o, l, d, got);
        same_floats(c, want, got, (size_t)d, "d %d l %g", d, (double)l);
        c->k.attention.finish(o, l, d, o);
        same_floats(c, want, o, (size_t)d, "in place, d %d l %g", d, (double)l);
        guarded_end(c);
    }
    float *o = guarded(c, 4 * 128, 64), *y = guarded(c, 4 * 128, 64);
    random_floats(c, RANDOM_PLAIN, o, 128);
    BENCH(c, 8.0 * 128, "GB/s", "d 128", c->k.attention.finish(o, 3.0f, 128, y));
    guarded_end(c);
}

void check_attention(struct check *c)
{
    for (enum kv_dtype t = 0; t < KV_DTYPES; t++)
        check_scores(c, t);
    check_softmax(c);
    for (enum kv_dtype t = 0; t < KV_DTYPES; t++)
        check_values(c, t);
    check_join(c);
    check_finish(c);
}
