/* matmul.h: quantize, and mul for each weight type, on panels of random codes with usual, extreme and illegal
 * scales; any number of tokens, any cuts, rows and columns that fill nothing. */
#include "tests/checkasm/checkasm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/matmul_layout.h"

static struct cuts random_cuts(struct check *c, int32_t cols, int32_t unit)
{
    struct cuts cuts = {.n = random_int(c, 1, YOKE_CHUNKS)};
    bool even = random_bits(c) & 1;
    for (int i = 1; i < cuts.n; i++) {
        int32_t at = even ? cols / unit * i / cuts.n : random_int(c, 0, cols / unit);
        int j = i;
        for (; j > 1 && cuts.at[j - 1] > at * unit; j--) /* keeps them sorted */
            cuts.at[j] = cuts.at[j - 1];
        cuts.at[j] = at * unit;
    }
    cuts.at[cuts.n] = cols;
    return cuts;
}

static void check_quantize(struct check *c)
{
    if (!check_slot(c, FN(c->c.matmul.quantize), FN(c->k.matmul.quantize), "matmul.quantize"))
        return;
    for (int i = 0; i < 600 && check_ok(c); i++) {
        int32_t cols = random_int(c, 0, i < 300 ? 100 : 600);
        struct cuts cuts = random_cuts(c, cols, 32);
        struct act_layout a;
        act_layout_init(&a, i & 1 ? ACT_Q32 : ACT_QC, cols, &cuts);
        float *x = guarded(c, 4 * (size_t)cols, 4);
        uint8_t *want = guarded(c, a.row_bytes, 64), *got = guarded(c, a.row_bytes, 64);
        random_floats(c, (enum random_floats)(i / 2 % RANDOM_KINDS), x, (size_t)cols);
        for (int32_t k = 0; k < cols && i % 5 == 0; k++) /* multiples of half a step: the rule of even */
            x[k] = k % 32 ? (float)random_int(c, -254, 254) / 2 : 127;
        c->c.matmul.quantize(&a, x, want);
        c->k.matmul.quantize(&a, x, got);
        size_t n = (size_t)a.n_scales * (a.kind == ACT_Q32 ? 2 : 1);
        same_floats(c, (float *)want, (float *)got, n, "scales and sums, cols %d", cols);
        same_bytes(c, want + 4 * n, got + 4 * n, a.row_bytes - 4 * n, "cols %d", cols);
        guarded_end(c);
    }
    enum { COLS = 4096 };
    struct cuts cuts = {.n = 1, .at = {0, COLS}};
    float *x = guarded(c, 4 * COLS, 64);
    random_floats(c, RANDOM_PLAIN, x, COLS);
    for (int kind = ACT_Q32; kind <= ACT_QC; kind++) {
        struct act_layout a;
        act_layout_init(&a, (enum act_kind)kind, COLS, &cuts);
        void *record = guarded(c, a.row_bytes, 64);
        BENCH(c, 4.0 * COLS, "GB/s", kind == ACT_Q32 ? "q32 4096" : "qc 4096",
              c->k.matmul.quantize(&a, x, record));
    }
    guarded_end(c);
}

enum scales { SCALES_USUAL, SCALES_TINY, SCALES_HUGE, SCALES_ANY, SCALES_KINDS };

static void put_half(struct check *c, enum scales kind, uint8_t *at)
{
    float f;
    uint64_t r = random_bits(c);
    random_floats(c, RANDOM_PLAIN, &f, 1);
    uint16_t h = f32_to_f16(f), sign = (uint16_t)(r & 1) << 15;
    if (r / 2 % 16 == 0)
        h = sign; /* zeros of both signs */
    else if (kind == SCALES_TINY)
        h = sign | (uint16_t)(r >> 20 & 0x3ff); /* subnormal */
    else if (kind == SCALES_HUGE)
        h = (uint16_t)(sign | (0x7bff - (r >> 20 & 0xff)));
    else if (kind == SCALES_ANY)
        h = (uint16_t)(r >> 20); /* infinite and NaN too */
    memcpy(at, &h, 2);
}

/* Any codes but NaN, or those alone whose conversion is delicate: zeros, subnormals, the largest. Scales as
 * wanted. */
static void fill_panel_f8(struct check *c, const struct wmat *w, uint8_t *panel, enum random_floats scales)
{
    static const uint8_t delicate[] = {0, 1, 7, 8, 9, 15, 16, 0x7e, 0x78, 0x40};
    bool some = random_bits(c) & 1;
    for (size_t i = 0; i < w->panel_bytes; i++) {
        uint8_t code = (uint8_t)(random_bits(c) & 0x7f);
        if (some || code == 0x7f)
            code = delicate[random_bits(c) % ARRAY_LEN(delicate)];
        panel[i] = code | (uint8_t)(random_bits(c) & 0x80);
    }
    for (int32_t b = 0; w->cols && b <= f8_block(w, w->cols - 1); b++)
        random_floats(c, scales, (float *)(void *)(panel + f8_scales_at(w, b)), WMAT_PANEL);
}

