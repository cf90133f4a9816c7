/* The matmul family with AVX2, FMA and F16C.
 *
 * Integer products: maddubs multiplies unsigned by signed bytes and adds pairs in int16, saturating. Codes of
 * 4, 5 and 6 bits are stored unsigned, so they go in as they are, and as many results are added in int16 as
 * provably fit: 4 bits   8 * 2 * 15 * 127 = 30480        5 bits   4 * 2 * 31 * 127 = 31496        6 bits   2
 * * 2 * 63 * 127 = 32004 Signed bytes go in as |code| (at most 128) with the sign moved to the activation (at
 * least -127): 2 * 128 * 127 = 32512.
 */
#include "kernels/matmul.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#define FEW             4
#define DOTS_ADD_OFFSET 0
static ALWAYS_INLINE void dots_group(enum dtype t, const __m256i code[8], const uint8_t *q,
                                     const uint8_t *sums, __m256i isum[2]);
static ALWAYS_INLINE __m256i dots_add(__m256i isum, const __m256i code[8], const uint8_t *q);
static ALWAYS_INLINE void few_f8(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                 int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy);
#include "kernels/x86/matmul_x86.inc"

/* unsigned codes times the q that belongs to vector v */
static ALWAYS_INLINE __m256i pairs(__m256i code, const uint8_t *q, int v)
{
    return _mm256_maddubs_epi16(code, _mm256_set1_epi32(load32(q + 4 * v)));
}
static ALWAYS_INLINE __m256i signed_pairs(__m256i magnitude, __m256i code, const uint8_t *q, int v)
{
    return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(_mm256_set1_epi32(load32(q + 4 * v)), code));
}
static ALWAYS_INLINE __m256i widen(__m256i sums16)
{
    return _mm256_madd_epi16(sums16, _mm256_set1_epi16(1));
}
/* -offset * (the sum of the group's q, or of one half): what codes stored with an offset add too much. */
static ALWAYS_INLINE __m256i correction(const uint8_t *sums, int low, int high)
{
    return _mm256_madd_epi16(_mm256_set1_epi32(load32(sums)), _mm256_set1_epi32(two_int16(low, high)));
}

static ALWAYS_INLINE void dots_group(enum dtype t, const __m256i code[8], const uint8_t *q,
                                     const uint8_t *sums, __m256i isum[2])
{
    const int offset = panel_formats[t].offset, bits = panel_formats[t].bits;
    if (bits == 8) {
        isum[0] = dots_add(_mm256_setzero_si256(), code, q);
        return;
    }
    const int fit = bits == 4 ? 8 : bits == 5 ? 4 : 2; /* results that fit in int16 */
    __m256i sum[4];
    UNROLL
    for (int v = 0; v < 8; v++) {
        __m256i add = pairs(code[v], q, v);
        sum[v / fit] = v % fit ? _mm256_add_epi16(sum[v / fit], add) : add;
        IN_REGISTER(sum[v / fit]);
    }
    if (bits == 4)
        isum[0] = widen(sum[0]);
    else
        isum[0] = _mm256_add_epi32(widen(sum[0]), widen(sum[1]));
    if (bits == 6) {
        isum[0] = _mm256_add_epi32(isum[0], correction(sums, -offset, 0));
        isum[1] =
            _mm256_add_epi32(_mm256_add_epi32(widen(sum[2]), widen(sum[3])), correction(sums, 0, -offset));
    } else if (offset) {
        isum[0] = _mm256_add_epi32(isum[0], correction(sums, -offset, -offset));
    }
}

static ALWAYS_INLINE __m256i dots_add(__m256i isum, const __m256i code[8], const uint8_t *q)
{
    UNROLL
    for (int v = 0; v < 8; v++) {
        isum = _mm256_add_epi32(isum, widen(signed_pairs(_mm256_abs_epi8(code[v]), code[v], q, v)));
        IN_REGISTER(isum);
    }
    return isum;
}

/* ---- blocks of tokens: integers ---- */

#define HALF_L2 (192 * 1024) /* Zen 3 has 512 KiB, Haswell to Skylake clients 256 */
#define STRETCH 8            /* groups unpacked at a time */

struct scratch {
    __m256i code[STRETCH][8];
    __m256 scale[STRETCH][2], min[STRETCH];
};

