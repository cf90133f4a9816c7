#include "kernels/matmul.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/matmul_layout.h"

static void check_cuts(const struct cuts *c, int32_t cols, int of_groups)
{
    assert(c->n >= 1 && c->n <= YOKE_CHUNKS);
    assert(c->at[0] == 0 && c->at[c->n] == cols);
    for (int i = 0; i < c->n; i++) {
        assert(c->at[i] <= c->at[i + 1]);
        /* Empty chunks at the end may start where the last column ends. */
        assert(!of_groups || c->at[i] % 32 == 0 || c->at[i] == cols);
    }
}

static size_t f8_panel_bytes(const struct wmat *w)
{
    return w->cols ? f8_column_at(f8_block(w, w->cols - 1), w->cols) : 0;
}

void wmat_init(struct wmat *w, enum dtype dtype, int32_t rows, int32_t cols, int32_t skip,
               const struct cuts *cuts)
{
    assert(dtype_info(dtype)->weight && rows >= 0 && cols >= 0);
    assert(is_k_quant(dtype) ? skip >= 0 && skip < 256 && skip % 32 == 0 : skip == 0);
    check_cuts(cuts, cols, act_kind_of(dtype) != ACT_F32);
    for (int c = 0; c < cuts->n && dtype == DT_I8C; c++)
        assert(cuts->at[c + 1] - cuts->at[c] <= 65536); /* int32 holds the chunk's sum */
    *w = (struct wmat){.dtype = dtype, .rows = rows, .cols = cols, .skip = skip, .cuts = *cuts};
    w->blocks = (struct scale_blocks){INT32_MAX, INT32_MAX, 0, 0};
    w->n_panels = rows / WMAT_PANEL + (rows % WMAT_PANEL > 0);
    int32_t groups = cuts_group(cuts, cuts->n);
    size_t bytes;
    if (is_float_weight(dtype))
        bytes = WMAT_PANEL * dtype_bytes(dtype, (size_t)cols);
    else if (dtype == DT_F8_E4M3)
        bytes = f8_panel_bytes(w);
    else if (groups > 0)
        bytes = panel_group_at(dtype, cuts->n, skip, groups - 1) + (size_t)panel_formats[dtype].group_bytes;
    else
        bytes = panel_head(dtype, cuts->n);
    w->panel_bytes = ROUND_UP(bytes, 64);
}

void wmat_init_f8(struct wmat *w, int32_t rows, int32_t cols, const struct scale_blocks *blocks,
                  const struct cuts *cuts)
{
    assert(blocks->row_in_block >= 0 && blocks->row_in_block < blocks->scale_rows);
    assert(blocks->col_in_block >= 0 && blocks->col_in_block < blocks->scale_cols);
    wmat_init(w, DT_F8_E4M3, rows, cols, 0, cuts);
    w->blocks = *blocks;
    w->panel_bytes = ROUND_UP(f8_panel_bytes(w), 64);
}

/* One group of 32 columns of one row on its way from the checkpoint to a panel. */
struct row_group {
    uint32_t code[8]; /* dword v: columns 4 * v .. 4 * v + 3, as stored */
    uint16_t d, m;    /* f16 bits: scale and min; K-quants: of the whole block */
    uint8_t sc[2];    /* K-quants */
    uint8_t mn;
};

static uint32_t get32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}
static uint16_t get16(const uint8_t *p)
{
    uint16_t u;
    memcpy(&u, p, 2);
    return u;
}
static void put16(uint8_t *p, uint16_t u)
{
    memcpy(p, &u, 2);
}

