/* matmul_x86.h: what the x86 levels of the matmul family share: reading panels, the tree in registers, few
 * tokens.
 *
 * Two ways through a matrix. With few tokens (decoding) memory is the limit: codes go from the panel to the
 * dot product without a stop, in one stream. With more, arithmetic is: a *stretch* of columns is unpacked
 * once into a scratch that stays in the first-level cache, then tiles of tokens pass over it, their
 * accumulators in registers; the tokens are taken in blocks whose activations fit the second-level cache.
 *
 * Everything here is `inline` in the strict sense: dtype and counts are constants where it is used, so that
 * the branches on them vanish. A level defines, before it includes this file:
 *
 *     FEW               up to how many tokens the direct way pays
 *     dots_group()      the exact sums of one group of 32 columns for 8 rows and one token, of the contract's
 *                       codes: isum[0], for q6_k isum[0] and isum[1] of its halves. q: 32 activations; sums:
 *                       theirs by 16, int16[2]
 *     dots_add()        isum + sum of (code + DOTS_ADD_OFFSET) * q over 32 columns of 8-bit codes
 */
#ifndef YOKE_KERNELS_X86_MATMUL_X86_H
#define YOKE_KERNELS_X86_MATMUL_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/matmul.h"
#include "kernels/matmul_layout.h"
#include "kernels/x86/vec.h"

/* Compilers know that integer sums may be reordered, and GCC does it: it keeps all terms for a balanced sum,
 * in memory. This makes a partial sum opaque, so that it stays one register to which terms are added. */
#define IN_REGISTER(v) __asm__("" : "+x"(v))

static ALWAYS_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
static ALWAYS_INLINE int32_t load32(const void *p)
{
    int32_t i;
    memcpy(&i, p, 4);
    return i;
}
static ALWAYS_INLINE float load_float(const void *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}

/* int16[2] in a dword */
static ALWAYS_INLINE int32_t two_int16(int low, int high)
{
    return (int32_t)((uint32_t)high << 16 | ((uint32_t)low & 0xffff));
}

/* ---- one group of a panel ---- */

/* The 8 vectors of codes, as stored. */
static ALWAYS_INLINE void group_codes(enum dtype t, const uint8_t *group, __m256i code[8])
{
    const struct panel_format *f = &panel_formats[t];
    if (f->bits == 8) {
        UNROLL
        for (int v = 0; v < 8; v++)
            code[v] = load256(group + 32 * v);
        return;
    }
    const __m256i low = _mm256_set1_epi8(15);
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i line = load256(group + 32 * j);
        code[j] = _mm256_and_si256(line, low);
        code[j + 4] = _mm256_and_si256(_mm256_srli_epi16(line, 4), low);
    }
    if (f->bits == 5) {
        const __m256i bit = _mm256_set1_epi8(16);
        __m256i plane = load256(group + f->high_at);
        UNROLL
        for (int v = 0; v < 8; v++) {
            __m256i high = v < 4 ? _mm256_slli_epi16(plane, 4 - v) : _mm256_srli_epi16(plane, v - 4);
            code[v] = _mm256_or_si256(code[v], _mm256_and_si256(high, bit));
        }
    } else if (f->bits == 6) {
        const __m256i bits = _mm256_set1_epi8(48);
        UNROLL
        for (int p = 0; p < 2; p++) {
            __m256i plane = load256(group + f->high_at + 32 * p);
            __m256i high[4] = {_mm256_slli_epi16(plane, 4), _mm256_slli_epi16(plane, 2), plane,
                               _mm256_srli_epi16(plane, 2)};
            UNROLL
            for (int v = 0; v < 4; v++)
                code[4 * p + v] = _mm256_or_si256(code[4 * p + v], _mm256_and_si256(high[v], bits));
        }
    }
}

