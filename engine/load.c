#include "engine/load.h"

#include <stdatomic.h>
#include <string.h>
#include "base/mem.h"
#include "exec/pool.h"
#include "formats/dequant.h"

static enum dtype dtype_of(const struct weight_source *s, const char *name)
{
    const struct checkpoint_source *c = (const struct checkpoint_source *)s;
    const struct tensor *t = checkpoint_find(c->checkpoint, name);
    return t ? t->dtype : DT_NONE;
}

void checkpoint_source_init(struct checkpoint_source *s, const struct checkpoint *c)
{
    s->base.dtype_of = dtype_of;
    s->checkpoint = c;
}

static const struct plan_weight *needs(const struct plan *p, const char *name)
{
    for (int i = 0; i < p->n_weights; i++)
        if (!strcmp(p->weights[i].name, name))
            return &p->weights[i];
    return NULL;
}

/* Tensors that real checkpoints carry and that mean nothing to us: buffers, and the head's copy of a tied
 * table. */
static bool harmless(const struct checkpoint *c, const char *name)
{
    if (strstr(name, "rotary_emb.inv_freq") || strstr(name, ".attn.masked_bias"))
        return true;
    return !strcmp(name, "lm_head.weight") &&
           json_is_true(json_object_get(checkpoint_config(c), "tie_word_embeddings"));
}

static bool fits(const struct plan_weight *w, const struct tensor *t)
{
    if (!w->matrix)
        return t->n_dims == 1 && t->dim[0] == w->all_cols;
    return t->n_dims == 2 && t->dim[0] == w->all_rows && t->dim[1] == w->all_cols;
}

static void show_shape(const struct tensor *t, struct buf *out)
{
    buf_addc(out, '[');
    for (int d = 0; d < t->n_dims; d++)
        buf_addf(out, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    buf_addc(out, ']');
}

int load_check(const struct checkpoint *c, const struct plan *p, struct warn_sink *warn, struct err *e)
{
    struct buf bad = BUF_INIT, extra = BUF_INIT;
    int n_bad = 0, n_extra = 0;
    for (int i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = &p->weights[i];
        const struct tensor *t = checkpoint_find(c, w->name);
        if (fits(w, t))
            continue;
        buf_addf(&bad, "%s%s is ", n_bad++ ? "; " : "", w->name);
        show_shape(t, &bad);
        if (w->matrix)
            buf_addf(&bad, ", but config.json makes it [%lld, %lld]", (long long)w->all_rows,
                     (long long)w->all_cols);
        else
            buf_addf(&bad, ", but config.json makes it [%lld]", (long long)w->all_cols);
    }
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const char *name = checkpoint_tensor(c, i)->name;
        if (!needs(p, name) && !harmless(c, name))
            buf_addf(&extra, "%s%s", n_extra++ ? ", " : "", name);
    }
    if (n_extra)
        warn_to(warn, "%s: %d tensor%s not used by this architecture: %s", checkpoint_path(c), n_extra,
                n_extra > 1 ? "s are" : " is", extra.s);
    if (n_bad)
        err_set(e, ERR_FORMAT, "%s: %d tensor%s another shape than expected: %s", checkpoint_path(c), n_bad,
                n_bad > 1 ? "s have" : " has", bad.s);
    buf_release(&bad);
    buf_release(&extra);
    return n_bad ? ERR_FORMAT : 0;
}

#define PIECE_BYTES ((size_t)4 << 20)

/* A run of one weight's panels (or a whole vector): the unit of reading and packing. */
struct piece {
    int32_t weight, row0, n_rows;
};

struct loader {
    const struct checkpoint *c;
    const struct plan *p;
    struct weights *w;
    struct piece *pieces;
    int n_pieces, cap_pieces;
    uint64_t total;
    load_progress_fn *progress;
    void *ctx;
    _Atomic int next;
    _Atomic uint64_t done;
    _Atomic bool failed;
    struct err *errs; /* by thread */
};

