/* matmul_layout.h: what lies in a panel. Private to kernels/.
 *
 * A panel holds 8 rows, padded to a multiple of 64 bytes, and is read front to back, once, in one stream.
 *
 * Float types: column after column, 8 elements each.
 *
 * F8_E4M3: column after column, 8 bytes each; before the first column of each scale block, float scale[8] of
 * the rows. The scale of a row that has a NaN among its codes in the block is NaN, so that kernels may read
 * those codes as any number: the row's product is NaN either way, whatever the chunks.
 *
 * Integer types: a sequence of groups of 32 columns, each `group_bytes` long. Write code(r, k) for the code
 * of row r in column k of the group, as stored (unsigned: the signed code plus `offset`; 8-bit codes are
 * stored signed). A *vector* v in 0..7 is the 32 bytes
 *
 *     byte 4 * r + i = code(r, 4 * v + i)        r in 0..7, i in 0..3
 *
 * that is, dword r belongs to row r, so that one dot product with a broadcast dword of activations advances 8
 * rows. In the group lie
 *
 *     at 0         4, 5, 6 bits: 4 lines of 32 bytes; line j has the low 4 bits of vector j in its
 *                  low nibbles, those of vector j + 4 in its high nibbles. 8 bits: the 8 vectors
 *     at high_at   5 bits: 32 bytes; bit v of byte b is bit 4 of byte b of vector v
 *                  6 bits: 2 * 32 bytes; bits 2 * (v % 4) and up of byte b of plane v / 4 are bits
 *                  4, 5 of byte b of vector v
 *     at scale_at  the scales of the 8 rows: f16 d; K-quants: u8 sc (q6_k: i8, and 8 more for columns
 *                  16..31)
 *     at min_at    f16 m[8]; K-quants: u8 m[8]
 *
 * K-quants: groups come in 256-column blocks of the checkpoint; each block (the first one may have lost its
 * first groups: wmat.skip) starts with `head_bytes` of f16 d[8] (and dmin[8]).
 * I8C: the panel starts with float wscale[n_chunks][8], `panel_head` bytes, 64-byte aligned; groups follow.
 *
 * Everything is little-endian, as GGUF is.
 */
#ifndef YOKE_KERNELS_MATMUL_LAYOUT_H
#define YOKE_KERNELS_MATMUL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/matmul.h"

struct panel_format {
    int bits, offset;
    int has_min;
    int head_bytes; /* K-quants: before each block of 8 groups */
    int group_bytes, high_at, scale_at, min_at;
};

/* In a header, so that kernels specialised by a constant dtype see constants. */
static const struct panel_format panel_formats[DT_COUNT] = {
    [DT_Q4_0] = {.bits = 4, .offset = 8, .group_bytes = 144, .scale_at = 128},
    [DT_I4G] = {.bits = 4, .offset = 8, .group_bytes = 144, .scale_at = 128},
    [DT_Q4_1] = {.bits = 4, .has_min = 1, .group_bytes = 160, .scale_at = 128, .min_at = 144},
    [DT_Q5_0] = {.bits = 5, .offset = 16, .group_bytes = 176, .high_at = 128, .scale_at = 160},
    [DT_Q5_1] = {.bits = 5, .has_min = 1, .group_bytes = 192, .high_at = 128, .scale_at = 160, .min_at = 176},
    [DT_Q8_0] = {.bits = 8, .group_bytes = 272, .scale_at = 256},
    [DT_Q4_K] =
        {.bits = 4, .has_min = 1, .head_bytes = 32, .group_bytes = 144, .scale_at = 128, .min_at = 136},
    [DT_Q5_K] = {.bits = 5,
                 .has_min = 1,
                 .head_bytes = 32,
                 .group_bytes = 176,
                 .high_at = 128,
                 .scale_at = 160,
                 .min_at = 168},
    [DT_Q6_K] =
        {.bits = 6, .offset = 32, .head_bytes = 16, .group_bytes = 208, .high_at = 128, .scale_at = 192},
    [DT_I8C] = {.bits = 8, .group_bytes = 256},
};

static inline int is_k_quant(enum dtype t)
{
    return t == DT_Q4_K || t == DT_Q5_K || t == DT_Q6_K;
}
static inline int is_float_weight(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* F8_E4M3: the scale block of column k, the column where block b ends, the block's scales and column k. */
static inline int32_t f8_block(const struct wmat *w, int32_t k)
{
    return (int32_t)(((int64_t)k + w->blocks.col_in_block) / w->blocks.scale_cols);
}
static inline int32_t f8_block_end(const struct wmat *w, int32_t b)
{
    int64_t end = ((int64_t)b + 1) * w->blocks.scale_cols - w->blocks.col_in_block;
    return end < w->cols ? (int32_t)end : w->cols;
}
static inline size_t f8_scales_at(const struct wmat *w, int32_t b)
{
    return 32 * (size_t)b + 8 * (size_t)(b > 0 ? f8_block_end(w, b - 1) : 0);
}
static inline size_t f8_column_at(int32_t b, int32_t k)
{
    return 32 * ((size_t)b + 1) + 8 * (size_t)k;
}

/* Bytes before the first group (I8C's scales). */
static inline size_t panel_head(enum dtype t, int n_chunks)
{
    return t == DT_I8C ? ((size_t)n_chunks * WMAT_PANEL * sizeof(float) + 63) / 64 * 64 : 0;
}
/* Where group g starts, and the head of the K-quant block that it belongs to. */
static inline size_t panel_group_at(enum dtype t, int n_chunks, int32_t skip, int32_t g)
{
    const struct panel_format *f = &panel_formats[t];
    size_t blocks = is_k_quant(t) ? (size_t)(g + skip / 32) / 8 + 1 : 0;
    return panel_head(t, n_chunks) + blocks * (size_t)f->head_bytes + (size_t)g * (size_t)f->group_bytes;
}
static inline size_t panel_block_at(enum dtype t, int32_t skip, int32_t g)
{
    int32_t first = (g + skip / 32) / 8 * 8 - skip / 32; /* of the block; negative where skip cut it */
    if (first < 0)
        first = 0;
    return panel_group_at(t, 0, skip, first) - (size_t)panel_formats[t].head_bytes;
}
static inline int32_t cuts_group(const struct cuts *c,
                                 int i) /* the first group of chunk i; i == n: their number */
{
    return (c->at[i] + 31) / 32;
}
static inline uint8_t *wmat_panel(const struct wmat *w, int32_t p)
{
    return w->data + (size_t)p * w->panel_bytes;
}

/* One group of a panel, decoded: the slow way, for portable C. */
struct panel_group {
    int8_t code[WMAT_PANEL][32]; /* the contract's codes */
    float scale[2][WMAT_PANEL];  /* q6_k: columns 0..15 and 16..31; others: both halves are the same */
    float min[WMAT_PANEL];       /* 0 for types without */
};
void panel_group_read(const struct wmat *w, const uint8_t *panel, int32_t g, struct panel_group *ret);

/* The quantisation rule of matmul.h, in its three steps: the largest magnitude (NaN once anything is not
 * finite), the scale and its inverse, the codes (their sum is returned). */
float quantize_amax(float amax, const float *x, int32_t n);
void quantize_scale(float amax, float *ret_scale, float *ret_inverse);
int32_t quantize_codes(const float *x, int32_t n, float inverse, int8_t *code);

#endif