/* Fills the panels: random bytes, of which the floating-point fields get the wanted kind. */
static void fill_panels(struct check *c, struct wmat *w, enum scales kind)
{
    const struct panel_format *f = &panel_formats[w->dtype];
    static const enum random_floats like[] = {RANDOM_PLAIN, RANDOM_WIDE, RANDOM_FINITE, RANDOM_ANY};
    for (int32_t p = 0; p < w->n_panels; p++) {
        uint8_t *panel = wmat_panel(w, p);
        size_t n = (size_t)w->cols * WMAT_PANEL;
        if (w->dtype == DT_F8_E4M3) {
            fill_panel_f8(c, w, panel, like[kind]);
            continue;
        }
        if (w->dtype == DT_F32) {
            random_floats(c, like[kind], (float *)(void *)panel, n);
        } else if (is_float_weight(w->dtype)) {
            for (size_t i = 0; i < n; i++) {
                float x;
                random_floats(c, like[kind], &x, 1);
                uint16_t h = f32_to_bf16(x);
                if (w->dtype == DT_F16)
                    put_half(c, kind, panel + 2 * i);
                else
                    memcpy(panel + 2 * i, &h, 2);
            }
        } else if (random_bits(c) & 1) { /* extreme codes: 0, 15; 31; 63; -128, 127 */
            for (size_t i = 0; i < w->panel_bytes; i++)
                panel[i] = w->dtype == DT_Q8_0 || w->dtype == DT_I8C
                               ? 0x7f + (random_bits(c) & 1)
                               : (uint8_t) - (int)(random_bits(c) % 4 > 0);
        }
        if (w->dtype == DT_I8C)
            random_floats(c, like[kind], (float *)(void *)panel, (size_t)w->cuts.n * WMAT_PANEL);
        for (int32_t g = 0; g < cuts_group(&w->cuts, w->cuts.n) && !is_float_weight(w->dtype); g++) {
            uint8_t *group = panel + panel_group_at(w->dtype, w->cuts.n, w->skip, g);
            for (int i = 0; i < f->head_bytes; i += 2)
                put_half(c, kind, panel + panel_block_at(w->dtype, w->skip, g) + i);
            for (int r = 0; r < WMAT_PANEL && !f->head_bytes && w->dtype != DT_I8C; r++) {
                put_half(c, kind, group + f->scale_at + 2 * r);
                if (f->has_min)
                    put_half(c, kind, group + f->min_at + 2 * r);
            }
        }
    }
}

static void check_case(struct check *c, enum dtype t, int i)
{
    struct wmat w;
    struct act_layout a;
    int32_t cols = i < 8 ? 32 * i : random_int(c, 0, i % 16 ? 400 : 1700), rows = random_int(c, 1, 60);
    int32_t n_tokens = i < 34 ? i : random_int(c, 1, 100),
            skip = is_k_quant(t) ? 32 * random_int(c, 0, 7) : 0;
    struct cuts cuts = random_cuts(c, cols, act_kind_of(t) == ACT_F32 ? 1 : 32);
    wmat_init(&w, t, rows, cols, skip, &cuts);
    if (t == DT_F8_E4M3 && i % 8) { /* else without scales */
        static const int32_t sizes[] = {1, 7, 32, 64, 128, 200, INT32_MAX};
        int32_t n = sizes[random_bits(c) % ARRAY_LEN(sizes)];
        wmat_init_f8(&w, rows, cols, &(struct scale_blocks){128, n, 0, random_int(c, 0, n - 1)}, &cuts);
    }
    w.data = guarded(c, wmat_bytes(&w), 64);
    fill_panels(c, &w, (enum scales)(i % SCALES_KINDS));
    act_layout_init(&a, act_kind_of(t), cols, &cuts);

    size_t stride = a.row_bytes + (a.kind == ACT_F32 ? 4 : 64) * (size_t)random_int(c, 0, 2);
    size_t act_bytes = n_tokens ? (size_t)(n_tokens - 1) * stride + a.row_bytes : 0;
    uint8_t *act = guarded(c, act_bytes, a.kind == ACT_F32 ? 4 : 64);
    float *x = guarded(c, 4 * (size_t)cols, 4);
    enum random_floats kind = i % 3 ? RANDOM_PLAIN : (enum random_floats)(i / 3 % RANDOM_KINDS);
    for (int32_t k = 0; k < n_tokens; k++) {
        random_floats(c, kind, x, (size_t)cols);
        for (int32_t j = 0; j < cols && i % 5 == 1;
             j++) /* all codes 127 or -127, of one sign in some tokens */
            x[j] = k & 1 || random_bits(c) & 1 ? 3 : -3;
        if (a.kind == ACT_F32)
            memcpy(act + (size_t)k * stride, x, a.row_bytes);
        else
            c->c.matmul.quantize(&a, x, act + (size_t)k * stride);
    }
    size_t ldy = (size_t)rows + (size_t)random_int(c, 0, 3),
           ny = n_tokens ? (size_t)(n_tokens - 1) * ldy + (size_t)rows : 0;
    float *want = guarded(c, 4 * ny, 4), *got = guarded(c, 4 * ny, 4);
    memcpy(got, want, 4 * ny); /* what neither writes is equal */
    int32_t p0 = random_int(c, 0, w.n_panels - 1), p1 = random_int(c, p0, w.n_panels);
    if (i & 1) {
        p0 = 0;
        p1 = w.n_panels;
    }
    c->c.matmul.mul[t](&w, act, stride, n_tokens, p0, p1, want, ldy);
    c->k.matmul.mul[t](&w, act, stride, n_tokens, p0, p1, got, ldy);
    same_floats(c, want, got, ny,
                "case %d: rows %d cols %d skip %d tokens %d chunks %d ldy %zu panels %d..%d", i, rows, cols,
                skip, n_tokens, cuts.n, ldy, p0, p1);
    guarded_end(c);
}

