/* attention.h: scores, softmax and weighted sums over one block of the KV cache. Arithmetic defined here.
 *
 * The cache is seen in blocks of ATTN_BLOCK positions counted from position 0, whatever the page size. For
 * one query vector and one block, on the positions it may see: s_j = (lanes sum of q[k] * K_j[k]) * scale i8:
 * ((lanes sum) * kscale_j) * scale m = max s_j;   p_j = exp(s_j - m);   l = lanes sum of p_j, lane = j % 8
 * with j counted in the block o[k] = fmaf over j in increasing order, from +0, of (p_j, V_j[k])     i8: (p_j
 * * vscale_j, code) Positions it may not see have p_j == +0, which changes no sum (values in pages are
 * finite). Blocks are joined in order of position: M = max(m, m1); a = exp(m - M), b = exp(m1 - M); l =
 * fmaf(l1, b, l * a); o = fmaf(o1, b, o * a). At the end y = o * (1 / l). So a query's result does not depend
 * on the other queries, on chunking or on who computed which block.
 *
 * A record is one position's K or V vector of one head: f32, f16, bf16: the numbers (rounded to nearest even;
 * f16 clamped to
 * +-65504); i8: n codes, padded with zeros to a multiple of 4, then one f32 scale (amax / 127, code = rint(x
 * * (127 / amax))).
 */
#ifndef YOKE_KERNELS_ATTENTION_H
#define YOKE_KERNELS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/rows.h"

#define ATTN_BLOCK 64

static inline size_t kv_record_bytes(enum kv_dtype t, int32_t n)
{
    switch (t) {
    case KV_F32:
        return 4 * (size_t)n;
    case KV_F16:
    case KV_BF16:
        return 2 * (size_t)n;
    default:
        return (((size_t)n + 3) & ~(size_t)3) + 4;
    }
}

struct attention_kernels {
    /* s[i * ATTN_BLOCK + j] = s_j of query i, for i in [0, n_q), j in [0, n): q rows are ldq floats apart, K
     * records k_stride bytes apart. The caller offsets s to the first position's place in the block. */
    void (*scores[KV_DTYPES])(const float *q, size_t ldq, int32_t n_q, const void *k, size_t k_stride,
                              int32_t n, int32_t d, float scale, float *s);
    /* One query's block: positions [lo, hi) of s are visible (lo < hi <= n <= ATTN_BLOCK). Turns s[0, n) into
     * p (with +0 outside [lo, hi)), returns m and l. */
    void (*softmax)(float *s, int32_t lo, int32_t hi, int32_t n, float *ret_m, float *ret_l);
    /* o[i * ldo + k] continues its fmaf chain over n further positions. p as s above. */
    void (*values[KV_DTYPES])(const float *p, int32_t n_q, const void *v, size_t v_stride, int32_t n,
                              int32_t d, float *o, size_t ldo);
    /* Joins (m1, l1, o1) into (m, l, o). With *m == -inf it is a copy. */
    void (*join)(float *m, float *l, float *o, float m1, float l1, const float *o1, int32_t d);
    void (*finish)(float *o, float l, int32_t d, float *y);
};
void attention_kernels_init(struct attention_kernels *k, int cpu_level);

#endif
