/* matmul_copy.c: from one packed matrix to another, without loss: what re-slicing a shard set is made of.
 *
 * Codes and scales are moved as they are stored, so a slice that was cut out of other slices has the bits of
 * one that was packed from the checkpoint. Padding is left alone: `to` is zeroed, as wmat_pack zeroes a
 * panel.
 */
#include "kernels/matmul.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/matmul_layout.h"

/* Nonempty chunk after index i, or c->n. */
static int next_chunk(const struct cuts *c, int i)
{
    while (i < c->n && c->at[i] == c->at[i + 1])
        i++;
    return i;
}

bool wmat_same_chunks(const struct wmat *to, int32_t to_col, const struct wmat *from, int32_t from_col,
                      int32_t n_cols)
{
    if (to->dtype != DT_I8C)
        return true;
    const struct cuts *a = &to->cuts, *b = &from->cuts;
    int i = next_chunk(a, 0), j = next_chunk(b, 0);
    while (i < a->n && a->at[i] < to_col)
        i = next_chunk(a, i + 1);
    while (j < b->n && b->at[j] < from_col)
        j = next_chunk(b, j + 1);
    int32_t at = 0;
    while (at < n_cols) {
        if (i == a->n || j == b->n || a->at[i] - to_col != at || b->at[j] - from_col != at ||
            a->at[i + 1] - to_col != b->at[j + 1] - from_col)
            return false;
        at = a->at[i + 1] - to_col;
        i = next_chunk(a, i + 1);
        j = next_chunk(b, j + 1);
    }
    return at == n_cols;
}

/* The rows of one panel that go to one panel: [r, r + n) of `from` to rows t, t + 1, ... of `to`. */
struct lanes {
    int from, to, n;
};

static void copy_lanes(uint8_t *to, const uint8_t *from, struct lanes l, size_t bytes)
{
    memcpy(to + (size_t)l.to * bytes, from + (size_t)l.from * bytes, (size_t)l.n * bytes);
}

static void copy_floats(const struct wmat *to, uint8_t *tp, int32_t to_col, const uint8_t *fp,
                        int32_t from_col, int32_t n_cols, struct lanes l)
{
    size_t e = dtype_bytes(to->dtype, 1), column = WMAT_PANEL * e;
    tp += (size_t)to_col * column;
    fp += (size_t)from_col * column;
    if (l.n == WMAT_PANEL) {
        memcpy(tp, fp, (size_t)n_cols * column);
        return;
    }
    for (int32_t k = 0; k < n_cols; k++, tp += column, fp += column)
        copy_lanes(tp, fp, l, e);
}

static void copy_group(const struct wmat *to, uint8_t *tp, int32_t to_g, const struct wmat *from,
                       const uint8_t *fp, int32_t from_g, struct lanes l)
{
    enum dtype t = to->dtype;
    const struct panel_format *f = &panel_formats[t];
    uint8_t *tg = tp + panel_group_at(t, to->cuts.n, to->skip, to_g);
    const uint8_t *fg = fp + panel_group_at(t, from->cuts.n, from->skip, from_g);
    int lines = f->bits == 8 ? 8 : f->bits; /* of 32 bytes: codes, then planes of high bits */
    for (int j = 0; j < lines; j++)
        copy_lanes(tg + 32 * j, fg + 32 * j, l, 4);
    if (is_k_quant(t)) {
        uint8_t *tb = tp + panel_block_at(t, to->skip, to_g);
        const uint8_t *fb = fp + panel_block_at(t, from->skip, from_g);
        for (int i = 0; i < f->head_bytes; i += 2 * WMAT_PANEL)
            copy_lanes(tb + i, fb + i, l, 2);
        for (int i = f->scale_at; i < f->group_bytes; i += WMAT_PANEL)
            copy_lanes(tg + i, fg + i, l, 1);
    } else if (t != DT_I8C) {
        for (int i = f->scale_at; i < f->group_bytes; i += 2 * WMAT_PANEL)
            copy_lanes(tg + i, fg + i, l, 2);
    }
}