static uint64_t read_all(const uint64_t *p, size_t bytes)
{
    uint64_t a = 0, b = 0, d = 0, e = 0;
    for (size_t i = 0; i < bytes / 8; i += 8) {
        a ^= p[i] ^ p[i + 1];
        b ^= p[i + 2] ^ p[i + 3];
        d ^= p[i + 4] ^ p[i + 5];
        e ^= p[i + 6] ^ p[i + 7];
    }
    return a ^ b ^ d ^ e;
}

/* One matrix larger than the caches, for one token and a few; a smaller one for many. Beside them the speed
 * at which this core reads the same bytes. */
static void bench_mul(struct check *c, enum dtype t)
{
    enum { ROWS = 8192, COLS = 8192, TOKENS = 256 };
    static const int tokens[] = {1, 2, 3, 4, 8, 16, 64, TOKENS};
    if (!bench_wanted(c) || !check_ok(c))
        return;
    struct wmat w;
    struct act_layout a;
    struct cuts cuts = {.n = YOKE_CHUNKS};
    for (int i = 0; i <= YOKE_CHUNKS; i++)
        cuts.at[i] = COLS / YOKE_CHUNKS * i;
    wmat_init(&w, t, ROWS, COLS, 0, &cuts);
    if (t == DT_F8_E4M3)
        wmat_init_f8(&w, ROWS, COLS, &(struct scale_blocks){128, 128, 0, 0}, &cuts);
    size_t bytes = wmat_bytes(&w);
    w.data = big_alloc(bytes, "bench", NULL);
    act_layout_init(&a, act_kind_of(t), COLS, &cuts);
    uint8_t *act = xaligned(64, (size_t)TOKENS * a.row_bytes);
    float *x = xaligned(64, 4 * COLS), *y = xaligned(64, 4 * (size_t)ROWS * TOKENS);
    random_floats(c, RANDOM_PLAIN, x, COLS);
    for (int i = 0; i < TOKENS; i++)
        c->k.matmul.quantize(&a, x, act + (size_t)i * a.row_bytes);
    w.n_panels = 1;
    fill_panels(c, &w, SCALES_USUAL);
    w.n_panels = ROWS / WMAT_PANEL;
    for (int32_t p = 1; p < w.n_panels; p++)
        memcpy(wmat_panel(&w, p), wmat_panel(&w, 0), w.panel_bytes);

    volatile uint64_t sink = 0;
    char what[64];
    bool slow = c->k.matmul.mul[t] == c->c.matmul.mul[t];
    if (!slow)
        BENCH(c, (double)bytes, "GB/s", "read 8192x8192", sink = read_all((uint64_t *)(void *)w.data, bytes));
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        int n = tokens[i], rows = n > 4 || slow ? 256 : ROWS;
        double macs = (double)rows * COLS * n, read = (double)bytes * rows / ROWS;
        if (slow && n != 1 && n != 16)
            continue;
        snprintf(what, sizeof(what), "%dx%d, %d tokens", rows, COLS, n);
        BENCH(c, macs, "GMAC/s", what,
              c->k.matmul.mul[t](&w, act, a.row_bytes, n, 0, rows / WMAT_PANEL, y, ROWS));
        if (n == 1)
            BENCH(c, read, "GB/s", what,
                  c->k.matmul.mul[t](&w, act, a.row_bytes, n, 0, rows / WMAT_PANEL, y, ROWS));
    }
    xfree(act);
    xfree(x);
    xfree(y);
    (void)sink;
    big_free(w.data, bytes);
}

void check_matmul(struct check *c)
{
    check_quantize(c);
    for (int t = 0; t < DT_COUNT; t++) {
        static char names[DT_COUNT][32];
        if (!c->c.matmul.mul[t])
            continue;
        snprintf(names[t], sizeof(names[t]), "matmul.mul_%s", dtype_name((enum dtype)t));
        if (!check_slot(c, FN(c->c.matmul.mul[t]), FN(c->k.matmul.mul[t]), names[t]))
            continue;
        for (int i = 0; i < 160 && check_ok(c) && c->k.matmul.mul[t] != c->c.matmul.mul[t]; i++)
            check_case(c, (enum dtype)t, i);
        bench_mul(c, (enum dtype)t);
    }
}