static ALWAYS_INLINE __m256 eight_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static ALWAYS_INLINE __m256 eight_bytes(const uint8_t *p, int is_signed)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}
/* The scale of columns 0..15 or 16..31 (half 0, 1) and the min. block: the head of the K-quant block. */
static ALWAYS_INLINE __m256 group_scale(enum dtype t, const uint8_t *group, const uint8_t *block, int half)
{
    const struct panel_format *f = &panel_formats[t];
    if (is_k_quant(t))
        return _mm256_mul_ps(eight_halves(block), eight_bytes(group + f->scale_at + 8 * half, t == DT_Q6_K));
    return eight_halves(group + f->scale_at);
}
static ALWAYS_INLINE __m256 group_min(enum dtype t, const uint8_t *group, const uint8_t *block)
{
    const struct panel_format *f = &panel_formats[t];
    if (is_k_quant(t)) {
        __m256 m = _mm256_mul_ps(eight_halves(block + 16), eight_bytes(group + f->min_at, 0));
        return _mm256_xor_ps(m, _mm256_set1_ps(-0.0f));
    }
    return eight_halves(group + f->min_at);
}

/* Walks through the groups of a panel in order: the same as panel_group_at, without its divisions. */
struct walk {
    const uint8_t *group, *block;
    int left; /* groups of this block still to come; legacy types never get to 0 */
};
static ALWAYS_INLINE struct walk walk_begin(const struct wmat *w, enum dtype t, const uint8_t *panel,
                                            int32_t g)
{
    struct walk k = {.group = panel + panel_group_at(t, w->cuts.n, w->skip, g), .left = INT32_MAX};
    if (is_k_quant(t)) {
        k.block = panel + panel_block_at(t, w->skip, g);
        k.left = 8 - (g + w->skip / 32) % 8;
    }
    return k;
}
static ALWAYS_INLINE void walk_next(struct walk *k, enum dtype t)
{
    k->group += panel_formats[t].group_bytes;
    if (is_k_quant(t) && --k->left == 0) {
        k->block = k->group;
        k->group += panel_formats[t].head_bytes;
        k->left = 8;
    }
}

/* ---- the tree over chunks, 8 rows (vf: or 16) at a time ---- */

/* part[i * stride] is the i-th open subtree. Which subtrees are open follows from the number of leaves
 * pushed: they are its binary digits (kernels/sum.h). TREE_PARTS suffice: 8 leaves are one subtree at once.
 */
#define TREE_PARTS 3
static ALWAYS_INLINE int bits_set(int n)
{
    return (n & 1) + (n >> 1 & 1) + (n >> 2 & 1) + (n >> 3 & 1);
}
#define DEFINE_TREE(name, vf)                                                                                \
    static ALWAYS_INLINE void name##_push(vf *part, size_t stride, int chunk, vf leaf)                       \
    {                                                                                                        \
        size_t top = (size_t)bits_set(chunk);                                                                \
        for (int m = chunk; m & 1; m >>= 1)                                                                  \
            leaf = part[--top * stride] + leaf;                                                              \
        part[top * stride] = leaf;                                                                           \
    }                                                                                                        \
    static ALWAYS_INLINE vf name##_join(const vf *part, size_t stride, int n_chunks)                         \
    {                                                                                                        \
        size_t top = (size_t)bits_set(n_chunks) - 1;                                                         \
        vf sum = part[top * stride];                                                                         \
        while (top > 0)                                                                                      \
            sum = part[--top * stride] + sum;                                                                \
        return sum;                                                                                          \
    }
DEFINE_TREE(tree8, __m256)

/* ---- stores ---- */

static ALWAYS_INLINE void store_rows(float *y, __m256 v, int32_t rows)
{
    if (rows >= WMAT_PANEL) {
        _mm256_storeu_ps(y, v);
    } else {
        float tmp[WMAT_PANEL];
        _mm256_storeu_ps(tmp, v);
        memcpy(y, tmp, sizeof(float) * (size_t)rows);
    }
}

/* ---- few tokens ---- */

#define FEW_CHAINS 12 /* floats: sums in flight */

/* The memory system follows a stream by itself, but starts anew at each 4 KiB page; this bridges the gap. */
static ALWAYS_INLINE void prefetch_group(enum dtype t, const uint8_t *group)
{
    UNROLL
    for (int i = 0; i < panel_formats[t].group_bytes; i += 64)
        _mm_prefetch((const char *)group + 2048 + i, _MM_HINT_T0);
}

