/* The matmul family with AVX-512 F, BW, DQ, VL and VNNI.
 *
 * dpbusd multiplies unsigned by signed bytes and adds groups of four to int32 without a limit in between.
 * Codes go in unsigned, 8-bit ones with their sign bit flipped (128 more); what that adds too much is offset
 * * (sum of q), taken off at the start from the sums in the activation's record. Blocks of tokens take 4
 * panels at a time, 32 rows in two vectors, so that one broadcast of activations feeds two products; few
 * tokens go through single panels.
 */
#include "kernels/matmul.h"

#include <immintrin.h>
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#define FEW             2
#define DOTS_ADD_OFFSET 128
static ALWAYS_INLINE void dots_group(enum dtype t, const __m256i code[8], const uint8_t *q,
                                     const uint8_t *sums, __m256i isum[2]);
static ALWAYS_INLINE __m256i dots_add(__m256i isum, const __m256i code[8], const uint8_t *q);
static ALWAYS_INLINE void few_f8(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                 int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy);
#include "kernels/x86/matmul_x86.inc"

DEFINE_TREE(tree16, __m512)

/* What is added to codes where they are multiplied. */
static ALWAYS_INLINE int code_offset(enum dtype t)
{
    return panel_formats[t].bits == 8 ? 128 : panel_formats[t].offset;
}
/* As the product wants them. */
static ALWAYS_INLINE __m256i unsigned_code(enum dtype t, __m256i code)
{
    return panel_formats[t].bits == 8 ? _mm256_xor_si256(code, _mm256_set1_epi8(-128)) : code;
}

static ALWAYS_INLINE void dots_group(enum dtype t, const __m256i code[8], const uint8_t *q,
                                     const uint8_t *sums, __m256i isum[2])
{
    const int offset = code_offset(t), halves = t == DT_Q6_K ? 2 : 1;
    UNROLL
    for (int h = 0; h < halves; h++) {
        isum[h] = _mm256_setzero_si256();
        if (offset)
            isum[h] = _mm256_dpwssd_epi32(isum[h], _mm256_set1_epi32(load32(sums)),
                                          _mm256_set1_epi32(two_int16(halves == 2 && h == 1 ? 0 : -offset,
                                                                      halves == 2 && h == 0 ? 0 : -offset)));
        UNROLL
        for (int v = h * 4; v < 8 / halves + h * 4; v++)
            isum[h] =
                _mm256_dpbusd_epi32(isum[h], unsigned_code(t, code[v]), _mm256_set1_epi32(load32(q + 4 * v)));
    }
}

static ALWAYS_INLINE __m256i dots_add(__m256i isum, const __m256i code[8], const uint8_t *q)
{
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}; /* short chains */
    UNROLL
    for (int v = 0; v < 8; v++)
        sum[v % 2] = _mm256_dpbusd_epi32(sum[v % 2], unsigned_code(DT_I8C, code[v]),
                                         _mm256_set1_epi32(load32(q + 4 * v)));
    return _mm256_add_epi32(isum, _mm256_add_epi32(sum[0], sum[1]));
}

/* ---- blocks of tokens ---- */

#define HALF_L2       (512 * 1024) /* every machine of this level has 1 MiB or more */
#define STRETCH       8            /* groups unpacked at a time */
#define FLOAT_STRETCH 64           /* columns */
#define WIDE          2            /* vectors of 16 rows */

/* Vector j of 16 rows holds panels 2 * j and 2 * j + 1 of those in work. */
union wide {
    __m512i i;
    __m512 f;
    __m256i half_i[2];
    __m256 half_f[2];
};
struct scratch {
    union wide code[STRETCH][8][WIDE], scale[STRETCH][2][WIDE], min[STRETCH][WIDE];
};
struct sums {
    __m512 acc[BLOCK_TOKENS][WIDE]; /* of the chunk at hand; i8c: int32; float8: of the scale block at hand */
    __m512 scaled[BLOCK_TOKENS][WIDE]; /* float8: of the chunk's scale blocks so far */
    __m512 part[TREE_PARTS * BLOCK_TOKENS * WIDE];
};