static ALWAYS_INLINE void unpack(enum dtype t, struct walk *walk, int n_groups, struct scratch *s)
{
    struct walk k = *walk;
    for (int g = 0; g < n_groups; g++) {
        prefetch_group(t, k.group);
        group_codes(t, k.group, s->code[g]);
        if (t != DT_I8C) {
            s->scale[g][0] = group_scale(t, k.group, k.block, 0);
            if (t == DT_Q6_K)
                s->scale[g][1] = group_scale(t, k.group, k.block, 1);
            if (panel_formats[t].has_min)
                s->min[g] = group_min(t, k.group, k.block);
        }
        walk_next(&k, t);
    }
    *walk = k;
}

/* acc[i] goes on over n_groups groups for tokens i < n. rec: the first token's record; g0: its first group
 * there. The order of the loops keeps a vector of codes in a register while it meets the tokens. */
static ALWAYS_INLINE void tile_q32(enum dtype t, const struct scratch *s, int n_groups,
                                   const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                   int32_t g0, int n, __m256 *acc_at)
{
    const int bits = panel_formats[t].bits, offset = panel_formats[t].offset;
    const int fit = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; /* results that fit in int16 */
    const int halves = t == DT_Q6_K ? 2 : 1, n_v = 8 / halves;
    __m256 acc[TILE];
    UNROLL
    for (int i = 0; i < n; i++)
        acc[i] = acc_at[i];
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    for (int g = 0; g < n_groups; g++, q += 32) {
        const uint8_t *scales = rec + a->scale_at + 4 * (g0 + g), *asums = rec + a->sum_at + 4 * (g0 + g),
                      *isums = rec + a->isum_at + 4 * (g0 + g);
        UNROLL
        for (int h = 0; h < halves; h++) {
            __m256i isum[TILE];
            UNROLL
            for (int v0 = h * n_v; v0 < (h + 1) * n_v; v0 += fit) {
                __m256i sum[TILE];
                UNROLL
                for (int v = v0; v < v0 + fit; v++) {
                    __m256i code = s->code[g][v], magnitude = bits == 8 ? _mm256_abs_epi8(code) : code;
                    UNROLL
                    for (int i = 0; i < n; i++) {
                        const uint8_t *qi = q + (size_t)i * act_stride;
                        __m256i add = bits == 8 ? signed_pairs(magnitude, code, qi, v) : pairs(code, qi, v);
                        sum[i] = v > v0 ? _mm256_add_epi16(sum[i], add) : add;
                        IN_REGISTER(sum[i]);
                    }
                }
                UNROLL
                for (int i = 0; i < n; i++) {
                    isum[i] = v0 > h * n_v ? _mm256_add_epi32(isum[i], widen(sum[i])) : widen(sum[i]);
                    IN_REGISTER(isum[i]);
                }
            }
            UNROLL
            for (int i = 0; i < n; i++) {
                size_t at = (size_t)i * act_stride;
                if (offset)
                    isum[i] =
                        _mm256_add_epi32(isum[i], correction(isums + at, halves == 2 && h == 1 ? 0 : -offset,
                                                             halves == 2 && h == 0 ? 0 : -offset));
                acc[i] = _mm256_fmadd_ps(
                    _mm256_cvtepi32_ps(isum[i]),
                    _mm256_mul_ps(s->scale[g][h], _mm256_set1_ps(load_float(scales + at))), acc[i]);
                if (panel_formats[t].has_min)
                    acc[i] = _mm256_fmadd_ps(s->min[g], _mm256_set1_ps(load_float(asums + at)), acc[i]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        acc_at[i] = acc[i];
}

/* The same for i8c, where acc holds integers. */
static ALWAYS_INLINE void tile_qc(enum dtype t, const struct scratch *s, int n_groups,
                                  const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                  int32_t g0, int n, __m256 *acc_at)
{
    (void)t;
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    __m256i acc[TILE];
    UNROLL
    for (int i = 0; i < n; i++)
        acc[i] = _mm256_castps_si256(acc_at[i]);
    for (int g = 0; g < n_groups; g++, q += 32) {
        UNROLL
        for (int v = 0; v < 8; v++) {
            __m256i code = s->code[g][v], magnitude = _mm256_abs_epi8(code);
            UNROLL
            for (int i = 0; i < n; i++) {
                acc[i] = _mm256_add_epi32(
                    acc[i], widen(signed_pairs(magnitude, code, q + (size_t)i * act_stride, v)));
                IN_REGISTER(acc[i]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        acc_at[i] = _mm256_castsi256_ps(acc[i]);
}

struct steps {
    few_fn *few[FEW + 1];
    void (*unpack)(struct walk *walk, int n_groups, struct scratch *s);
    void (*tile[TILE + 1])(const struct scratch *s, int n_groups, const struct act_layout *a,
                           const uint8_t *rec, size_t act_stride, int32_t g0, __m256 *acc);
};
#define DEFINE_TILE(name, tile, dtype, n)                                                                    \
    NOINLINE void tile_##name##_##n(const struct scratch *s, int n_groups, const struct act_layout *a,       \
                                    const uint8_t *rec, size_t act_stride, int32_t g0, __m256 *acc)          \
    {                                                                                                        \
        tile(dtype, s, n_groups, a, rec, act_stride, g0, n, acc);                                            \
    }
#define DEFINE_STEPS(name, few, tile, dtype)                                                                 \
    DEFINE_FEW(name, few, dtype, 1)                                                                          \
    DEFINE_FEW(name, few, dtype, 2)                                                                          \
    DEFINE_FEW(name, few, dtype, 3)                                                                          \
    DEFINE_FEW(name, few, dtype, 4)                                                                          \
    NOINLINE void unpack_##name(struct walk *walk, int n_groups, struct scratch *s)                          \
    {                                                                                                        \
        unpack(dtype, walk, n_groups, s);                                                                    \
    }                                                                                                        \
    DEFINE_TILE(name, tile, dtype, 1)                                                                        \
    DEFINE_TILE(name, tile, dtype, 2)                                                                        \
    DEFINE_TILE(name, tile, dtype, 3)                                                                        \
    DEFINE_TILE(name, tile, dtype, 4)                                                                        \
    DEFINE_TILE(name, tile, dtype, 5)                                                                        \
    DEFINE_TILE(name, tile, dtype, 6)
EACH_INT(DEFINE_STEPS)
#define STEPS(name, few, tile, dtype)                                                                        \
    [dtype] = {{NULL, few_##name##_1, few_##name##_2, few_##name##_3, few_##name##_4},                       \
               unpack_##name,                                                                                \
               {NULL, tile_##name##_1, tile_##name##_2, tile_##name##_3, tile_##name##_4, tile_##name##_5,   \
                tile_##name##_6}},
static const struct steps all_steps[DT_COUNT] = {EACH_INT(STEPS)};

static void block_int(const struct wmat *w, const struct steps *steps, const struct act_layout *a,
                      const uint8_t *act, size_t act_stride, int32_t n_tokens, int32_t p, float *y,
                      size_t ldy)
{
    const uint8_t *panel = wmat_panel(w, p);
    struct walk walk = walk_begin(w, w->dtype, panel, 0);
    struct scratch s;
    __m256 part[TREE_PARTS * BLOCK_TOKENS], acc[BLOCK_TOKENS];
    for (int c = 0; c < w->cuts.n; c++) {
        int32_t end = cuts_group(&w->cuts, c + 1);
        for (int32_t i = 0; i < n_tokens; i++)
            acc[i] = _mm256_setzero_ps();
        for (int32_t g = cuts_group(&w->cuts, c); g < end; g += STRETCH) {
            int n_groups = MIN(STRETCH, end - g);
            steps->unpack(&walk, n_groups, &s);
            for (int32_t i = 0, n; i < n_tokens; i += n) {
                n = tile_tokens(n_tokens - i, TILE);
                steps->tile[n](&s, n_groups, a, act + (size_t)i * act_stride, act_stride, g, acc + i);
            }
        }
        for (int32_t i = 0; i < n_tokens; i++) {
            __m256 leaf = acc[i];
            if (w->dtype == DT_I8C) {
                __m256 ascale =
                    _mm256_set1_ps(load_float(act + (size_t)i * act_stride + a->scale_at + 4 * c));
                leaf = _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_castps_si256(leaf)), ascale),
                                     _mm256_loadu_ps((const float *)(const void *)(panel + 32 * c)));
            }
            tree8_push(part + i, BLOCK_TOKENS, c, leaf);
        }
    }
    for (int32_t i = 0; i < n_tokens; i++)
        store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)p,
                   tree8_join(part + i, BLOCK_TOKENS, w->cuts.n), w->rows - WMAT_PANEL * p);
}

static void mul_int(const struct wmat *w, const void *act, size_t act_stride, int32_t n_tokens,
                    int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    const struct steps *steps = &all_steps[w->dtype == DT_I4G ? DT_Q4_0 : w->dtype]; /* the same panels */
    if (n_tokens >= 1 && n_tokens <= FEW) {
        steps->few[n_tokens](w, act, act_stride, panel0, panel1, y, ldy);
        return;
    }
    struct act_layout a;
    act_layout_init(&a, act_kind_of(w->dtype), w->cols, &w->cuts);
    int32_t block = block_tokens(HALF_L2, a.row_bytes, TILE);
    for (int32_t i = 0; i < n_tokens; i += block)
        for (int32_t p = panel0; p < panel1; p++)
            block_int(w, steps, &a, (const uint8_t *)act + (size_t)i * act_stride, act_stride,
                      MIN(block, n_tokens - i), p, y + (size_t)i * ldy, ldy);
}

/* ---- few tokens: float8 ---- */

/* As few_float_panels. A chunk is a sum over its scale blocks. */
static ALWAYS_INLINE void few_f8_panels(const struct wmat *w, const uint8_t *act, size_t act_stride,
                                        int n_tokens, int32_t p, int n, float *y, size_t ldy)
{
    const uint8_t *panel = wmat_panel(w, p);
    size_t step = w->panel_bytes;
    __m256 part[TREE_PARTS * FEW_CHAINS];
    for (int c = 0; c < w->cuts.n; c++) {
        __m256 sum[FEW_CHAINS];
        for (int i = 0; i < n * n_tokens; i++)
            sum[i] = _mm256_setzero_ps();
        for (int32_t k = w->cuts.at[c], end = w->cuts.at[c + 1]; k < end;) {
            int32_t b = f8_block(w, k), stop = scale_end(w, k, end);
            const uint8_t *codes = panel + f8_column_at(b, k), *x = act + 4 * (size_t)k;
            __m256 acc[FEW_CHAINS];
            UNROLL
            for (int i = 0; i < n * n_tokens; i++)
                acc[i] = _mm256_setzero_ps();
            for (; k + 2 <= stop; k += 2, codes += 16, x += 8) {
                UNROLL
                for (int h = 0; h < n; h++) {
                    __m256 wk[2];
                    f8_two_columns(codes + (size_t)h * step, wk);
                    UNROLL
                    for (int i = 0; i < n_tokens; i++) {
                        __m256 *a = &acc[h * n_tokens + i];
                        const uint8_t *xi = x + (size_t)i * act_stride;
                        *a = _mm256_fmadd_ps(wk[0], _mm256_set1_ps(load_float(xi)), *a);
                        *a = _mm256_fmadd_ps(wk[1], _mm256_set1_ps(load_float(xi + 4)), *a);
                    }
                }
            }
            UNROLL
            for (int h = 0; h < n; h++) {
                __m256 wk = _mm256_setzero_ps(), scale = f8_scales(w, panel + (size_t)h * step, b);
                if (k < stop)
                    wk = f8_column(codes + (size_t)h * step);
                UNROLL
                for (int i = 0; i < n_tokens; i++) {
                    int j = h * n_tokens + i;
                    if (k < stop)
                        acc[j] = _mm256_fmadd_ps(wk, _mm256_set1_ps(load_float(x + (size_t)i * act_stride)),
                                                 acc[j]);
                    sum[j] = _mm256_fmadd_ps(acc[j], scale, sum[j]);
                }
            }
            k = stop;
        }
        for (int i = 0; i < n * n_tokens; i++)
            tree8_push(part + i, FEW_CHAINS, c, sum[i]);
    }
    for (int h = 0; h < n; h++)
        for (int i = 0; i < n_tokens; i++)
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)(p + h),
                       tree8_join(part + h * n_tokens + i, FEW_CHAINS, w->cuts.n),
                       w->rows - WMAT_PANEL * (p + h));
}
static ALWAYS_INLINE void few_f8(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                 int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    (void)t;
    int32_t p = panel0;
    for (; p + 8 <= panel1 && n_tokens == 1; p += 8)
        few_f8_panels(w, act, act_stride, n_tokens, p, 8, y, ldy);
    for (; p + 4 <= panel1; p += 4)
        few_f8_panels(w, act, act_stride, n_tokens, p, 4, y, ldy);
    for (; p < panel1; p++)
        few_f8_panels(w, act, act_stride, n_tokens, p, 1, y, ldy);
}

/* ---- blocks of tokens: floats ---- */

#define FLOAT_STRETCH 128 /* columns */

struct float_scratch {
    __m256 column[FLOAT_STRETCH][2];
};

/* Two panels, n tokens: 2 * n chains of fmas. */
static ALWAYS_INLINE void tile_float(const struct float_scratch *s, int n_cols, const uint8_t *x,
                                     size_t act_stride, int n, __m256 (*acc_at)[2])
{
    __m256 acc[TILE][2];
    UNROLL
    for (int i = 0; i < n; i++) {
        acc[i][0] = acc_at[i][0];
        acc[i][1] = acc_at[i][1];
    }
    for (int k = 0; k < n_cols; k++, x += 4) {
        __m256 w0 = s->column[k][0], w1 = s->column[k][1];
        UNROLL
        for (int i = 0; i < n; i++) {
            __m256 xk = _mm256_set1_ps(load_float(x + (size_t)i * act_stride));
            acc[i][0] = _mm256_fmadd_ps(w0, xk, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(w1, xk, acc[i][1]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        acc_at[i][0] = acc[i][0];
        acc_at[i][1] = acc[i][1];
    }
}

#define DEFINE_TILE_FLOAT(n)                                                                                 \
    NOINLINE void tile_float_##n(const struct float_scratch *s, int n_cols, const uint8_t *x,                \
                                 size_t act_stride, __m256(*acc)[2])                                         \
    {                                                                                                        \
        tile_float(s, n_cols, x, act_stride, n, acc);                                                        \
    }
DEFINE_TILE_FLOAT(1)
DEFINE_TILE_FLOAT(2)
DEFINE_TILE_FLOAT(3)
DEFINE_TILE_FLOAT(4)
DEFINE_TILE_FLOAT(5)
DEFINE_TILE_FLOAT(6)
static void (*const tiles_float[TILE + 1])(const struct float_scratch *s, int n_cols, const uint8_t *x,
                                           size_t act_stride, __m256 (*acc)[2]) = {
    NULL, tile_float_1, tile_float_2, tile_float_3, tile_float_4, tile_float_5, tile_float_6};

/* Columns [k, k + n) of two panels as floats. */
static ALWAYS_INLINE void unpack_float(enum dtype t, const uint8_t *panel0, const uint8_t *panel1, int32_t k,
                                       int n, struct float_scratch *s)
{
    for (int i = 0; i < n; i++) {
        prefetch_columns(t, panel0, (size_t)(k + i));
        prefetch_columns(t, panel1, (size_t)(k + i));
        s->column[i][0] = float_column(t, panel0, (size_t)(k + i));
        s->column[i][1] = float_column(t, panel1, (size_t)(k + i));
    }
}

/* The same of float8, columns that share a scale block. */
static ALWAYS_INLINE void unpack_f8(const uint8_t *codes0, const uint8_t *codes1, int n,
                                    struct float_scratch *s)
{
    int i = 0;
    for (; i + 2 <= n; i += 2) {
        __m256 a[2], b[2];
        prefetch_columns(DT_F8_E4M3, codes0, (size_t)i);
        prefetch_columns(DT_F8_E4M3, codes1, (size_t)i);
        f8_two_columns(codes0 + 8 * i, a);
        f8_two_columns(codes1 + 8 * i, b);
        s->column[i][0] = a[0];
        s->column[i][1] = b[0];
        s->column[i + 1][0] = a[1];
        s->column[i + 1][1] = b[1];
    }
    if (i < n) {
        s->column[i][0] = f8_column(codes0 + 8 * i);
        s->column[i][1] = f8_column(codes1 + 8 * i);
    }
}

/* At the end of a scale block: adds the scaled sums to those of the chunk. */
static void fold_f8(__m256 scale0, __m256 scale1, int32_t n_tokens, __m256 (*acc)[2], __m256 (*sum)[2])
{
    for (int32_t i = 0; i < n_tokens; i++) {
        sum[i][0] = _mm256_fmadd_ps(acc[i][0], scale0, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(acc[i][1], scale1, sum[i][1]);
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    }
}

/* Panels p and p + 1; the latter is computed in vain, from p again, where it does not exist. */
static void block_float(const struct wmat *w, const uint8_t *act, size_t act_stride, int32_t n_tokens,
                        int32_t p, int n_panels, float *y, size_t ldy)
{
    const uint8_t *panel0 = wmat_panel(w, p), *panel1 = wmat_panel(w, p + n_panels - 1);
    struct float_scratch s;
    __m256 part[TREE_PARTS * BLOCK_TOKENS * 2], acc[BLOCK_TOKENS][2], scaled[BLOCK_TOKENS][2];
    const int is_f8 = w->dtype == DT_F8_E4M3;
    __m256(*sum)[2] = is_f8 ? scaled : acc;
    for (int c = 0; c < w->cuts.n; c++) {
        int32_t end = w->cuts.at[c + 1];
        for (int32_t i = 0; i < n_tokens; i++)
            acc[i][0] = acc[i][1] = sum[i][0] = sum[i][1] = _mm256_setzero_ps();
        for (int32_t k = w->cuts.at[c], n_cols; k < end; k += n_cols) {
            int32_t stop = scale_end(w, k, end), b = is_f8 ? f8_block(w, k) : 0;
            n_cols = MIN(FLOAT_STRETCH, stop - k);
            if (is_f8)
                unpack_f8(panel0 + f8_column_at(b, k), panel1 + f8_column_at(b, k), n_cols, &s);
            else if (w->dtype == DT_F32)
                unpack_float(DT_F32, panel0, panel1, k, n_cols, &s);
            else if (w->dtype == DT_F16)
                unpack_float(DT_F16, panel0, panel1, k, n_cols, &s);
            else
                unpack_float(DT_BF16, panel0, panel1, k, n_cols, &s);
            for (int32_t i = 0, n; i < n_tokens; i += n) {
                n = tile_tokens(n_tokens - i, TILE);
                tiles_float[n](&s, n_cols, act + (size_t)i * act_stride + 4 * (size_t)k, act_stride, acc + i);
            }
            if (is_f8 && k + n_cols == stop)
                fold_f8(f8_scales(w, panel0, b), f8_scales(w, panel1, b), n_tokens, acc, sum);
        }
        for (int32_t i = 0; i < n_tokens; i++) {
            tree8_push(part + 2 * i, 2 * BLOCK_TOKENS, c, sum[i][0]);
            tree8_push(part + 2 * i + 1, 2 * BLOCK_TOKENS, c, sum[i][1]);
        }
    }
    for (int32_t i = 0; i < n_tokens; i++)
        for (int h = 0; h < n_panels; h++)
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)(p + h),
                       tree8_join(part + 2 * i + h, 2 * BLOCK_TOKENS, w->cuts.n),
                       w->rows - WMAT_PANEL * (p + h));
}

static void mul_float(const struct wmat *w, const void *act, size_t act_stride, int32_t n_tokens,
                      int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    if (n_tokens >= 1 && n_tokens <= FEW_FLOAT) {
        few_floats[w->dtype][n_tokens](w, act, act_stride, panel0, panel1, y, ldy);
        return;
    }
    int32_t block = block_tokens(HALF_L2, 4 * (size_t)w->cols, TILE);
    for (int32_t i = 0; i < n_tokens; i += block)
        for (int32_t p = panel0; p < panel1; p += 2)
            block_float(w, (const uint8_t *)act + (size_t)i * act_stride, act_stride,
                        MIN(block, n_tokens - i), p, MIN(2, panel1 - p), y + (size_t)i * ldy, ldy);
}

/* ---- activations ---- */

/* As quantize_amax, but of 32 floats, by lanes; lanes that met something not finite are set in *bad. */
static ALWAYS_INLINE __m256 amax_32(__m256 amax, const float *x, __m256 *bad)
{
    UNROLL
    for (int i = 0; i < 32; i += 8) {
        __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + i));
        *bad = _mm256_or_ps(*bad, _mm256_cmp_ps(a, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
        amax = _mm256_max_ps(amax, a);
    }
    return amax;
}
static ALWAYS_INLINE float amax_join(__m256 amax, __m256 bad)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(amax), _mm256_extractf128_ps(amax, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm256_movemask_ps(bad) ? NAN : _mm_cvtss_f32(m);
}
/* Codes of 32 floats. Returns the sums of the first and the last 16, as int16[2]. */
static ALWAYS_INLINE uint32_t codes_32(const float *x, float inverse, uint8_t *code)
{
    if (inverse == 0) {
        memset(code, 0, 32);
        return 0;
    }
    __m256 f = _mm256_set1_ps(inverse);
    __m256i q[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), f));
    __m256i low = _mm256_packs_epi32(q[0], q[1]),
            high = _mm256_packs_epi32(q[2], q[3]); /* int16: columns 0..15, 16..31 */
    __m256i bytes = _mm256_packs_epi16(low, high); /* dwords: columns 0, 8, 16, 24, 4, 12, 20, 28 and on */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)code, bytes);
    __m256i sums =
        _mm256_hadd_epi32(widen(low), widen(high)); /* dwords: low, low, high, high in both halves */
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    s = _mm_hadd_epi32(s, s);
    return (uint32_t)_mm_cvtsi128_si32(_mm_packs_epi32(s, s));
}
/* The floats of group g: x itself, or the last ones with zeros behind them. */
static ALWAYS_INLINE const float *group_floats(const struct act_layout *a, const float *x, int32_t g,
                                               float tmp[32])
{
    int32_t n = a->cols - 32 * g;
    if (n >= 32)
        return x + 32 * g;
    memset(tmp, 0, 32 * sizeof(float));
    memcpy(tmp, x + 32 * g, sizeof(float) * (size_t)n);
    return tmp;
}