static ALWAYS_INLINE void few_q32(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                  int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    struct act_layout a;
    act_layout_init(&a, ACT_Q32, w->cols, &w->cuts);
    for (int32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = wmat_panel(w, p);
        __m256 part[TREE_PARTS * FEW];
        struct walk k = walk_begin(w, t, panel, 0);
        for (int c = 0; c < w->cuts.n; c++) {
            __m256 acc[FEW] = {_mm256_setzero_ps()};
            for (int32_t g = cuts_group(&w->cuts, c); g < cuts_group(&w->cuts, c + 1); g++) {
                __m256i code[8];
                prefetch_group(t, k.group);
                group_codes(t, k.group, code);
                __m256 scale = group_scale(t, k.group, k.block, 0), scale1 = scale, min = scale;
                if (t == DT_Q6_K)
                    scale1 = group_scale(t, k.group, k.block, 1);
                if (panel_formats[t].has_min)
                    min = group_min(t, k.group, k.block);
                UNROLL
                for (int i = 0; i < n_tokens; i++) {
                    const uint8_t *record = act + (size_t)i * act_stride;
                    __m256 ascale = _mm256_set1_ps(load_float(record + a.scale_at + 4 * g));
                    __m256i isum[2];
                    dots_group(t, code, record + a.code_at + 32 * g, record + a.isum_at + 4 * g, isum);
                    acc[i] =
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[0]), _mm256_mul_ps(scale, ascale), acc[i]);
                    if (t == DT_Q6_K)
                        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[1]), _mm256_mul_ps(scale1, ascale),
                                                 acc[i]);
                    if (panel_formats[t].has_min)
                        acc[i] = _mm256_fmadd_ps(min, _mm256_set1_ps(load_float(record + a.sum_at + 4 * g)),
                                                 acc[i]);
                }
                walk_next(&k, t);
            }
            UNROLL
            for (int i = 0; i < n_tokens; i++)
                tree8_push(part + i, FEW, c, acc[i]);
        }
        for (int i = 0; i < n_tokens; i++)
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)p, tree8_join(part + i, FEW, w->cuts.n),
                       w->rows - WMAT_PANEL * p);
    }
}

static ALWAYS_INLINE void few_qc(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                 int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    (void)t;
    struct act_layout a;
    act_layout_init(&a, ACT_QC, w->cols, &w->cuts);
    for (int32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = wmat_panel(w, p), *group = panel + panel_head(DT_I8C, w->cuts.n);
        __m256 part[TREE_PARTS * FEW];
        for (int c = 0; c < w->cuts.n; c++) {
            __m256i isum[FEW] = {_mm256_setzero_si256()};
            for (int32_t g = cuts_group(&w->cuts, c); g < cuts_group(&w->cuts, c + 1); g++) {
                __m256i code[8];
                prefetch_group(DT_I8C, group);
                group_codes(DT_I8C, group, code);
                UNROLL
                for (int i = 0; i < n_tokens; i++)
                    isum[i] = dots_add(isum[i], code, act + (size_t)i * act_stride + a.code_at + 32 * g);
                group += panel_formats[DT_I8C].group_bytes;
            }
            __m256 wscale = _mm256_loadu_ps((const float *)(const void *)(panel + 32 * c));
            UNROLL
            for (int i = 0; i < n_tokens; i++) {
                const uint8_t *record = act + (size_t)i * act_stride;
                __m256i sum = _mm256_add_epi32(
                    isum[i], _mm256_set1_epi32(-DOTS_ADD_OFFSET * load32(record + a.isum_at + 4 * c)));
                __m256 ascale = _mm256_set1_ps(load_float(record + a.scale_at + 4 * c));
                tree8_push(part + i, FEW, c,
                           _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), ascale), wscale));
            }
        }
        for (int i = 0; i < n_tokens; i++)
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)p, tree8_join(part + i, FEW, w->cuts.n),
                       w->rows - WMAT_PANEL * p);
    }
}

/* ---- floats ---- */