static ALWAYS_INLINE void unpack(enum dtype t, struct walk *walk, int n_groups, int panel, struct scratch *s)
{
    const int j = panel / 2, half = panel % 2;
    struct walk k = *walk;
    for (int g = 0; g < n_groups; g++) {
        __m256i code[8];
        prefetch_group(t, k.group);
        group_codes(t, k.group, code);
        UNROLL
        for (int v = 0; v < 8; v++)
            s->code[g][v][j].half_i[half] = unsigned_code(t, code[v]);
        if (t != DT_I8C) {
            s->scale[g][0][j].half_f[half] = group_scale(t, k.group, k.block, 0);
            if (t == DT_Q6_K)
                s->scale[g][1][j].half_f[half] = group_scale(t, k.group, k.block, 1);
            if (panel_formats[t].has_min)
                s->min[g][j].half_f[half] = group_min(t, k.group, k.block);
        }
        walk_next(&k, t);
    }
    *walk = k;
}

/* acc goes on over n_groups groups for n tokens. rec: the first token's record; g0: its first group there. */
static ALWAYS_INLINE void tile_q32(enum dtype t, const struct scratch *s, int n_groups,
                                   const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                   int32_t g0, int n, int wide, __m512 (*acc_at)[WIDE])
{
    const int offset = code_offset(t), halves = t == DT_Q6_K ? 2 : 1, n_v = 8 / halves;
    __m512 acc[TILE][WIDE];
    UNROLL
    for (int i = 0; i < n; i++)
        for (int j = 0; j < wide; j++)
            acc[i][j] = acc_at[i][j];
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    for (int g = 0; g < n_groups; g++, q += 32) {
        const uint8_t *scales = rec + a->scale_at + 4 * (g0 + g), *asums = rec + a->sum_at + 4 * (g0 + g),
                      *isums = rec + a->isum_at + 4 * (g0 + g);
        UNROLL
        for (int h = 0; h < halves; h++) {
            __m512i isum[TILE][WIDE];
            const __m512i factors = _mm512_set1_epi32(
                two_int16(halves == 2 && h == 1 ? 0 : -offset, halves == 2 && h == 0 ? 0 : -offset));
            UNROLL
            for (int i = 0; i < n; i++) {
                isum[i][0] = _mm512_setzero_si512();
                if (offset)
                    isum[i][0] = _mm512_dpwssd_epi32(
                        isum[i][0], factors, _mm512_set1_epi32(load32(isums + (size_t)i * act_stride)));
                UNROLL
                for (int j = 1; j < wide; j++)
                    isum[i][j] = isum[i][0];
            }
            UNROLL
            for (int v = h * n_v; v < (h + 1) * n_v; v++) {
                UNROLL
                for (int i = 0; i < n; i++) {
                    __m512i qv = _mm512_set1_epi32(load32(q + (size_t)i * act_stride + 4 * v));
                    UNROLL
                    for (int j = 0; j < wide; j++)
                        isum[i][j] = _mm512_dpbusd_epi32(isum[i][j], s->code[g][v][j].i, qv);
                }
            }
            UNROLL
            for (int i = 0; i < n; i++) {
                __m512 ascale = _mm512_set1_ps(load_float(scales + (size_t)i * act_stride));
                __m512 asum = ascale;
                if (panel_formats[t].has_min)
                    asum = _mm512_set1_ps(load_float(asums + (size_t)i * act_stride));
                UNROLL
                for (int j = 0; j < wide; j++) {
                    acc[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[i][j]),
                                                _mm512_mul_ps(s->scale[g][h][j].f, ascale), acc[i][j]);
                    if (panel_formats[t].has_min)
                        acc[i][j] = _mm512_fmadd_ps(s->min[g][j].f, asum, acc[i][j]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        for (int j = 0; j < wide; j++)
            acc_at[i][j] = acc[i][j];
}

/* The same for i8c, where acc holds integers. */
static ALWAYS_INLINE void tile_qc(enum dtype t, const struct scratch *s, int n_groups,
                                  const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                  int32_t g0, int n, int wide, __m512 (*acc_at)[WIDE])
{
    (void)t;
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    __m512i acc[TILE][WIDE];
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int j = 0; j < wide; j++)
        acc[i][j] = _mm512_castps_si512(acc_at[i][j]);
    for (int g = 0; g < n_groups; g++, q += 32) {
        UNROLL
        for (int v = 0; v < 8; v++) {
            UNROLL
            for (int i = 0; i < n; i++) {
                __m512i qv = _mm512_set1_epi32(load32(q + (size_t)i * act_stride + 4 * v));
                UNROLL
                for (int j = 0; j < wide; j++)
                    acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], s->code[g][v][j].i, qv);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int j = 0; j < wide; j++)
        acc_at[i][j] = _mm512_castsi512_ps(acc[i][j]);
}

typedef void tile_fn(const struct scratch *s, int n_groups, const struct act_layout *a, const uint8_t *rec,
                     size_t act_stride, int32_t g0, __m512 (*acc)[WIDE]);
struct steps {
    few_fn *few[FEW + 1];
    void (*unpack)(struct walk *walk, int n_groups, int panel, struct scratch *s);
    tile_fn *tile[WIDE + 1][TILE + 1];
};
#define DEFINE_TILE(name, tile, dtype, wide, n)                                                              \
    NOINLINE void tile_##name##_##wide##_##n(const struct scratch *s, int n_groups,                          \
                                             const struct act_layout *a, const uint8_t *rec,                 \
                                             size_t act_stride, int32_t g0, __m512(*acc)[WIDE])              \
    {                                                                                                        \
        tile(dtype, s, n_groups, a, rec, act_stride, g0, n, wide, acc);                                      \
    }
#define DEFINE_TILES(name, tile, dtype, wide)                                                                \
    DEFINE_TILE(name, tile, dtype, wide, 1)                                                                  \
    DEFINE_TILE(name, tile, dtype, wide, 2)                                                                  \
    DEFINE_TILE(name, tile, dtype, wide, 3)                                                                  \
    DEFINE_TILE(name, tile, dtype, wide, 4)                                                                  \
    DEFINE_TILE(name, tile, dtype, wide, 5)                                                                  \
    DEFINE_TILE(name, tile, dtype, wide, 6)
#define DEFINE_STEPS(name, few, tile, dtype)                                                                 \
    DEFINE_FEW(name, few, dtype, 1)                                                                          \
    DEFINE_FEW(name, few, dtype, 2)                                                                          \
    NOINLINE void unpack_##name(struct walk *walk, int n_groups, int panel, struct scratch *s)               \
    {                                                                                                        \
        unpack(dtype, walk, n_groups, panel, s);                                                             \
    }                                                                                                        \
    DEFINE_TILES(name, tile, dtype, 1)                                                                       \
    DEFINE_TILES(name, tile, dtype, 2)
EACH_INT(DEFINE_STEPS)
#define TILES(name, wide)                                                                                    \
    [wide] = {NULL,                                                                                          \
              tile_##name##_##wide##_1,                                                                      \
              tile_##name##_##wide##_2,                                                                      \
              tile_##name##_##wide##_3,                                                                      \
              tile_##name##_##wide##_4,                                                                      \
              tile_##name##_##wide##_5,                                                                      \
              tile_##name##_##wide##_6}
#define STEPS(name, few, tile, dtype)                                                                        \
    [dtype] = {{NULL, few_##name##_1, few_##name##_2}, unpack_##name, {TILES(name, 1), TILES(name, 2)}},
static const struct steps all_steps[DT_COUNT] = {EACH_INT(STEPS)};

static ALWAYS_INLINE void sums_zero(struct sums *sums, int32_t n_tokens)
{
    for (int32_t i = 0; i < n_tokens; i++)
        for (int j = 0; j < WIDE; j++)
            sums->acc[i][j] = sums->scaled[i][j] = _mm512_setzero_ps();
}
static ALWAYS_INLINE void sums_push(struct sums *sums, __m512 (*leaf)[WIDE], int chunk, int32_t n_tokens,
                                    int wide)
{
    for (int32_t i = 0; i < n_tokens; i++)
        for (int j = 0; j < wide; j++)
            tree16_push(sums->part + WIDE * i + j, WIDE * BLOCK_TOKENS, chunk, leaf[i][j]);
}
static ALWAYS_INLINE void sums_store(const struct sums *sums, const struct wmat *w, int32_t n_tokens,
                                     int32_t p, int n_panels, float *y, size_t ldy)
{
    for (int32_t i = 0; i < n_tokens; i++) {
        for (int h = 0; h < n_panels; h++) {
            union wide sum = {.f =
                                  tree16_join(sums->part + WIDE * i + h / 2, WIDE * BLOCK_TOKENS, w->cuts.n)};
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)(p + h), sum.half_f[h % 2],
                       w->rows - WMAT_PANEL * (p + h));
        }
    }
}

/* i8c: from the chunk's integer sums to floats. */
static ALWAYS_INLINE void finish_qc(struct sums *sums, int c, const struct act_layout *a, const uint8_t *act,
                                    size_t act_stride, int32_t n_tokens, const uint8_t *const panel[2 * WIDE],
                                    int wide)
{
    union wide wscale[WIDE];
    for (int h = 0; h < 2 * wide; h++)
        wscale[h / 2].half_f[h % 2] = _mm256_loadu_ps((const float *)(const void *)(panel[h] + 32 * c));
    for (int32_t i = 0; i < n_tokens; i++) {
        const uint8_t *rec = act + (size_t)i * act_stride;
        __m512i excess = _mm512_set1_epi32(128 * load32(rec + a->isum_at + 4 * c));
        __m512 ascale = _mm512_set1_ps(load_float(rec + a->scale_at + 4 * c));
        for (int j = 0; j < wide; j++) {
            __m512i isum = _mm512_sub_epi32(_mm512_castps_si512(sums->acc[i][j]), excess);
            sums->acc[i][j] = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(isum), ascale), wscale[j].f);
        }
    }
}

/* n_panels panels from p on. Vectors that they do not fill repeat the last one, in vain. */
static void block_int(const struct wmat *w, const struct steps *steps, const struct act_layout *a,
                      const uint8_t *act, size_t act_stride, int32_t n_tokens, int32_t p, int n_panels,
                      float *y, size_t ldy)
{
    const int wide = n_panels > 2 ? 2 : 1;
    const uint8_t *panel[2 * WIDE];
    struct walk walk[2 * WIDE];
    struct scratch s;
    struct sums sums;
    for (int h = 0; h < 2 * wide; h++) {
        panel[h] = wmat_panel(w, p + MIN(h, n_panels - 1));
        walk[h] = walk_begin(w, w->dtype, panel[h], 0);
    }
    for (int c = 0; c < w->cuts.n; c++) {
        int32_t end = cuts_group(&w->cuts, c + 1);
        sums_zero(&sums, n_tokens);
        for (int32_t g = cuts_group(&w->cuts, c); g < end; g += STRETCH) {
            int n_groups = MIN(STRETCH, end - g);
            for (int h = 0; h < 2 * wide; h++)
                steps->unpack(&walk[h], n_groups, h, &s);
            for (int32_t i = 0, n; i < n_tokens; i += n) {
                n = tile_tokens(n_tokens - i, TILE);
                steps->tile[wide][n](&s, n_groups, a, act + (size_t)i * act_stride, act_stride, g,
                                     sums.acc + i);
            }
        }
        if (w->dtype == DT_I8C)
            finish_qc(&sums, c, a, act, act_stride, n_tokens, panel, wide);
        sums_push(&sums, sums.acc, c, n_tokens, wide);
    }
    sums_store(&sums, w, n_tokens, p, n_panels, y, ldy);
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
        for (int32_t p = panel0; p < panel1; p += 2 * WIDE)
            block_int(w, steps, &a, (const uint8_t *)act + (size_t)i * act_stride, act_stride,
                      MIN(block, n_tokens - i), p, MIN(2 * WIDE, panel1 - p), y + (size_t)i * ldy, ldy);
}

/* ---- few tokens: float8 ---- */

/* Two columns of the panels at a and b, as f8_two_columns; one of them. */
static ALWAYS_INLINE __m512i f8_spread(__m512i h)
{
    return _mm512_and_si512(_mm512_slli_epi16(h, 7), _mm512_set1_epi16((short)0xbfff));
}
static ALWAYS_INLINE __m512 f8_wide_from_halves(__m256i h)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(0x1p8f));
}
static ALWAYS_INLINE void f8_two_wide(const uint8_t *a, const uint8_t *b, __m512 column[2])
{
    __m256i codes =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)a)),
                                _mm_loadu_si128((const __m128i *)(const void *)b), 1);
    __m512i h = f8_spread(_mm512_cvtepi8_epi16(_mm256_permute4x64_epi64(codes, 0xd8)));
    column[0] = f8_wide_from_halves(_mm512_castsi512_si256(h));
    column[1] = f8_wide_from_halves(_mm512_extracti64x4_epi64(h, 1));
}
static ALWAYS_INLINE __m512 f8_one_wide(const uint8_t *a, const uint8_t *b)
{
    union wide column = {.half_f = {f8_column(a), f8_column(b)}};
    return column.f;
}
static ALWAYS_INLINE __m512 f8_wide_scales(const struct wmat *w, const uint8_t *a, const uint8_t *b,
                                           int32_t block)
{
    union wide scale = {.half_f = {f8_scales(w, a, block), f8_scales(w, b, block)}};
    return scale.f;
}

