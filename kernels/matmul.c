#include "kernels/matmul.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "kernels/matmul_layout.h"
#include "kernels/x86/x86.h"

enum act_kind act_kind_of(enum dtype weight)
{
    assert(dtype_info(weight)->weight);
    return is_float_weight(weight) || weight == DT_F8_E4M3 ? ACT_F32 : weight == DT_I8C ? ACT_QC : ACT_Q32;
}

void act_layout_init(struct act_layout *a, enum act_kind kind, int32_t cols, const struct cuts *cuts)
{
    assert(cols >= 0 && cuts->at[cuts->n] == cols);
    *a = (struct act_layout){.kind = kind, .cols = cols, .cuts = *cuts};
    if (kind == ACT_F32) {
        a->row_bytes = (uint32_t)cols * 4;
        return;
    }
    uint32_t groups = ((uint32_t)cols + 31) / 32;
    a->n_scales = kind == ACT_Q32 ? (int32_t)groups : cuts->n;
    uint32_t n = (uint32_t)a->n_scales;
    a->scale_at = 0;
    a->sum_at = 4 * n;
    a->isum_at = kind == ACT_Q32 ? a->sum_at + 4 * n : a->sum_at;
    a->code_at = ROUND_UP(a->isum_at + 4 * n, 64);
    a->row_bytes = ROUND_UP(a->code_at + 32 * groups, 64);
}

float quantize_amax(float amax, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= FLT_MAX))
            amax = NAN;
        else if (a > amax)
            amax = a;
    }
    return amax;
}

void quantize_scale(float amax, float *ret_scale, float *ret_inverse)
{
    *ret_inverse = 127 / amax;
    *ret_scale = amax / 127;
    if (isinf(*ret_inverse))
        *ret_scale = 0;
    if (!isfinite(*ret_inverse))
        *ret_inverse = 0;
}

int32_t quantize_codes(const float *x, int32_t n, float inverse, int8_t *code)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        /* inverse == 0 says all zero, and x may hold what cannot be multiplied. */
        code[i] = (int8_t)(inverse == 0 ? 0 : (int)rintf(x[i] * inverse));
        sum += code[i];
    }
    return sum;
}

/* Padding between the parts of a record is zero: records of equal rows are equal bytes. */
static void zero_between(uint8_t *record, size_t begin, size_t end)
{
    memset(record + begin, 0, end - begin);
}

static void quantize_q32(const struct act_layout *a, const float *x, uint8_t *record)
{
    zero_between(record, a->isum_at + 4 * (size_t)a->n_scales, a->code_at);
    zero_between(record, a->code_at + 32 * (size_t)a->n_scales, a->row_bytes);
    for (int32_t g = 0; g < a->n_scales; g++) {
        int32_t n = MIN(32, a->cols - 32 * g);
        int8_t *code = (int8_t *)record + a->code_at + 32 * g;
        float scale, inverse;
        quantize_scale(quantize_amax(0, x + 32 * g, n), &scale, &inverse);
        int32_t low = quantize_codes(x + 32 * g, MIN(16, n), inverse, code);
        int32_t high = n > 16 ? quantize_codes(x + 32 * g + 16, n - 16, inverse, code + 16) : 0;
        memset(code + n, 0, (size_t)(32 - n));
        float asum = scale * (float)(low + high);
        int16_t isum[2] = {(int16_t)low, (int16_t)high};
        memcpy(record + a->scale_at + 4 * g, &scale, 4);
        memcpy(record + a->sum_at + 4 * g, &asum, 4);
        memcpy(record + a->isum_at + 4 * g, isum, 4);
    }
}

static void quantize_qc(const struct act_layout *a, const float *x, uint8_t *record)
{
    zero_between(record, a->isum_at + 4 * (size_t)a->n_scales, a->code_at);
    zero_between(record, a->code_at + (size_t)a->cols, a->row_bytes);
    for (int c = 0; c < a->cuts.n; c++) {
        int32_t begin = a->cuts.at[c], n = a->cuts.at[c + 1] - begin;
        float scale, inverse;
        quantize_scale(quantize_amax(0, x + begin, n), &scale, &inverse);
        int32_t sum = quantize_codes(x + begin, n, inverse, (int8_t *)record + a->code_at + begin);
        memcpy(record + a->scale_at + 4 * c, &scale, 4);
        memcpy(record + a->isum_at + 4 * c, &sum, 4);
    }
}

static void quantize_c(const struct act_layout *a, const float *x, void *record)
{
    if (a->kind == ACT_Q32)
        quantize_q32(a, x, record);
    else if (a->kind == ACT_QC)
        quantize_qc(a, x, record);
    else
        memcpy(record, x, 4 * (size_t)a->cols);
}

