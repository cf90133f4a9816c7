/* matmul.h: packed weights, activations made ready for them, and their product. The arithmetic is defined
 * here.
 *
 * A `struct wmat` is one rank's slice of a weight matrix [rows, cols], packed without loss from the
 * checkpoint's own codes: rows in panels of 8, interleaved so that one vector holds 8 rows. It is read-only
 * once packed; panels are independent, so threads pack and multiply disjoint ranges of panels. What lies
 * inside a panel is private to kernels/.
 *
 * y[t][r] = tree over chunks c of S_c, where the cuts of the columns are part of the matrix (kernels/sum.h):
 *
 * f32, f16, bf16 (activation ACT_F32: the floats themselves). From +0, over k in increasing order:
 *
 *     acc = fmaf(w[r][k], x[t][k], acc)                         f16 and bf16 widen exactly
 *
 * f8_e4m3 (ACT_F32). w[r][k] = scale[i / scale_rows][j / scale_cols] * value(code), where i, j is the place
 * of r, k in the whole matrix. From +0, over the scale blocks that have columns in the chunk, in order of
 * columns; in each, from +0, over its k in the chunk in increasing order:
 *
 *     acc = fmaf(value(code), x[t][k], acc)
 *     S_c = fmaf(acc, scale, S_c)                               at the end of each block
 *
 * q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, i4g (ACT_Q32: int8 per group of 32 columns).
 * w[r][k] = scale[r][g] * code + min[r][g], where code is the signed integer for types without a min;
 * K-quants have scale = d * sc and min = -(dmin * m), each one f32 product of exact values. From +0, over
 * weight groups g in increasing order (32 columns; q6_k: 16), where G is the activation group of 32 that
 * holds g:
 *
 *     isum = sum of code * q                                    exact in int32
 *     acc = fmaf((float)isum, scale[r][g] * ascale[t][G], acc)
 *     acc = fmaf(min[r][g], asum[t][G], acc)                    types with a min only
 *     asum[t][G] = ascale[t][G] * (float)(sum of q in G)
 *
 * i8c (ACT_QC: int8 per chunk). wscale is per (row, chunk): max|w| in the chunk / 127, code = rint(w * (127 /
 * max|w|)), all 0 if the chunk is all 0; isum_c is exact in int32 (a chunk has at most 65536 columns):
 *
 *     S_c = ((float)isum_c * ascale[t][c]) * wscale[r][c]
 *
 * Chunks of integer formats start at multiples of 32 of the matrix's columns; only the last one may end
 * elsewhere (then codes and activations are padded with zeros to a multiple of 32).
 *
 * Quantising an activation row (per group of 32, or per chunk): amax = max|x|; scale = amax / 127; q = rint(x
 * * (127 / amax)) to nearest even. All zero, scale too, if 127 / amax is not finite (amax == 0, or below
 * about 2^-121). A NaN or infinity in the row must come out as NaN in every product that it touches (scale =
 * NaN, codes 0), never as a plausible number. i8c weights are quantised by the same rule.
 *
 * i4g: as q4_0 (code in -8..7, f16 scale); for each group of 32 weights the scale is chosen among candidates
 * to minimise the squared error; the search is deterministic and stated at wmat_pack in matmul_pack.c.
 */
#ifndef YOKE_KERNELS_MATMUL_H
#define YOKE_KERNELS_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/err.h"
#include "kernels/sum.h"

#define WMAT_PANEL 8 /* rows of a panel */

/* What a packed byte means (matmul_layout.h), and how I8C and I4G are made from floats. Raise it with any
 * change of either: shard sets hold packed bytes, and are refused if they were written under another number.
 * It is the same for every CPU level. */
#define WMAT_PACKING_VERSION 1
/* f8_e4m3: blocks of the whole matrix share a scale (128 x 128 in DeepSeek's checkpoints; one per row: 1 x
 * INT32_MAX; one for all: INT32_MAX x INT32_MAX). A slice may begin anywhere in a block. */
struct scale_blocks {
    int32_t scale_rows, scale_cols;     /* of a block; at least 1 */
    int32_t row_in_block, col_in_block; /* where the slice's row 0 and column 0 lie in theirs */
};
/* Of a slice that begins at row0, col0 of the whole matrix. */
static inline struct scale_blocks scale_blocks_at(int32_t scale_rows, int32_t scale_cols, int32_t row0,
                                                  int32_t col0)
{
    return (struct scale_blocks){scale_rows, scale_cols, row0 % scale_rows, col0 % scale_cols};
}

struct wmat {
    enum dtype dtype;
    int32_t rows, cols;
    int32_t n_panels;
    int32_t skip; /* K-quants: columns of the first 256-block that lie before column 0 (0, 32, ..., 224) */
    struct scale_blocks blocks; /* f8_e4m3 */
    struct cuts cuts;
    size_t panel_bytes;
    uint8_t *data; /* 64-byte aligned, n_panels * panel_bytes; owned by whoever called wmat_init */
};

