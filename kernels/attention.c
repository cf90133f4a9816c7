#include "kernels/attention.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "kernels/sum.h"
#include "kernels/x86/x86.h"

/* Element k of a record (for i8 the bare code). Called with a constant type, so that the branches vanish. */
static inline float kv_at(enum kv_dtype t, const uint8_t *record, int32_t k)
{
    float f;
    uint16_t h;
    switch (t) {
    case KV_F32:
        memcpy(&f, record + 4 * (size_t)k, 4);
        return f;
    case KV_F16:
        memcpy(&h, record + 2 * (size_t)k, 2);
        return f16_to_f32(h);
    case KV_BF16:
        memcpy(&h, record + 2 * (size_t)k, 2);
        return bf16_to_f32(h);
    default:
        return (float)(int8_t)record[k];
    }
}

static inline float kv_scale(const uint8_t *record, int32_t d)
{
    float f;
    memcpy(&f, record + ROUND_UP((size_t)d, 4), 4);
    return f;
}

static inline void scores_any(enum kv_dtype t, const float *q, size_t ldq, int32_t n_q, const void *k,
                              size_t k_stride, int32_t n, int32_t d, float scale, float *s)
{
    for (int32_t i = 0; i < n_q; i++) {
        const float *qi = q + (size_t)i * ldq;
        for (int32_t j = 0; j < n; j++) {
            const uint8_t *record = (const uint8_t *)k + (size_t)j * k_stride;
            float lanes[8] = {0};
            for (int32_t x = 0; x < d; x++)
                lanes[x % 8] = fmaf(qi[x], kv_at(t, record, x), lanes[x % 8]);
            float sum = lanes_join(lanes);
            if (t == KV_I8)
                sum *= kv_scale(record, d);
            s[(size_t)i * ATTN_BLOCK + (size_t)j] = sum * scale;
        }
    }
}

static inline void values_any(enum kv_dtype t, const float *p, int32_t n_q, const void *v, size_t v_stride,
                              int32_t n, int32_t d, float *o, size_t ldo)
{
    for (int32_t i = 0; i < n_q; i++) {
        float *oi = o + (size_t)i * ldo;
        for (int32_t j = 0; j < n; j++) {
            const uint8_t *record = (const uint8_t *)v + (size_t)j * v_stride;
            float pj = p[(size_t)i * ATTN_BLOCK + (size_t)j];
            if (t == KV_I8)
                pj *= kv_scale(record, d);
            for (int32_t x = 0; x < d; x++)
                oi[x] = fmaf(pj, kv_at(t, record, x), oi[x]);
        }
    }
}

#define FOR_TYPE(name, type)                                                                                 \
    static void scores_##name##_c(const float *q, size_t ldq, int32_t n_q, const void *k, size_t k_stride,   \
                                  int32_t n, int32_t d, float scale, float *s)                               \
    {                                                                                                        \
        scores_any(type, q, ldq, n_q, k, k_stride, n, d, scale, s);                                          \
    }                                                                                                        \
    static void values_##name##_c(const float *p, int32_t n_q, const void *v, size_t v_stride, int32_t n,    \
                                  int32_t d, float *o, size_t ldo)                                           \
    {                                                                                                        \
        values_any(type, p, n_q, v, v_stride, n, d, o, ldo);                                                 \
    }
FOR_TYPE(f32, KV_F32)
FOR_TYPE(f16, KV_F16)
FOR_TYPE(bf16, KV_BF16)
FOR_TYPE(i8, KV_I8)

static void softmax_c(float *s, int32_t lo, int32_t hi, int32_t n, float *ret_m, float *ret_l)
{
    float m = -INFINITY, lanes[8] = {0};
    for (int32_t j = lo; j < hi && m == m; j++)
        m = s[j] > m || s[j] != s[j] ? s[j] : m;
    m += 0.0f;
    for (int32_t j = 0; j < n; j++) {
        bool visible = j >= lo && j < hi && m != -INFINITY;
        s[j] = visible ? yk_expf(s[j] - m) : 0.0f;
        lanes[j % 8] += s[j];
    }
    *ret_m = m;
    *ret_l = lanes_join(lanes);
}

static void join_c(float *m, float *l, float *o, float m1, float l1, const float *o1, int32_t d)
{
    if (*m == -INFINITY) {
        *m = m1;
        *l = l1;
        memcpy(o, o1, sizeof(float) * (size_t)d);
        return;
    }
    float max = m1 > *m ? m1 : *m;
    float a = yk_expf(*m - max), b = yk_expf(m1 - max);
    *m = max;
    *l = fmaf(l1, b, *l * a);
    for (int32_t x = 0; x < d; x++)
        o[x] = fmaf(o1[x], b, o[x] * a);
}

static void finish_c(const float *o, float l, int32_t d, float *y)
{
    float inv = 1.0f / l;
    for (int32_t x = 0; x < d; x++)
        y[x] = fmaf(o[x], inv, 0.0f);
}

void attention_kernels_init(struct attention_kernels *k, int cpu_level)
{
    *k = (struct attention_kernels){
        .scores = {scores_f32_c, scores_f16_c, scores_bf16_c, scores_i8_c},
        .softmax = softmax_c,
        .values = {values_f32_c, values_f16_c, values_bf16_c, values_i8_c},
        .join = join_c,
        .finish = finish_c,
    };
#if defined(__x86_64__)
    if (cpu_level < CPU_AVX2)
        return;
    attention_init_avx2(k);
    if (cpu_level < CPU_AVX512)
        return;
    attention_init_avx512(k);
#endif
}