/* As few_float_panels, n_panels in `wide` vectors, of which only the last may be half full. A chunk is a sum
 * over its scale blocks. */
static ALWAYS_INLINE void few_f8_panels(const struct wmat *w, const uint8_t *act, size_t act_stride,
                                        int n_tokens, int32_t p, int n_panels, int wide, float *y, size_t ldy)
{
    const uint8_t *panel = wmat_panel(w, p);
    size_t step = n_panels > 1 ? w->panel_bytes : 0; /* half full: the same panel twice */
    __m512 part[TREE_PARTS * FEW_CHAINS];
    for (int c = 0; c < w->cuts.n; c++) {
        __m512 sum[FEW_CHAINS];
        for (int i = 0; i < wide * n_tokens; i++)
            sum[i] = _mm512_setzero_ps();
        for (int32_t k = w->cuts.at[c], end = w->cuts.at[c + 1]; k < end;) {
            int32_t b = f8_block(w, k), stop = scale_end(w, k, end);
            const uint8_t *codes = panel + f8_column_at(b, k), *x = act + 4 * (size_t)k;
            __m512 acc[FEW_CHAINS];
            UNROLL
            for (int i = 0; i < wide * n_tokens; i++)
                acc[i] = _mm512_setzero_ps();
            for (; k + 2 <= stop; k += 2, codes += 16, x += 8) {
                UNROLL
                for (int j = 0; j < wide; j++) {
                    const uint8_t *at = codes + 2 * (size_t)j * step;
                    __m512 wk[2];
                    f8_two_wide(at, at + step, wk);
                    UNROLL
                    for (int i = 0; i < n_tokens; i++) {
                        __m512 *a = &acc[j * n_tokens + i];
                        const uint8_t *xi = x + (size_t)i * act_stride;
                        *a = _mm512_fmadd_ps(wk[0], _mm512_set1_ps(load_float(xi)), *a);
                        *a = _mm512_fmadd_ps(wk[1], _mm512_set1_ps(load_float(xi + 4)), *a);
                    }
                }
            }
            UNROLL
            for (int j = 0; j < wide; j++) {
                const uint8_t *at = panel + 2 * (size_t)j * step, *last = codes + 2 * (size_t)j * step;
                __m512 wk = _mm512_setzero_ps(), scale = f8_wide_scales(w, at, at + step, b);
                if (k < stop)
                    wk = f8_one_wide(last, last + step);
                UNROLL
                for (int i = 0; i < n_tokens; i++) {
                    int a = j * n_tokens + i;
                    if (k < stop)
                        acc[a] = _mm512_fmadd_ps(wk, _mm512_set1_ps(load_float(x + (size_t)i * act_stride)),
                                                 acc[a]);
                    sum[a] = _mm512_fmadd_ps(acc[a], scale, sum[a]);
                }
            }
            k = stop;
        }
        for (int i = 0; i < wide * n_tokens; i++)
            tree16_push(part + i, FEW_CHAINS, c, sum[i]);
    }
    for (int h = 0; h < n_panels; h++)
        for (int i = 0; i < n_tokens; i++) {
            union wide v = {.f = tree16_join(part + h / 2 * n_tokens + i, FEW_CHAINS, w->cuts.n)};
            store_rows(y + (size_t)i * ldy + WMAT_PANEL * (size_t)(p + h), v.half_f[h % 2],
                       w->rows - WMAT_PANEL * (p + h));
        }
}
static ALWAYS_INLINE void few_f8(const struct wmat *w, enum dtype t, const uint8_t *act, size_t act_stride,
                                 int n_tokens, int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    (void)t;
    int32_t p = panel0;
    for (; p + 8 <= panel1; p += 8)
        few_f8_panels(w, act, act_stride, n_tokens, p, 8, 4, y, ldy);
    for (; p + 2 <= panel1; p += 2)
        few_f8_panels(w, act, act_stride, n_tokens, p, 2, 1, y, ldy);
    if (p < panel1)
        few_f8_panels(w, act, act_stride, n_tokens, p, 1, 1, y, ldy);
}

