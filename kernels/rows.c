#include "kernels/rows.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "kernels/exp.h"
#include "kernels/sum.h"
#include "kernels/x86/x86.h"

float yk_expf(float x)
{
    if (x != x)
        return x;
    if (x < EXP_MIN)
        return 0.0f;
    if (x > EXP_MAX)
        return INFINITY;
    float t = fmaf(x, EXP_LOG2E, EXP_ROUND);
    float n = t - EXP_ROUND;
    float r = fmaf(-n, EXP_LN2_HI, x);
    r = fmaf(-n, EXP_LN2_LO, r);
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits, shift;
    memcpy(&bits, &p, 4);
    memcpy(&shift, &t, 4);
    bits += shift << 23; /* the low bits of t hold n; the rest leaves at the top */
    memcpy(&p, &bits, 4);
    return p;
}

static void rms_norm_c(const float *x, const float *w, int32_t n, float eps, float *y)
{
    float lanes[8] = {0};
    for (int32_t k = 0; k < n; k++)
        lanes[k % 8] = fmaf(x[k], x[k], lanes[k % 8]);
    float inv = 1.0f / sqrtf(lanes_join(lanes) / (float)n + eps);
    for (int32_t k = 0; k < n; k++)
        y[k] = (x[k] * inv) * w[k];
}

static void add_c(const float *a, const float *b, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++)
        y[k] = a[k] + b[k];
}

static void mul_c(const float *a, const float *b, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++)
        y[k] = a[k] * b[k];
}

static void scale_c(const float *a, float s, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++)
        y[k] = a[k] * s;
}

static void glu_silu_c(const float *gate, const float *up, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++) {
        float g = gate[k];
        y[k] = (g / (1.0f + yk_expf(-g))) * up[k];
    }
}

static void glu_gelu_tanh_c(const float *gate, const float *up, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++) {
        float g = gate[k];
        float t = fmaf((GELU_CUBE * g) * g, g, g);
        y[k] = (g / (1.0f + yk_expf(-(GELU_TWO_K * t)))) * up[k];
    }
}

static void rope_half_c(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cosines,
                        const float *sines)
{
    int32_t half = rot / 2;
    for (int32_t h = 0; h < n_heads; h++, x += head_dim) {
        for (int32_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];
            x[i] = a * cosines[i] - b * sines[i];
            x[i + half] = b * cosines[i] + a * sines[i];
        }
    }
}

static void rope_pairs_c(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cosines,
                         const float *sines)
{
    for (int32_t h = 0; h < n_heads; h++, x += head_dim) {
        for (int32_t i = 0; i < rot / 2; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosines[i] - b * sines[i];
            x[2 * i + 1] = b * cosines[i] + a * sines[i];
        }
    }
}

static void exp_c(const float *x, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++)
        y[k] = yk_expf(x[k]);
}

static void kv_store_f32_c(const float *x, int32_t n, void *record)
{
    memcpy(record, x, sizeof(float) * (size_t)n);
}

static void kv_store_f16_c(const float *x, int32_t n, void *record)
{
    for (int32_t k = 0; k < n; k++) {
        float v = x[k] > 65504.0f ? 65504.0f : x[k] < -65504.0f ? -65504.0f : x[k];
        uint16_t h = f32_to_f16(v);
        memcpy((uint8_t *)record + 2 * (size_t)k, &h, 2);
    }
}

static void kv_store_bf16_c(const float *x, int32_t n, void *record)
{
    for (int32_t k = 0; k < n; k++) {
        uint16_t h = f32_to_bf16(x[k]);
        memcpy((uint8_t *)record + 2 * (size_t)k, &h, 2);
    }
}

static void kv_store_i8_c(const float *x, int32_t n, void *record)
{
    int8_t *code = record;
    size_t padded = ROUND_UP((size_t)n, 4);
    float amax = 0, scale = 0;
    bool finite = true;
    for (int32_t k = 0; k < n; k++) {
        float a = fabsf(x[k]);
        amax = a > amax ? a : amax;
        finite &= a < INFINITY;
    }
    memset(code, 0, padded);
    if (!finite) {
        scale = NAN;
    } else if (amax >= KV_I8_TINY) {
        scale = amax / 127.0f;
        float to_code = 127.0f / amax;
        for (int32_t k = 0; k < n; k++)
            code[k] = (int8_t)rintf(x[k] * to_code);
    }
    memcpy(code + padded, &scale, 4);
}

void rows_kernels_init(struct rows_kernels *k, int cpu_level)
{
    *k = (struct rows_kernels){
        .rms_norm = rms_norm_c,
        .add = add_c,
        .mul = mul_c,
        .scale = scale_c,
        .glu = {[GLU_SILU] = glu_silu_c, [GLU_GELU_TANH] = glu_gelu_tanh_c},
        .rope_half = rope_half_c,
        .rope_pairs = rope_pairs_c,
        .exp = exp_c,
        .kv_store = {[KV_F32] = kv_store_f32_c,
                     [KV_F16] = kv_store_f16_c,
                     [KV_BF16] = kv_store_bf16_c,
                     [KV_I8] = kv_store_i8_c},
    };
#if defined(__x86_64__)
    if (cpu_level < CPU_AVX2)
        return;
    rows_init_avx2(k);
    if (cpu_level < CPU_AVX512)
        return;
    rows_init_avx512(k);
#endif
}