/* Column k of a panel. */
static ALWAYS_INLINE __m256 float_column(enum dtype t, const uint8_t *panel, size_t k)
{
    if (t == DT_F32)
        return _mm256_loadu_ps((const float *)(const void *)(panel + 32 * k));
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(panel + 16 * k));
    if (t == DT_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* As prefetch_group, for columns that are about to be unpacked. */
static ALWAYS_INLINE void prefetch_columns(enum dtype t, const uint8_t *panel, size_t k)
{
    _mm_prefetch((const char *)panel + (t == DT_F32 ? 32 : 16) * k + 4096, _MM_HINT_T0);
}

/* Float8: a code's bits, spread out, are an f16 of 2^-8 times the value, subnormals included. NaN would be
 * 480, but where there is one the scale is NaN (matmul_layout.h). */
static ALWAYS_INLINE __m256 f8_from_halves(__m128i h)
{
    return _mm256_mul_ps(_mm256_cvtph_ps(h), _mm256_set1_ps(0x1p8f));
}
static ALWAYS_INLINE __m256 f8_column(const uint8_t *at)
{
    __m128i h = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return f8_from_halves(_mm_and_si128(_mm_slli_epi16(h, 7), _mm_set1_epi16((short)0xbfff)));
}
static ALWAYS_INLINE void f8_two_columns(const uint8_t *at, __m256 column[2])
{
    __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
    h = _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16((short)0xbfff));
    column[0] = f8_from_halves(_mm256_castsi256_si128(h));
    column[1] = f8_from_halves(_mm256_extracti128_si256(h, 1));
}
static ALWAYS_INLINE __m256 f8_scales(const struct wmat *w, const uint8_t *panel, int32_t b)
{
    return _mm256_loadu_ps((const float *)(const void *)(panel + f8_scales_at(w, b)));
}
/* Where the columns end that share column k's scale and lie before `end`, its chunk's end. */
static ALWAYS_INLINE int32_t scale_end(const struct wmat *w, int32_t k, int32_t end)
{
    return w->dtype == DT_F8_E4M3 ? MIN(end, f8_block_end(w, f8_block(w, k))) : end;
}

/* n_tokens tokens, n panels: each sum is one chain of dependent fmas, and n * n_tokens of them take turns. */
static ALWAYS_INLINE void few_float_panels(const struct wmat *w, enum dtype t, const uint8_t *act,
                                           size_t act_stride, int n_tokens, int32_t p, int n, float *y,
                                           size_t ldy)
{
    const uint8_t *panel = wmat_panel(w, p);
    size_t step = w->panel_bytes;
    __m256 part[TREE_PARTS * FEW_CHAINS];
    for (int c = 0; c < w->cuts.n; c++) {
        __m256 acc[FEW_CHAINS];
        UNROLL
        for (int h = 0; h < n; h++)
            UNROLL
        for (int i = 0; i < n_tokens; i++)
            acc[h * n_tokens + i] = _mm256_setzero_ps();
        for (size_t k = (size_t)w->cuts.at[c]; k < (size_t)w->cuts.at[c + 1]; k++) {
            __m256 xk[3];
            UNROLL
            for (int i = 0; i < n_tokens; i++)
                xk[i] = _mm256_set1_ps(load_float(act + (size_t)i * act_stride + 4 * k));
            UNROLL
            for (int h = 0; h < n; h++) {
                __m256 wk = float_column(t, panel + (size_t)h * step, k);
                UNROLL
                for (int i = 0; i < n_tokens; i++)
                    acc[h * n_tokens + i] = _mm256_fmadd_ps(wk, xk[i], acc[h * n_tokens + i]);
            }
        }
        for (int i = 0; i < n * n_tokens; i++)
            tree8_push(part + i, FEW_CHAINS, c, acc[i]);
    }
    for (int h = 0; h < n; h++)
        for (int i = 0; i < n_tokens; i++)
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)(p + h),
                       tree8_join(part + h * n_tokens + i, FEW_CHAINS, w->cuts.n),
                       w->rows - WMAT_PANEL * (p + h));
}
static ALWAYS_INLINE void few_float(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                    int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    int32_t p = panel0;
    for (; p + 8 <= panel1 && n_tokens == 1; p += 8)
        few_float_panels(w, t, act, act_stride, n_tokens, p, 8, y, ldy);
    for (; p + 4 <= panel1; p += 4)
        few_float_panels(w, t, act, act_stride, n_tokens, p, 4, y, ldy);
    for (; p < panel1; p++)
        few_float_panels(w, t, act, act_stride, n_tokens, p, 1, y, ldy);
}

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

