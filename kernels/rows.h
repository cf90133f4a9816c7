/* rows.h: kernels over one row of floats: norms, gates, rotary embedding, conversions. Arithmetic defined
 * here.
 *
 *   exp      yk_expf below: a polynomial of our own, the same bits at each level (libm's differ between
 * versions). rms_norm ss = lanes sum of x[k]^2 (kernels/sum.h);  inv = 1 / sqrtf(ss / n + eps);  y[k] = (x[k]
 * * inv) * w[k] silu     g / (1 + exp(-g));  glu: y[k] = silu(g[k]) * u[k].  gelu_tanh likewise with tanh
 * from exp. rope     half-split: (a, b) = (x[i], x[i + rot/2]), interleaved: (x[2i], x[2i+1]); a' = a * cos -
 * b * sin,  b' = b * cos + a * sin: each product rounded, then the sum rounded (as PyTorch does). Elements
 * from rot on are left alone.
 */
#ifndef YOKE_KERNELS_ROWS_H
#define YOKE_KERNELS_ROWS_H

#include <stddef.h>
#include <stdint.h>

enum glu_kind { GLU_SILU, GLU_GELU_TANH };
enum kv_dtype { KV_F32, KV_F16, KV_BF16, KV_I8, KV_DTYPES };

struct rows_kernels {
    void (*rms_norm)(const float *x, const float *w /* [n] */, int32_t n, float eps,
                     float *y);                                       /* y may be x */
    void (*add)(const float *a, const float *b, int32_t n, float *y); /* y = a + b; y may be a */
    void (*mul)(const float *a, const float *b, int32_t n, float *y);
    void (*scale)(const float *a, float s, int32_t n, float *y);
    void (*glu[2])(const float *gate, const float *up, int32_t n,
                   float *y); /* by enum glu_kind; y may be gate */
    /* n_heads vectors of head_dim floats, contiguous; cos, sin: [rot / 2]. In place. */
    void (*rope_half)(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cos,
                      const float *sin);
    void (*rope_pairs)(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cos,
                       const float *sin);
    void (*exp)(const float *x, int32_t n, float *y); /* yk_expf of each */
    /* One vector into the KV cache (kernels/attention.h says what a record is). */
    void (*kv_store[KV_DTYPES])(const float *x, int32_t n, void *record);
};
void rows_kernels_init(struct rows_kernels *k, int cpu_level);

/* exp(x) for finite x and -inf, within 2 ulp; +0 below about -87.3 (results are never subnormal), +inf
 * above 88.7; NaN stays. */
float yk_expf(float x);

#endif