/* Tokens that share one decoding of a panel. */
#define TOKENS 16
struct tile {
    struct tree tree[TOKENS][WMAT_PANEL];
};

static void tile_store(struct tile *tile, const struct wmat *w, int32_t panel, int32_t n_tokens, float *y,
                       size_t ldy)
{
    int32_t rows = MIN(WMAT_PANEL, w->rows - WMAT_PANEL * panel);
    for (int32_t t = 0; t < n_tokens; t++)
        for (int32_t r = 0; r < rows; r++)
            y[(size_t)t * ldy + (size_t)(WMAT_PANEL * panel + r)] = tree_join(&tile->tree[t][r]);
}

static float act_float(const uint8_t *record, uint32_t at, int32_t i)
{
    float f;
    memcpy(&f, record + at + 4 * (size_t)i, 4);
    return f;
}

static int32_t dot(const int8_t *code, const int8_t *q, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += code[i] * q[i];
    return sum;
}

static void tile_q32(struct tile *tile, const struct wmat *w, const struct act_layout *a,
                     const uint8_t *panel, const uint8_t *act, size_t act_stride, int32_t n_tokens)
{
    int has_min = panel_formats[w->dtype].has_min, halves = w->dtype == DT_Q6_K ? 2 : 1, n = 32 / halves;
    for (int c = 0; c < w->cuts.n; c++) {
        float acc[TOKENS][WMAT_PANEL] = {0};
        for (int32_t g = cuts_group(&w->cuts, c); g < cuts_group(&w->cuts, c + 1); g++) {
            struct panel_group p;
            panel_group_read(w, panel, g, &p);
            for (int32_t t = 0; t < n_tokens; t++) {
                const uint8_t *record = act + (size_t)t * act_stride;
                const int8_t *q = (const int8_t *)record + a->code_at + 32 * g;
                float ascale = act_float(record, a->scale_at, g), asum = act_float(record, a->sum_at, g);
                for (int r = 0; r < WMAT_PANEL; r++) {
                    for (int h = 0; h < halves; h++)
                        acc[t][r] = fmaf((float)dot(p.code[r] + 16 * h, q + 16 * h, n),
                                         p.scale[h][r] * ascale, acc[t][r]);
                    if (has_min)
                        acc[t][r] = fmaf(p.min[r], asum, acc[t][r]);
                }
            }
        }
        for (int32_t t = 0; t < n_tokens; t++)
            for (int r = 0; r < WMAT_PANEL; r++)
                tree_push(&tile->tree[t][r], acc[t][r]);
    }
}

static void tile_qc(struct tile *tile, const struct wmat *w, const struct act_layout *a, const uint8_t *panel,
                    const uint8_t *act, size_t act_stride, int32_t n_tokens)
{
    for (int c = 0; c < w->cuts.n; c++) {
        int32_t isum[TOKENS][WMAT_PANEL] = {0};
        for (int32_t g = cuts_group(&w->cuts, c); g < cuts_group(&w->cuts, c + 1); g++) {
            struct panel_group p;
            panel_group_read(w, panel, g, &p);
            for (int32_t t = 0; t < n_tokens; t++)
                for (int r = 0; r < WMAT_PANEL; r++)
                    isum[t][r] += dot(p.code[r],
                                      (const int8_t *)act + (size_t)t * act_stride + a->code_at + 32 * g, 32);
        }
        for (int32_t t = 0; t < n_tokens; t++) {
            float ascale = act_float(act + (size_t)t * act_stride, a->scale_at, c);
            for (int r = 0; r < WMAT_PANEL; r++)
                tree_push(&tile->tree[t][r],
                          ((float)isum[t][r] * ascale) * act_float(panel, 0, c * WMAT_PANEL + r));
        }
    }
}

static void mul_int_c(const struct wmat *w, const void *act, size_t act_stride, int32_t n_tokens,
                      int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    struct act_layout a;
    act_layout_init(&a, act_kind_of(w->dtype), w->cols, &w->cuts);
    for (int32_t p = panel0; p < panel1; p++) {
        for (int32_t t = 0; t < n_tokens; t += TOKENS) {
            struct tile tile = {0};
            int32_t n = MIN(TOKENS, n_tokens - t);
            const uint8_t *from = (const uint8_t *)act + (size_t)t * act_stride;
            if (a.kind == ACT_QC)
                tile_qc(&tile, w, &a, wmat_panel(w, p), from, act_stride, n);
            else
                tile_q32(&tile, w, &a, wmat_panel(w, p), from, act_stride, n);
            tile_store(&tile, w, p, n, y + (size_t)t * ldy, ldy);
        }
    }
}