/* ---- blocks of tokens ---- */

/* Tokens of a block: as many as keep the activations in cache_bytes, in whole tiles. */
#define BLOCK_TOKENS 48
static ALWAYS_INLINE int32_t block_tokens(size_t cache_bytes, size_t act_bytes, int tile)
{
    size_t n = cache_bytes / (act_bytes + 1) / (size_t)tile * (size_t)tile;
    return n < (size_t)tile ? tile : n > BLOCK_TOKENS ? BLOCK_TOKENS : (int32_t)n;
}
/* How many tokens the next tile takes: equal shares, since a tile of 1 costs nearly as much as a full one. */
static ALWAYS_INLINE int tile_tokens(int32_t left, int tile)
{
    int32_t tiles = (left + tile - 1) / tile;
    return (int)((left + tiles - 1) / tiles);
}

/* ---- making functions of it ----
 *
 * Each combination of type and count is a function of its own, out of line: inlined into one, their loops
 * compete for registers and lose. Tables lead to them, so that everything around is ordinary code, once.
 */
#define NOINLINE static __attribute__((noinline))
#define TILE     6 /* tokens of a tile */

typedef void few_fn(const struct wmat *w, const uint8_t *act, size_t act_stride, int32_t panel0,
                    int32_t panel1, float *y, size_t ldy);

#define DEFINE_FEW(name, few, dtype, n)                                                                      \
    NOINLINE void few_##name##_##n(const struct wmat *w, const uint8_t *act, size_t act_stride,              \
                                   int32_t panel0, int32_t panel1, float *y, size_t ldy)                     \
    {                                                                                                        \
        few(w, dtype, act, act_stride, n, panel0, panel1, y, ldy);                                           \
    }

#define FEW_FLOAT 3
#define DEFINE_FEW_FLOAT(name, few, dtype)                                                                   \
    DEFINE_FEW(name, few, dtype, 1)                                                                          \
    DEFINE_FEW(name, few, dtype, 2)                                                                          \
    DEFINE_FEW(name, few, dtype, 3)
DEFINE_FEW_FLOAT(f32, few_float, DT_F32)
DEFINE_FEW_FLOAT(f16, few_float, DT_F16)
DEFINE_FEW_FLOAT(bf16, few_float, DT_BF16)
DEFINE_FEW_FLOAT(f8, few_f8, DT_F8_E4M3)
static few_fn *const few_floats[DT_COUNT][FEW_FLOAT + 1] = {
    [DT_F32] = {NULL, few_f32_1, few_f32_2, few_f32_3},
    [DT_F16] = {NULL, few_f16_1, few_f16_2, few_f16_3},
    [DT_BF16] = {NULL, few_bf16_1, few_bf16_2, few_bf16_3},
    [DT_F8_E4M3] = {NULL, few_f8_1, few_f8_2, few_f8_3},
};

/* X(name, few, tile, dtype) for each integer type. */
#define EACH_INT(X)                                                                                          \
    X(q8_0, few_q32, tile_q32, DT_Q8_0)                                                                      \
    X(q4_0, few_q32, tile_q32, DT_Q4_0)                                                                      \
    X(q4_1, few_q32, tile_q32, DT_Q4_1)                                                                      \
    X(q5_0, few_q32, tile_q32, DT_Q5_0)                                                                      \
    X(q5_1, few_q32, tile_q32, DT_Q5_1)                                                                      \
    X(q4_k, few_q32, tile_q32, DT_Q4_K)                                                                      \
    X(q5_k, few_q32, tile_q32, DT_Q5_K)                                                                      \
    X(q6_k, few_q32, tile_q32, DT_Q6_K)                                                                      \
    X(i8c, few_qc, tile_qc, DT_I8C)

#endif
