/* attention.h: scores, softmax and weighted sums over one block of the KV cache. Arithmetic defined here.
 *
 * The cache is seen in blocks of ATTN_BLOCK positions counted from position 0, whatever the page size. For
 * one query vector and one block, on the positions it may see:
 *
 *   s_j = (lanes sum of q[k] * K_j[k]) * scale            i8: ((lanes sum of q[k] * code) * kscale_j) * scale
 *   m   = max s_j                                         NaN if any s_j is
 *   p_j = exp(s_j - m)                                    +0 if m is -inf
 *   l   = lanes sum of p_j                                lane = j % 8 with j counted in the block
 *   o[k] = fmaf over j in increasing order, from +0, of (p_j, V_j[k])          i8: (p_j * vscale_j, code)
 *
 * Positions it may not see have p_j = +0, which changes no sum (values in pages are finite). Blocks are
 * joined in order of position, from m = -inf:
 *
 *   M = max(m, m1);  a = exp(m - M), b = exp(m1 - M);  l = fmaf(l1, b, l * a);  o = fmaf(o1, b, o * a)
 *
 * At the end y = fmaf(o, 1 / l, +0). So a query's result does not depend on the other queries, on chunking or
 * on who computed which block. The +0 is for one case: a term p_j * V_j[k] too small for a float leaves o[k]
 * = -0, which a later +0 from a masked position would turn into +0; adding +0 makes the two the same.
 *
 * A NaN in a query or in a position that it sees makes its y NaN, always. A query whose scores are all -inf
 * gets NaN, as the formula has it; a block of such scores among others counts for nothing.
 *
 * A record is one position's K or V vector of one head (rows.h, kv_store):
 *
 *   f32, f16, bf16   the n numbers
 *   i8               n codes, padded with zeros to a multiple of 4, then one f32 scale
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
     * records k_stride bytes apart. The caller offsets s to the first position's place in the block, so a
     * block that lies in several pages takes several calls, to the same bits. K is widened once per handful
     * of queries: give all queries that share it. */
    void (*scores[KV_DTYPES])(const float *q, size_t ldq, int32_t n_q, const void *k, size_t k_stride,
                              int32_t n, int32_t d, float scale, float *s);
    /* One query's block: positions [lo, hi) of s are visible (0 <= lo < hi <= n <= ATTN_BLOCK). Turns s[0, n)
     * into p (with +0 outside [lo, hi)), returns m and l. What s holds outside [lo, hi) does not matter. */
    void (*softmax)(float *s, int32_t lo, int32_t hi, int32_t n, float *ret_m, float *ret_l);
    /* o[i * ldo + k] continues its fmaf chain over n further positions. p as s above. n <= ATTN_BLOCK. */
    void (*values[KV_DTYPES])(const float *p, int32_t n_q, const void *v, size_t v_stride, int32_t n,
                              int32_t d, float *o, size_t ldo);
    /* Joins (m1, l1, o1) into (m, l, o). With *m == -inf it is a copy, whatever *l and o hold. */
    void (*join)(float *m, float *l, float *o, float m1, float l1, const float *o1, int32_t d);
    void (*finish)(const float *o, float l, int32_t d, float *y); /* y may be o */
};
void attention_kernels_init(struct attention_kernels *k, int cpu_level);

#endif