/* Columns as stored: whole blocks around the slice. */
static void stored_columns(const struct plan_weight *w, int64_t *ret_begin, int64_t *ret_end)
{
    int64_t block = dtype_info(w->src)->block;
    *ret_begin = w->col.begin / block * block;
    *ret_end = MIN(ROUND_UP((int64_t)w->col.end, block), w->all_cols);
}

static size_t row_bytes(const struct plan_weight *w)
{
    int64_t c0, c1;
    stored_columns(w, &c0, &c1);
    return dtype_bytes(w->src, (size_t)(c1 - c0));
}

static void list_pieces(struct loader *lo)
{
    for (int i = 0; i < lo->p->n_weights; i++) {
        const struct plan_weight *w = &lo->p->weights[i];
        size_t bytes = row_bytes(w);
        int32_t rows = range_n(w->row), step = rows;
        lo->total += bytes * (size_t)rows;
        if (w->matrix && bytes)
            step = (int32_t)MIN((size_t)rows, ROUND_UP(MAX(PIECE_BYTES / bytes, (size_t)1), WMAT_PANEL));
        for (int32_t at = 0; at < rows; at += step) {
            XGROW(lo->pieces, lo->n_pieces, lo->cap_pieces);
            lo->pieces[lo->n_pieces++] = (struct piece){i, at, MIN(step, rows - at)};
        }
    }
}

static int load_piece(struct loader *lo, const struct piece *x, struct buf *bytes, struct err *e)
{
    const struct plan_weight *w = &lo->p->weights[x->weight];
    const struct tensor *t = checkpoint_find(lo->c, w->name);
    size_t stride = row_bytes(w), n = stride * (size_t)x->n_rows;
    int64_t c0, c1;
    stored_columns(w, &c0, &c1);
    buf_clear(bytes);
    buf_reserve(bytes, n);
    int64_t row0 = w->row.begin + x->row0;
    int rc = checkpoint_read(lo->c, t, row0, row0 + x->n_rows, c0, c1, bytes->s, e);
    if (rc)
        return rc;
    if (w->matrix)
        wmat_pack(&lo->w->mat[x->weight], x->row0, x->n_rows, w->src, bytes->s, stride);
    else
        dequant_row(w->src, bytes->s, c1 - c0, lo->w->vec[x->weight]);
    atomic_fetch_add(&lo->done, n);
    return 0;
}

static void load_some(void *ctx, int ith, int nth)
{
    struct loader *lo = ctx;
    struct buf bytes = BUF_INIT;
    for (int i; !atomic_load(&lo->failed) && (i = atomic_fetch_add(&lo->next, 1)) < lo->n_pieces;) {
        if (load_piece(lo, &lo->pieces[i], &bytes, &lo->errs[ith]))
            atomic_store(&lo->failed, true);
        if (ith == 0 && lo->progress)
            lo->progress(lo->ctx, atomic_load(&lo->done), lo->total);
    }
    buf_release(&bytes);
}

int load_weights(const struct checkpoint *c, const struct plan *p, int threads, load_progress_fn *progress,
                 void *ctx, struct weights **ret, struct err *e)
{
    struct loader lo = {.c = c, .p = p, .progress = progress, .ctx = ctx};
    struct pool *pool = NULL;
    int rc = weights_new(p, &lo.w, e);
    if (!rc)
        rc = pool_new(threads, true, &pool, e);
    if (rc)
        goto done;
    XNEW_N(lo.errs, (size_t)threads);
    list_pieces(&lo);
    pool_run(pool, load_some, &lo);
    for (int i = 0; i < threads && !rc; i++)
        if (lo.errs[i].code) {
            rc = lo.errs[i].code;
            if (e)
                *e = lo.errs[i];
        }
    if (progress && !rc)
        progress(ctx, lo.total, lo.total);
done:
    pool_free(pool);
    xfree(lo.pieces);
    xfree(lo.errs);
    if (rc)
        weights_free(lo.w);
    else
        *ret = lo.w;
    return rc;
}