static float weight_float(enum dtype t, const uint8_t *panel, size_t i)
{
    uint16_t h;
    float f;
    if (t == DT_F32) {
        memcpy(&f, panel + 4 * i, 4);
        return f;
    }
    memcpy(&h, panel + 2 * i, 2);
    return t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void mul_float_c(const struct wmat *w, const void *act, size_t act_stride, int32_t n_tokens,
                        int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    for (int32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = wmat_panel(w, p);
        for (int32_t t0 = 0; t0 < n_tokens; t0 += TOKENS) {
            struct tile tile = {0};
            int32_t n = MIN(TOKENS, n_tokens - t0);
            for (int c = 0; c < w->cuts.n; c++) {
                float acc[TOKENS][WMAT_PANEL] = {0};
                for (int32_t k = w->cuts.at[c]; k < w->cuts.at[c + 1]; k++) {
                    float wk[WMAT_PANEL];
                    for (int r = 0; r < WMAT_PANEL; r++)
                        wk[r] = weight_float(w->dtype, panel, WMAT_PANEL * (size_t)k + (size_t)r);
                    for (int32_t t = 0; t < n; t++) {
                        const float *x =
                            (const float *)((const uint8_t *)act + (size_t)(t0 + t) * act_stride);
                        for (int r = 0; r < WMAT_PANEL; r++)
                            acc[t][r] = fmaf(wk[r], x[k], acc[t][r]);
                    }
                }
                for (int32_t t = 0; t < n; t++)
                    for (int r = 0; r < WMAT_PANEL; r++)
                        tree_push(&tile.tree[t][r], acc[t][r]);
            }
            tile_store(&tile, w, p, n, y + (size_t)t0 * ldy, ldy);
        }
    }
}

/* One chunk of a panel, columns [k, end). */
static void chunk_f8(const struct wmat *w, const uint8_t *panel, int32_t k, int32_t end, const uint8_t *act,
                     size_t act_stride, int32_t n_tokens, float sum[TOKENS][WMAT_PANEL])
{
    while (k < end) {
        int32_t b = f8_block(w, k), stop = MIN(end, f8_block_end(w, b));
        float acc[TOKENS][WMAT_PANEL] = {0}, wk[WMAT_PANEL];
        for (; k < stop; k++) {
            for (int r = 0; r < WMAT_PANEL; r++)
                wk[r] = f8_e4m3_to_f32(panel[f8_column_at(b, k) + (size_t)r]);
            for (int32_t t = 0; t < n_tokens; t++) {
                float x = act_float(act + (size_t)t * act_stride, 0, k);
                for (int r = 0; r < WMAT_PANEL; r++)
                    acc[t][r] = fmaf(wk[r], x, acc[t][r]);
            }
        }
        for (int32_t t = 0; t < n_tokens; t++)
            for (int r = 0; r < WMAT_PANEL; r++)
                sum[t][r] = fmaf(acc[t][r], act_float(panel + f8_scales_at(w, b), 0, r), sum[t][r]);
    }
}

static void mul_f8_c(const struct wmat *w, const void *act, size_t act_stride, int32_t n_tokens,
                     int32_t panel0, int32_t panel1, float *y, size_t ldy)
{
    for (int32_t p = panel0; p < panel1; p++) {
        for (int32_t t0 = 0; t0 < n_tokens; t0 += TOKENS) {
            struct tile tile = {0};
            int32_t n = MIN(TOKENS, n_tokens - t0);
            for (int c = 0; c < w->cuts.n; c++) {
                float sum[TOKENS][WMAT_PANEL] = {0};
                chunk_f8(w, wmat_panel(w, p), w->cuts.at[c], w->cuts.at[c + 1],
                         (const uint8_t *)act + (size_t)t0 * act_stride, act_stride, n, sum);
                for (int32_t t = 0; t < n; t++)
                    for (int r = 0; r < WMAT_PANEL; r++)
                        tree_push(&tile.tree[t][r], sum[t][r]);
            }
            tile_store(&tile, w, p, n, y + (size_t)t0 * ldy, ldy);
        }
    }
}

void matmul_kernels_init(struct matmul_kernels *k, int cpu_level)
{
    memset(k, 0, sizeof(*k));
    k->quantize = quantize_c;
    for (int t = 0; t < DT_COUNT; t++)
        if (dtype_info((enum dtype)t)->weight)
            k->mul[t] = is_float_weight((enum dtype)t) ? mul_float_c : mul_int_c;
    k->mul[DT_F8_E4M3] = mul_f8_c;
#if defined(__x86_64__)
    if (cpu_level >= CPU_AVX2 && cpu_level < CPU_NEON)
        matmul_init_avx2(k);
    if (cpu_level >= CPU_AVX512 && cpu_level < CPU_NEON)
        matmul_init_avx512(k);
#endif
}