/* I8C: the scales of the chunks that lie in the columns. */
static void copy_scales(const struct wmat *to, uint8_t *tp, int32_t to_col, const struct wmat *from,
                        const uint8_t *fp, int32_t from_col, int32_t n_cols, struct lanes l)
{
    const struct cuts *a = &to->cuts, *b = &from->cuts;
    for (int i = next_chunk(a, 0); i < a->n; i = next_chunk(a, i + 1)) {
        if (a->at[i] < to_col || a->at[i] >= to_col + n_cols)
            continue;
        int j = next_chunk(b, 0);
        while (b->at[j] - from_col != a->at[i] - to_col)
            j = next_chunk(b, j + 1);
        copy_lanes(tp + (size_t)i * WMAT_PANEL * 4, fp + (size_t)j * WMAT_PANEL * 4, l, 4);
    }
}

/* F8_E4M3: codes column by column, and the scale of each block that is touched. Where a block comes in parts
 * they agree about its scale, but for one with a NaN among its codes (wmat_pack_f8), which stands. */
static void copy_f8(const struct wmat *to, uint8_t *tp, int32_t to_col, const struct wmat *from,
                    const uint8_t *fp, int32_t from_col, int32_t n_cols, struct lanes l)
{
    for (int32_t k = 0, end; k < n_cols; k = end) {
        int32_t tb = f8_block(to, to_col + k), fb = f8_block(from, from_col + k);
        end = MIN(n_cols, MIN(f8_block_end(to, tb) - to_col, f8_block_end(from, fb) - from_col));
        float scale[WMAT_PANEL];
        memcpy(scale, tp + f8_scales_at(to, tb), sizeof(scale));
        for (int i = 0; i < l.n; i++)
            if (!isnan(scale[l.to + i]))
                memcpy(&scale[l.to + i], fp + f8_scales_at(from, fb) + 4 * (size_t)(l.from + i), 4);
        memcpy(tp + f8_scales_at(to, tb), scale, sizeof(scale));
        for (int32_t i = k; i < end; i++)
            copy_lanes(tp + f8_column_at(tb, to_col + i), fp + f8_column_at(fb, from_col + i), l, 1);
    }
}

/* Where a column lies in its scale block. */
static int64_t in_block(const struct wmat *w, int32_t col)
{
    return ((int64_t)w->blocks.col_in_block + col) % w->blocks.scale_cols;
}

void wmat_copy(struct wmat *to, int32_t to_row, int32_t to_col, const struct wmat *from, int32_t from_row,
               int32_t from_col, int32_t n_rows, int32_t n_cols)
{
    assert(to->dtype == from->dtype && n_rows >= 0 && n_cols >= 0);
    assert(to_row >= 0 && n_rows <= to->rows - to_row && from_row >= 0 && n_rows <= from->rows - from_row);
    assert(to_col >= 0 && n_cols <= to->cols - to_col && from_col >= 0 && n_cols <= from->cols - from_col);
    bool floats = is_float_weight(to->dtype), f8 = to->dtype == DT_F8_E4M3;
    assert(!f8 || (to->blocks.scale_cols == from->blocks.scale_cols &&
                   in_block(to, to_col) == in_block(from, from_col)));
    assert(floats || f8 || (to_col % 32 == 0 && from_col % 32 == 0));
    assert(floats || f8 || n_cols % 32 == 0 ||
           (to_col + n_cols == to->cols && from_col + n_cols == from->cols));
    assert(!is_k_quant(to->dtype) || (to->skip + to_col) % 256 == (from->skip + from_col) % 256);
    assert(wmat_same_chunks(to, to_col, from, from_col, n_cols));
    for (int32_t done = 0; done < n_rows;) {
        int32_t t = to_row + done, f = from_row + done;
        struct lanes l = {f % WMAT_PANEL, t % WMAT_PANEL, 0};
        l.n = MIN(n_rows - done, WMAT_PANEL - MAX(l.from, l.to));
        uint8_t *tp = wmat_panel(to, t / WMAT_PANEL);
        const uint8_t *fp = wmat_panel(from, f / WMAT_PANEL);
        if (floats)
            copy_floats(to, tp, to_col, fp, from_col, n_cols, l);
        if (f8)
            copy_f8(to, tp, to_col, from, fp, from_col, n_cols, l);
        for (int32_t k = 0; k < n_cols && !floats && !f8; k += 32)
            copy_group(to, tp, (to_col + k) / 32, from, fp, (from_col + k) / 32, l);
        if (to->dtype == DT_I8C)
            copy_scales(to, tp, to_col, from, fp, from_col, n_cols, l);
        done += l.n;
    }
}