/* ---- floats ---- */

struct float_scratch {
    union wide column[FLOAT_STRETCH][WIDE];
};

static ALWAYS_INLINE void tile_float(const struct float_scratch *s, int n_cols, const uint8_t *x,
                                     size_t act_stride, int n, int wide, __m512 (*acc_at)[WIDE])
{
    __m512 acc[TILE][WIDE];
    UNROLL
    for (int i = 0; i < n; i++)
        for (int j = 0; j < wide; j++)
            acc[i][j] = acc_at[i][j];
    for (int k = 0; k < n_cols; k++, x += 4) {
        UNROLL
        for (int i = 0; i < n; i++) {
            __m512 xk = _mm512_set1_ps(load_float(x + (size_t)i * act_stride));
            UNROLL
            for (int j = 0; j < wide; j++)
                acc[i][j] = _mm512_fmadd_ps(s->column[k][j].f, xk, acc[i][j]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        for (int j = 0; j < wide; j++)
            acc_at[i][j] = acc[i][j];
}

typedef void tile_float_fn(const struct float_scratch *s, int n_cols, const uint8_t *x, size_t act_stride,
                           __m512 (*acc)[WIDE]);
#define DEFINE_TILE_FLOAT(wide, n)                                                                           \
    NOINLINE void tile_float_##wide##_##n(const struct float_scratch *s, int n_cols, const uint8_t *x,       \
                                          size_t act_stride, __m512(*acc)[WIDE])                             \
    {                                                                                                        \
        tile_float(s, n_cols, x, act_stride, n, wide, acc);                                                  \
    }
#define DEFINE_TILES_FLOAT(wide)                                                                             \
    DEFINE_TILE_FLOAT(wide, 1)                                                                               \
    DEFINE_TILE_FLOAT(wide, 2)                                                                               \
    DEFINE_TILE_FLOAT(wide, 3)                                                                               \
    DEFINE_TILE_FLOAT(wide, 4)                                                                               \
    DEFINE_TILE_FLOAT(wide, 5)                                                                               \
    DEFINE_TILE_FLOAT(wide, 6)
DEFINE_TILES_FLOAT(1)
DEFINE_TILES_FLOAT(2)
static tile_float_fn *const tiles_float[WIDE + 1][TILE + 1] = {TILES(float, 1), TILES(float, 2)};

static ALWAYS_INLINE void unpack_float(enum dtype t, const uint8_t *panel, int h, int32_t k, int n,
                                       struct float_scratch *s)
{
    for (int i = 0; i < n; i++) {
        prefetch_columns(t, panel, (size_t)(k + i));
        s->column[i][h / 2].half_f[h % 2] = float_column(t, panel, (size_t)(k + i));
    }
}

/* The same of float8, columns that share a scale block, two panels at a time. */
static ALWAYS_INLINE void unpack_f8(const uint8_t *a, const uint8_t *b, int j, int n, struct float_scratch *s)
{
    int i = 0;
    for (; i + 2 <= n; i += 2) {
        __m512 column[2];
        prefetch_columns(DT_F8_E4M3, a, (size_t)i);
        prefetch_columns(DT_F8_E4M3, b, (size_t)i);
        f8_two_wide(a + 8 * i, b + 8 * i, column);
        s->column[i][j].f = column[0];
        s->column[i + 1][j].f = column[1];
    }
    if (i < n)
        s->column[i][j].f = f8_one_wide(a + 8 * i, b + 8 * i);
}

/* Float8 at the end of scale block b: adds the scaled sums to those of the chunk. */
static ALWAYS_INLINE void fold_f8(struct sums *sums, const struct wmat *w, int32_t p, int n_panels, int32_t b,
                                  int32_t n_tokens, int wide)
{
    __m512 scale[WIDE];
    for (int j = 0; j < wide; j++)
        scale[j] = f8_wide_scales(w, wmat_panel(w, p + MIN(2 * j, n_panels - 1)),
                                  wmat_panel(w, p + MIN(2 * j + 1, n_panels - 1)), b);
    for (int32_t i = 0; i < n_tokens; i++) {
        for (int j = 0; j < wide; j++) {
            sums->scaled[i][j] = _mm512_fmadd_ps(sums->acc[i][j], scale[j], sums->scaled[i][j]);
            sums->acc[i][j] = _mm512_setzero_ps();
        }
    }
}

static void block_float(const struct wmat *w, const uint8_t *act, size_t act_stride, int32_t n_tokens,
                        int32_t p, int n_panels, float *y, size_t ldy)
{
    const int wide = n_panels > 2 ? 2 : 1, is_f8 = w->dtype == DT_F8_E4M3;
    struct float_scratch s;
    struct sums sums;
    for (int c = 0; c < w->cuts.n; c++) {
        int32_t end = w->cuts.at[c + 1];
        sums_zero(&sums, n_tokens);
        for (int32_t k = w->cuts.at[c], n_cols; k < end; k += n_cols) {
            int32_t stop = scale_end(w, k, end), b = is_f8 ? f8_block(w, k) : 0;
            n_cols = MIN(FLOAT_STRETCH, stop - k);
            for (int j = 0; j < wide && is_f8; j++)
                unpack_f8(wmat_panel(w, p + MIN(2 * j, n_panels - 1)) + f8_column_at(b, k),
                          wmat_panel(w, p + MIN(2 * j + 1, n_panels - 1)) + f8_column_at(b, k), j, n_cols,
                          &s);
            for (int h = 0; h < 2 * wide && !is_f8; h++) {
                const uint8_t *panel = wmat_panel(w, p + MIN(h, n_panels - 1));
                if (w->dtype == DT_F32)
                    unpack_float(DT_F32, panel, h, k, n_cols, &s);
                else if (w->dtype == DT_F16)
                    unpack_float(DT_F16, panel, h, k, n_cols, &s);
                else
                    unpack_float(DT_BF16, panel, h, k, n_cols, &s);
            }
            for (int32_t i = 0, n; i < n_tokens; i += n) {
                n = tile_tokens(n_tokens - i, TILE);
                tiles_float[wide][n](&s, n_cols, act + (size_t)i * act_stride + 4 * (size_t)k, act_stride,
                                     sums.acc + i);
            }
            if (is_f8 && k + n_cols == stop)
                fold_f8(&sums, w, p, n_panels, b, n_tokens, wide);
        }
        sums_push(&sums, is_f8 ? sums.scaled : sums.acc, c, n_tokens, wide);
    }
    sums_store(&sums, w, n_tokens, p, n_panels, y, ldy);
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
        for (int32_t p = panel0; p < panel1; p += 2 * WIDE)
            block_float(w, (const uint8_t *)act + (size_t)i * act_stride, act_stride,
                        MIN(block, n_tokens - i), p, MIN(2 * WIDE, panel1 - p), y + (size_t)i * ldy, ldy);
}

void matmul_init_avx512(struct matmul_kernels *k)
{
    for (int t = 0; t < DT_COUNT; t++)
        if (k->mul[t])
            k->mul[t] = act_kind_of((enum dtype)t) == ACT_F32 ? mul_float : mul_int;
}