static void quantize(const struct act_layout *a, const float *x, void *record_at)
{
    uint8_t *record = record_at;
    float tmp[32], scale, inverse;
    if (a->kind == ACT_F32) {
        memcpy(record, x, sizeof(float) * (size_t)a->cols);
        return;
    }
    int32_t groups = cuts_group(&a->cuts, a->cuts.n);
    size_t isum_end = a->isum_at + 4 * (size_t)a->n_scales, code_end = a->code_at + 32 * (size_t)groups;
    memset(record + isum_end, 0, a->code_at - isum_end);
    memset(record + code_end, 0, a->row_bytes - code_end);
    for (int32_t g = 0; g < groups && a->kind == ACT_Q32; g++) {
        const float *from = group_floats(a, x, g, tmp);
        __m256 bad = _mm256_setzero_ps(), amax = amax_32(bad, from, &bad);
        quantize_scale(amax_join(amax, bad), &scale, &inverse);
        uint32_t isum = codes_32(from, inverse, record + a->code_at + 32 * g);
        float asum = scale * (float)((int16_t)isum + (int16_t)(isum >> 16));
        memcpy(record + a->scale_at + 4 * g, &scale, 4);
        memcpy(record + a->sum_at + 4 * g, &asum, 4);
        memcpy(record + a->isum_at + 4 * g, &isum, 4);
    }
    for (int c = 0; c < a->cuts.n && a->kind == ACT_QC; c++) {
        int32_t begin = cuts_group(&a->cuts, c), end = cuts_group(&a->cuts, c + 1), sum = 0;
        __m256 bad = _mm256_setzero_ps(), amax = bad;
        for (int32_t g = begin; g < end; g++)
            amax = amax_32(amax, group_floats(a, x, g, tmp), &bad);
        quantize_scale(amax_join(amax, bad), &scale, &inverse);
        for (int32_t g = begin; g < end; g++) {
            uint32_t isum = codes_32(group_floats(a, x, g, tmp), inverse, record + a->code_at + 32 * g);
            sum += (int16_t)isum + (int16_t)(isum >> 16);
        }
        memcpy(record + a->scale_at + 4 * c, &scale, 4);
        memcpy(record + a->isum_at + 4 * c, &sum, 4);
    }
}

void matmul_init_avx2(struct matmul_kernels *k)
{
    k->quantize = quantize;
    for (int t = 0; t < DT_COUNT; t++)
        if (k->mul[t])
            k->mul[t] = act_kind_of((enum dtype)t) == ACT_F32 ? mul_float : mul_int;
}