static void nibbles(struct row_group *o, const uint8_t *qs)
{
    for (int v = 0; v < 4; v++) {
        o->code[v] = get32(qs + 4 * v) & 0x0f0f0f0fu;
        o->code[v + 4] = get32(qs + 4 * v) >> 4 & 0x0f0f0f0fu;
    }
}
/* Bit k of qh is bit 4 of column k. */
static void fifth_bits(struct row_group *o, uint32_t qh)
{
    for (int v = 0; v < 8; v++, qh >>= 4)
        o->code[v] |= (qh & 1) << 4 | (qh & 2) << 11 | (qh & 4) << 18 | (qh & 8) << 25;
}
/* The 6-bit scales and mins of Q4_K and Q5_K: 12 bytes for 8 groups. */
static void scale_min_k(struct row_group *o, const uint8_t *s, int g)
{
    if (g < 4) {
        o->sc[0] = s[g] & 63;
        o->mn = s[g + 4] & 63;
    } else {
        o->sc[0] = (uint8_t)((s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
        o->mn = (uint8_t)(s[g + 4] >> 4 | (s[g] >> 6) << 4);
    }
}

/* Group g of a checkpoint's block (legacy types have one group a block). */
static void block_read(enum dtype t, const uint8_t *b, int g, struct row_group *o)
{
    memset(o, 0, sizeof(*o));
    o->d = get16(t == DT_Q6_K ? b + 208 : b);
    switch (t) {
    case DT_Q4_0:
        nibbles(o, b + 2);
        break;
    case DT_Q4_1:
        o->m = get16(b + 2);
        nibbles(o, b + 4);
        break;
    case DT_Q5_0:
        nibbles(o, b + 6);
        fifth_bits(o, get32(b + 2));
        break;
    case DT_Q5_1:
        o->m = get16(b + 2);
        nibbles(o, b + 8);
        fifth_bits(o, get32(b + 4));
        break;
    case DT_Q8_0:
        memcpy(o->code, b + 2, 32);
        break;
    case DT_Q4_K:
    case DT_Q5_K: {
        const uint8_t *qs = b + (t == DT_Q4_K ? 16 : 48) + g / 2 * 32;
        o->m = get16(b + 2);
        scale_min_k(o, b + 4, g);
        for (int v = 0; v < 8; v++) {
            o->code[v] = get32(qs + 4 * v) >> (g % 2 * 4) & 0x0f0f0f0fu;
            if (t == DT_Q5_K)
                o->code[v] |= (get32(b + 16 + 4 * v) >> g & 0x01010101u) << 4;
        }
        break;
    }
    default: {
        assert(t == DT_Q6_K);
        const uint8_t *ql = b + g / 4 * 64 + g % 2 * 32, *qh = b + 128 + g / 4 * 32;
        memcpy(o->sc, b + 192 + 2 * g, 2);
        for (int v = 0; v < 8; v++) {
            uint32_t high = get32(qh + 4 * v) >> (g % 4 * 2) & 0x03030303u;
            o->code[v] = (get32(ql + 4 * v) >> (g % 4 / 2 * 4) & 0x0f0f0f0fu) | high << 4;
        }
    }
    }
}

/* Writes row r of group g; the K-quants' head of block is written again by each of its groups. */
static void panel_write(const struct wmat *w, uint8_t *panel, int32_t g, int r, const struct row_group *in)
{
    const struct panel_format *f = &panel_formats[w->dtype];
    uint8_t *group = panel + panel_group_at(w->dtype, w->cuts.n, w->skip, g);
    if (f->bits == 8) {
        for (int v = 0; v < 8; v++)
            memcpy(group + 32 * v + 4 * r, &in->code[v], 4);
    } else {
        for (int j = 0; j < 4; j++) {
            uint32_t line = (in->code[j] & 0x0f0f0f0fu) | (in->code[j + 4] & 0x0f0f0f0fu) << 4;
            memcpy(group + 32 * j + 4 * r, &line, 4);
        }
        uint32_t plane[2] = {0, 0};
        for (int v = 0; v < 8; v++) {
            uint32_t high = in->code[v] >> 4 & (f->bits == 5 ? 0x01010101u : 0x03030303u);
            if (f->bits == 5)
                plane[0] |= high << v;
            else if (f->bits == 6)
                plane[v / 4] |= high << (2 * (v % 4));
        }
        for (int p = 0; p < f->bits - 4; p++)
            memcpy(group + f->high_at + 32 * p + 4 * r, &plane[p], 4);
    }
    if (is_k_quant(w->dtype)) {
        uint8_t *block = panel + panel_block_at(w->dtype, w->skip, g);
        put16(block + 2 * r, in->d);
        group[f->scale_at + r] = in->sc[0];
        if (w->dtype == DT_Q6_K) {
            group[f->scale_at + 8 + r] = in->sc[1];
        } else {
            put16(block + 16 + 2 * r, in->m);
            group[f->min_at + r] = in->mn;
        }
    } else if (w->dtype != DT_I8C) {
        put16(group + f->scale_at + 2 * r, in->d);
        if (f->has_min)
            put16(group + f->min_at + 2 * r, in->m);
    }
}

/* Columns [k, k + n) of a float row, as floats. */
static void floats_read(enum dtype t, const void *row, int32_t k, int32_t n, float *dst)
{
    if (t == DT_F32) {
        memcpy(dst, (const char *)row + 4 * (size_t)k, 4 * (size_t)n);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        uint16_t h = get16((const uint8_t *)row + 2 * (size_t)(k + i));
        dst[i] = t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
}

static void pack_row_i8c(const struct wmat *w, uint8_t *panel, int r, enum dtype t, const void *row)
{
    for (int c = 0; c < w->cuts.n; c++) {
        int32_t begin = w->cuts.at[c], end = w->cuts.at[c + 1];
        float x[32], amax = 0, scale, inverse;
        for (int32_t k = begin; k < end; k += 32) {
            int32_t n = MIN(32, end - k);
            floats_read(t, row, k, n, x);
            amax = quantize_amax(amax, x, n);
        }
        quantize_scale(amax, &scale, &inverse);
        memcpy(panel + 4 * (c * WMAT_PANEL + r), &scale, 4);
        for (int32_t k = begin; k < end; k += 32) {
            int32_t n = MIN(32, end - k);
            struct row_group o = {0};
            floats_read(t, row, k, n, x);
            quantize_codes(x, n, inverse, (int8_t *)o.code);
            panel_write(w, panel, k / 32, r, &o);
        }
    }
}

/* I4G: the f16 scale d and codes -8..7 of 32 weights x that make sum (x - d * code)^2 small.
 *
 * Candidates, in this order, each rounded to f16: m / -(35/5), m / -(36/5), ..., m / -(50/5), where m is the
 * first weight of largest magnitude (m / -8 is what llama.cpp's Q4_0 uses); then the least-squares scale for
 * the codes of the best so far, (sum x * code) / (sum code^2), twice. code = rint(x * (1 / d)), clamped. A
 * later candidate must be strictly better to win. Sums are in lanes (kernels/sum.h), products and differences
 * rounded: the same on every machine. */
struct i4g {
    float d, error;
    float code[32];
};
static void i4g_try(struct i4g *best, const float x[32], float wanted)
{
    float d = f16_to_f32(f32_to_f16(wanted)), inverse = 1 / d, lane[8] = {0};
    if (!(fabsf(d) <= FLT_MAX) || d == 0)
        return;
    struct i4g o = {.d = d};
    for (int i = 0; i < 32; i += 8) {
        for (int j = 0; j < 8; j++) {
            float q =
                (x[i + j] * inverse + 0x1.8p23f) - 0x1.8p23f; /* rint, in a form that compilers vectorise */
            q = q < -8 ? -8 : q;
            q = q > 7 ? 7 : q;
            float e = x[i + j] - d * q;
            o.code[i + j] = q;
            lane[j] += e * e;
        }
    }
    o.error = lanes_join(lane);
    if (o.error < best->error)
        *best = o;
}
static void i4g_quantize(const float x[32], struct row_group *o)
{
    struct i4g best = {.error = INFINITY};
    float m = 0, amax = quantize_amax(0, x, 32);
    uint8_t code[32];
    memset(o, 0, sizeof(*o));
    for (int i = 31; i >= 0; i--)
        if (fabsf(x[i]) == amax)
            m = x[i];
    for (int i = 35; i <= 50 && m != 0; i++)
        i4g_try(&best, x, m / -((float)i / 5));
    for (int round = 0; round < 2; round++) {
        float xq[8] = {0}, qq[8] = {0};
        for (int i = 0; i < 32; i++) {
            xq[i % 8] += x[i] * best.code[i];
            qq[i % 8] += best.code[i] * best.code[i];
        }
        if (lanes_join(qq) > 0)
            i4g_try(&best, x, lanes_join(xq) / lanes_join(qq));
    }
    /* Not finite, or beyond what an f16 scale reaches: no plausible number may come of it. */
    o->d = f32_to_f16(amax / 10 > 65504 || isnan(amax) ? NAN : best.d);
    for (int i = 0; i < 32; i++)
        code[i] = (uint8_t)((int)best.code[i] + 8);
    memcpy(o->code, code, 32);
}

static void pack_row(const struct wmat *w, uint8_t *panel, int r, enum dtype t, const uint8_t *row)
{
    if (is_float_weight(w->dtype)) {
        size_t e = dtype_bytes(t, 1);
        for (size_t k = 0; k < (size_t)w->cols; k++)
            memcpy(panel + (WMAT_PANEL * k + (size_t)r) * e, row + k * e, e);
        return;
    }
    if (w->dtype == DT_I8C) {
        pack_row_i8c(w, panel, r, t, row);
        return;
    }
    int per_block = dtype_info(t)->block / 32, first = w->skip / 32;
    for (int32_t g = 0; g < cuts_group(&w->cuts, w->cuts.n); g++) {
        struct row_group o;
        if (is_float_weight(t)) {
            float x[32] = {0};
            floats_read(t, row, 32 * g, MIN(32, w->cols - 32 * g), x);
            i4g_quantize(x, &o);
        } else {
            int32_t at = g + first;
            block_read(t, row + (size_t)(at / per_block) * (size_t)dtype_info(t)->block_bytes, at % per_block,
                       &o);
        }
        panel_write(w, panel, g, r, &o);
    }
}

static float get_float(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}

/* How many rows of scales lie between those of rows a and b. */
static size_t scale_rows_between(const struct scale_blocks *s, int32_t a, int32_t b)
{
    return (size_t)(((int64_t)b + s->row_in_block) / s->scale_rows -
                    ((int64_t)a + s->row_in_block) / s->scale_rows);
}

static void pack_row_f8(const struct wmat *w, uint8_t *panel, int r, const uint8_t *codes,
                        const uint8_t *scales)
{
    for (int32_t k = 0; k < w->cols; scales += 4) {
        int32_t b = f8_block(w, k), end = f8_block_end(w, b);
        float scale = get_float(scales);
        for (; k < end; k++) {
            panel[f8_column_at(b, k) + (size_t)r] = codes[k];
            if ((codes[k] & 0x7f) == 0x7f)
                scale = NAN;
        }
        memcpy(panel + f8_scales_at(w, b) + 4 * r, &scale, 4);
    }
}

void wmat_pack_f8(struct wmat *w, int32_t row0, int32_t n_rows, const void *codes, size_t stride,
                  const void *scales, size_t scale_stride)
{
    assert(w->dtype == DT_F8_E4M3);
    assert(row0 % WMAT_PANEL == 0 && n_rows >= 0 && row0 <= w->rows && n_rows <= w->rows - row0);
    for (int32_t r = 0; r < n_rows; r++) {
        uint8_t *panel = wmat_panel(w, (row0 + r) / WMAT_PANEL);
        if (r % WMAT_PANEL == 0)
            memset(panel, 0, w->panel_bytes);
        pack_row_f8(w, panel, r % WMAT_PANEL, (const uint8_t *)codes + (size_t)r * stride,
                    (const uint8_t *)scales + scale_rows_between(&w->blocks, row0, row0 + r) * scale_stride);
    }
}

void f8_rows_to_f32(const void *codes, size_t stride, int32_t n_rows, int32_t cols,
                    const struct scale_blocks *blocks, const void *scales, size_t scale_stride, float *dst)
{
    float value[256];
    for (int i = 0; i < 256; i++)
        value[i] = f8_e4m3_to_f32((uint8_t)i);
    for (int32_t r = 0; r < n_rows; r++) {
        const uint8_t *code = (const uint8_t *)codes + (size_t)r * stride;
        const uint8_t *scale = (const uint8_t *)scales + scale_rows_between(blocks, 0, r) * scale_stride;
        float *y = dst + (size_t)r * (size_t)cols;
        int64_t end = (int64_t)blocks->scale_cols - blocks->col_in_block;
        for (int32_t k = 0; k < cols; end += blocks->scale_cols, scale += 4) {
            float s = get_float(scale);
            for (; k < MIN(end, cols); k++)
                y[k] = s * value[code[k]];
        }
    }
}

void wmat_pack(struct wmat *w, int32_t row0, int32_t n_rows, enum dtype src_dtype, const void *src,
               size_t src_stride)
{
    if (w->dtype == DT_F8_E4M3) {
        const float one = 1;
        assert(src_dtype == DT_F8_E4M3 && w->blocks.scale_rows == INT32_MAX &&
               w->blocks.scale_cols == INT32_MAX);
        wmat_pack_f8(w, row0, n_rows, src, src_stride, &one, 0);
        return;
    }
    assert(row0 % WMAT_PANEL == 0 && n_rows >= 0 && row0 <= w->rows && n_rows <= w->rows - row0);
    assert(w->dtype == DT_I8C || w->dtype == DT_I4G ? is_float_weight(src_dtype) : src_dtype == w->dtype);
    for (int32_t r = 0; r < n_rows; r++) {
        uint8_t *panel = wmat_panel(w, (row0 + r) / WMAT_PANEL);
        if (r % WMAT_PANEL == 0)
            memset(panel, 0, w->panel_bytes);
        pack_row(w, panel, r % WMAT_PANEL, src_dtype, (const uint8_t *)src + (size_t)r * src_stride);
    }
}

/* The inverse of panel_write for one row: codes, scales of both halves, min. */
static void row_group_read(const struct wmat *w, const uint8_t *panel, int32_t g, int r, int8_t code[32],
                           float scale[2], float *min)
{
    const struct panel_format *f = &panel_formats[w->dtype];
    const uint8_t *group = panel + panel_group_at(w->dtype, w->cuts.n, w->skip, g);
    for (int v = 0; v < 8; v++) {
        for (int i = 0; i < 4; i++) {
            int b = 4 * r + i, c;
            if (f->bits == 8)
                c = group[32 * v + b];
            else
                c = group[32 * (v % 4) + b] >> (v / 4 * 4) & 15;
            if (f->bits == 5)
                c |= (group[f->high_at + b] >> v & 1) << 4;
            if (f->bits == 6)
                c |= (group[f->high_at + 32 * (v / 4) + b] >> (2 * (v % 4)) & 3) << 4;
            code[4 * v + i] = (int8_t)(c - f->offset);
        }
    }
    *min = 0;
    if (w->dtype == DT_I8C) {
        int c = 0;
        while (32 * g >= w->cuts.at[c + 1])
            c++;
        memcpy(scale, panel + 4 * (c * WMAT_PANEL + r), 4);
        scale[1] = scale[0];
    } else if (is_k_quant(w->dtype)) {
        const uint8_t *block = panel + panel_block_at(w->dtype, w->skip, g);
        float d = f16_to_f32(get16(block + 2 * r));
        if (w->dtype == DT_Q6_K) {
            scale[0] = d * (float)(int8_t)group[f->scale_at + r];
            scale[1] = d * (float)(int8_t)group[f->scale_at + 8 + r];
        } else {
            scale[0] = scale[1] = d * (float)group[f->scale_at + r];
            *min = -(f16_to_f32(get16(block + 16 + 2 * r)) * (float)group[f->min_at + r]);
        }
    } else {
        scale[0] = scale[1] = f16_to_f32(get16(group + f->scale_at + 2 * r));
        if (f->has_min)
            *min = f16_to_f32(get16(group + f->min_at + 2 * r));
    }
}

void panel_group_read(const struct wmat *w, const uint8_t *panel, int32_t g, struct panel_group *ret)
{
    for (int r = 0; r < WMAT_PANEL; r++) {
        float scale[2];
        row_group_read(w, panel, g, r, ret->code[r], scale, &ret->min[r]);
        ret->scale[0][r] = scale[0];
        ret->scale[1][r] = scale[1];
    }
}

void wmat_row(const struct wmat *w, int32_t row, float *dst)
{
    assert(row >= 0 && row < w->rows);
    const uint8_t *panel = wmat_panel(w, row / WMAT_PANEL);
    int r = row % WMAT_PANEL;
    if (is_float_weight(w->dtype)) {
        for (int32_t k = 0; k < w->cols; k++)
            floats_read(w->dtype, panel, WMAT_PANEL * k + r, 1, dst + k);
        return;
    }
    if (w->dtype == DT_F8_E4M3) {
        for (int32_t k = 0; k < w->cols;) {
            int32_t b = f8_block(w, k), end = f8_block_end(w, b);
            float scale = get_float(panel + f8_scales_at(w, b) + 4 * r);
            for (; k < end; k++)
                dst[k] = scale * f8_e4m3_to_f32(panel[f8_column_at(b, k) + (size_t)r]);
        }
        return;
    }
    for (int32_t k = 0; k < w->cols; k += 32) {
        int8_t code[32];
        float scale[2], min;
        row_group_read(w, panel, k / 32, r, code, scale, &min);
        for (int32_t i = 0; i < MIN(32, w->cols - k); i++) {
            float x = scale[i / 16] * (float)code[i];
            dst[k + i] = panel_formats[w->dtype].has_min ? x + min : x;
        }
    }
}