/* Describes a matrix (sizes only; data stays NULL): checks the cuts against dtype's rules with asserts. */
void wmat_init(struct wmat *w, enum dtype dtype, int32_t rows, int32_t cols, int32_t skip,
               const struct cuts *cuts);
/* f8_e4m3 with scales; by wmat_init it has none (they are 1). */
void wmat_init_f8(struct wmat *w, int32_t rows, int32_t cols, const struct scale_blocks *blocks,
                  const struct cuts *cuts);
static inline size_t wmat_bytes(const struct wmat *w)
{
    return (size_t)w->n_panels * w->panel_bytes;
}

/* Packs rows [row0, row0 + n_rows) from src: n_rows rows of src_dtype, src_stride bytes apart, each starting
 * `skip` columns before column 0 (whole blocks). src_dtype == dtype, or a float type when dtype is i8c or
 * i4g. row0 is a multiple of WMAT_PANEL; unused rows of the last panel become zeros. Different panels may be
 * packed by different threads. */
void wmat_pack(struct wmat *w, int32_t row0, int32_t n_rows, enum dtype src_dtype, const void *src,
               size_t src_stride);

/* Whether columns [to_col, + n_cols) of `to` and [from_col, + n_cols) of `from` are the same whole chunks.
 * Only i8c asks for it, whose scales belong to chunks; for all other formats it is true. */
bool wmat_same_chunks(const struct wmat *to, int32_t to_col, const struct wmat *from, int32_t from_col,
                      int32_t n_cols);
/* Moves a rectangle between matrices of one dtype that hold parts of the same tensor; codes and scales are
 * copied as they are, so that the result has the bits of wmat_pack on the tensor itself. `to` was zeroed
 * before. Integer formats: columns are whole groups of 32 (or end both matrices), at the same place of their
 * 256-column blocks (K-quants), and the same chunks (see above); f8_e4m3: at the same place of equal scale
 * blocks. Different panels of `to` may be written by different threads. */
void wmat_copy(struct wmat *to, int32_t to_row, int32_t to_col, const struct wmat *from, int32_t from_row,
               int32_t from_col, int32_t n_rows, int32_t n_cols);
/* The same for f8_e4m3 with scales: rows of codes `stride` bytes apart from local column 0 on; scales: rows
 * of f32 (aligned or not) scale_stride bytes apart, the first of which is that of the block of row0 and of
 * column 0. */
void wmat_pack_f8(struct wmat *w, int32_t row0, int32_t n_rows, const void *codes, size_t stride,
                  const void *scales, size_t scale_stride);

/* What wmat_pack_f8 reads as floats, one rounded product each: to be quantised to another type. blocks: for
 * the first row and column of codes. dst: [n_rows, cols]. */
void f8_rows_to_f32(const void *codes, size_t stride, int32_t n_rows, int32_t cols,
                    const struct scale_blocks *blocks, const void *scales, size_t scale_stride, float *dst);

/* One row as floats: scale * code (+ min), the rounding of the formats' reference. For embeddings and for
 * tests. f8_e4m3: one NaN among the codes makes NaN of the row's whole block. */
void wmat_row(const struct wmat *w, int32_t row, float *dst /* [cols] */);

enum act_kind { ACT_F32, ACT_Q32, ACT_QC };
enum act_kind act_kind_of(enum dtype weight);

/* A quantised activation row is one record: where its parts lie. ACT_F32 has no record: the row is cols
 * floats. */
struct act_layout {
    enum act_kind kind;
    int32_t cols;
    struct cuts cuts;
    int32_t n_scales; /* groups of 32, or chunks */
    /* Byte offsets: float scale[n_scales]; float asum[n_scales] (ACT_Q32 only); the sums of the codes, for
     * kernels that store codes with an offset: ACT_Q32 int16_t[2 * n_scales], one per 16 columns, ACT_QC
     * int32_t[n_scales]; int8_t code[cols rounded up to 32], 64-byte aligned. */
    uint32_t scale_at, sum_at, isum_at, code_at;
    uint32_t row_bytes; /* multiple of 64 */
};
void act_layout_init(struct act_layout *a, enum act_kind kind, int32_t cols, const struct cuts *cuts);

struct matmul_kernels {
    /* x: [cols] floats -> one record. */
    void (*quantize)(const struct act_layout *a, const float *x, void *record);
    /* y[t * ldy + r] for t in [0, n_tokens), rows of panels [panel0, panel1). act: rows of floats (ACT_F32)
     * or records, act_stride bytes apart, 64-byte aligned when records. Rows beyond w->rows are not written.
     */
    void (*mul[DT_COUNT])(const struct wmat *w, const void *act, size_t act_stride, int32_t n_tokens,
                          int32_t panel0, int32_t panel1, float *y, size_t ldy);
};
void matmul_kernels_init(struct matmul_kernels *k, int cpu_level);

#endif
