#include "engine/slices.h"

#include <string.h>
#include <sys/mman.h>
#include "base/mem.h"

int slices_n_ranks(const struct plan *p)
{
    return p->opt.tp * p->opt.pp * (plan_spreads(p) ? p->opt.dp : 1);
}

int slices_rank(const struct plan *p)
{
    int lane = plan_spreads(p) ? p->opt.lane : 0;
    return (lane * p->opt.pp + p->opt.stage) * p->opt.tp + p->opt.rank;
}

/* --- mapping --- */

static bool same_range(struct range a, const int32_t b[2])
{
    return a.begin == b[0] && a.end == b[1];
}

static bool same_cuts(const struct cuts *a, const struct cuts *b)
{
    return a->n == b->n && !memcmp(a->at, b->at, sizeof(a->at[0]) * (size_t)(a->n + 1));
}

static void range_text(const char *what, int32_t begin, int32_t end, struct buf *out)
{
    buf_addf(out, "%s%s %d to %d", out->len ? ", " : "", what, begin, end);
}

static bool same_scale_blocks(const struct shard_tensor *t, const struct plan_weight *w)
{
    return w->dtype != DT_F8_E4M3 ||
           (t->scale_rows == w->blocks.scale_rows && t->scale_cols == w->blocks.scale_cols);
}

/* What differs, as the end of a sentence; nothing if the part is what the plan wants. */
static void difference(const struct shard_tensor *t, const struct shard_part *p, const struct plan_weight *w,
                       struct buf *out)
{
    struct buf want = BUF_INIT, have = BUF_INIT;
    if (t->src != w->src || t->dtype != w->dtype) {
        buf_addf(&want, "%s (made from %s)", dtype_name(w->dtype), dtype_name(w->src));
        buf_addf(&have, "%s (made from %s)", dtype_name(t->dtype), dtype_name(t->src));
    } else if (t->matrix != w->matrix || t->stacked != w->stacked || t->rows != w->all_rows ||
               t->cols != w->all_cols) {
        buf_addf(&want, "a part of [%lld, %lld]", (long long)w->all_rows, (long long)w->all_cols);
        buf_addf(&have, "a part of [%lld, %lld]", (long long)t->rows, (long long)t->cols);
    } else if (!same_range(w->stack, p->stack) || !same_range(w->row, p->row) ||
               !same_range(w->col, p->col)) {
        if (w->stacked) {
            range_text("experts", w->stack.begin, w->stack.end, &want);
            range_text("experts", p->stack[0], p->stack[1], &have);
        }
        if (w->matrix) {
            range_text("rows", w->row.begin, w->row.end, &want);
            range_text("rows", p->row[0], p->row[1], &have);
        }
        range_text("columns", w->col.begin, w->col.end, &want);
        range_text("columns", p->col[0], p->col[1], &have);
    } else if (!same_scale_blocks(t, w)) {
        buf_addf(&want, "scaled by blocks of %d x %d", w->blocks.scale_rows, w->blocks.scale_cols);
        buf_addf(&have, "scaled by blocks of %d x %d", t->scale_rows, t->scale_cols);
    } else if ((w->matrix && !same_cuts(&w->cuts, &p->cuts)) || w->bytes != p->bytes) {
        buf_addf(&want, "%d chunks in %zu bytes", w->cuts.n, w->bytes);
        buf_addf(&have, "%d chunks in %zu bytes", p->cuts.n, (size_t)p->bytes);
    }
    if (want.len)
        buf_addf(out, "%s of rank %d is %s, but this run needs %s", t->name, p->rank, have.s, want.s);
    buf_release(&want);
    buf_release(&have);
}

int slices_fit(const struct shardset *s, const struct plan *p, struct err *e)
{
    const struct shardset_info *info = shardset_info(s);
    int rank = slices_rank(p);
    if (info->ranks != slices_n_ranks(p))
        return err_set(e, ERR_SPLIT, "%s is split over %d ranks, but this run has %d", shardset_path(s),
                       info->ranks, slices_n_ranks(p));
    int32_t n;
    const struct shard_part *const *part = shardset_parts(s, rank, &n);
    struct buf how = BUF_INIT;
    for (int32_t i = 0; i < n && i < p->n_weights && !how.len; i++) {
        const struct plan_weight *w = &p->weights[i];
        const struct shard_tensor *t = shardset_tensor(s, part[i]->tensor);
        if (strcmp(t->name, w->name) || part[i]->offset != weights_offset(p, i) ||
            (w->stacked && part[i]->stride != weights_stride(p, i)))
            buf_addf(&how, "weight %d of rank %d is %s, but this run needs %s there", i, rank, t->name,
                     w->name);
        else
            difference(t, part[i], w, &how);
    }
    if (!how.len && n != p->n_weights)
        buf_addf(&how, "rank %d has %d weights, but this run needs %d", rank, n, p->n_weights);
    int rc = how.len ? err_set(e, ERR_SPLIT, "%s: %s", shardset_path(s), how.s) : 0;
    buf_release(&how);
    return rc;
}

int slices_map(const struct shardset *s, const struct plan *p, struct weights **ret, struct err *e)
{
    void *map;
    size_t bytes, payload_at;
    int rc = shardset_map(s, slices_rank(p), &map, &bytes, &payload_at, e);
    if (rc)
        return rc;
    madvise(map, bytes, MADV_WILLNEED); /* reading ahead starts now; harmless where it is cached */
    weights_map(p, map, bytes, payload_at, ret);
    return 0;
}

/* --- cutting anew --- */

struct slices {
    const struct shardset *s;
    const struct plan *p;
    struct mapped {
        void *map;
        size_t bytes, payload_at;
    } * rank;        /* [ranks] */
    int32_t *tensor; /* [plan's weights]: the set's tensor */
};

/* The set's tensor that a weight can be cut from. One that ranks hold whole serves any layout, so among
 * several of one name the first will do. */
static int find_tensor(const struct shardset *s, const struct plan_weight *w, int32_t *ret, struct err *e)
{
    const struct shard_tensor *found = NULL;
    for (int32_t i = 0; i < shardset_n_tensors(s) && !found; i++)
        if (!strcmp(shardset_tensor(s, i)->name, w->name)) {
            found = shardset_tensor(s, i);
            *ret = i;
        }
    if (!found)
        return err_set(e, ERR_FORMAT, "%s does not hold %s", shardset_path(s), w->name);
    if (found->dtype != w->dtype || found->matrix != w->matrix || found->stacked != w->stacked ||
        found->rows != w->all_rows || found->cols != w->all_cols || !same_scale_blocks(found, w))
        return err_set(
            e, ERR_SPLIT,
            "%s holds %s as %s [%lld, %lld], but this run needs %s [%lld, %lld]; what is packed can be "
            "split anew, not converted",
            shardset_path(s), w->name, dtype_name(found->dtype), (long long)found->rows,
            (long long)found->cols, dtype_name(w->dtype), (long long)w->all_rows, (long long)w->all_cols);
    return 0;
}

int slices_open(const struct shardset *s, const struct plan *p, bool all, struct slices **ret, struct err *e)
{
    struct slices *x;
    int ranks = shardset_info(s)->ranks, rc = 0;
    XNEW(x);
    x->s = s;
    x->p = p;
    XNEW_N(x->rank, (size_t)ranks);
    XNEW_N(x->tensor, (size_t)p->n_weights);
    for (int i = 0; i < ranks && !rc; i++) {
        rc = shardset_map(s, i, &x->rank[i].map, &x->rank[i].bytes, &x->rank[i].payload_at, e);
        if (!rc && all)
            madvise(x->rank[i].map, x->rank[i].bytes, MADV_WILLNEED);
    }
    for (int32_t i = 0; i < p->n_weights && !rc; i++)
        rc = find_tensor(s, &p->weights[i], &x->tensor[i], e);
    if (rc)
        slices_close(x);
    else
        *ret = x;
    return rc;
}

void slices_close(struct slices *x)
{
    if (!x)
        return;
    for (int i = 0; i < shardset_info(x->s)->ranks; i++)
        if (x->rank[i].map)
            munmap(x->rank[i].map, x->rank[i].bytes);
    xfree(x->rank);
    xfree(x->tensor);
    xfree(x);
}

/* A rectangle of one matrix of the tensor, in the whole tensor's rows and columns. */
struct box {
    int32_t row[2], col[2];
};

static bool intersect(const int32_t a[2], const int32_t b[2], int32_t ret[2])
{
    ret[0] = MAX(a[0], b[0]);
    ret[1] = MIN(a[1], b[1]);
    return ret[0] < ret[1];
}

struct cut { /* one weight's matrix, or vector, being put together */
    const struct slices *x;
    const struct shard_tensor *t;
    const struct plan_weight *w;
    int32_t expert;
    struct wmat *mat; /* NULL: a vector */
    float *vec;
};

static int move_box(const struct cut *c, const struct shard_part *p, struct box b, struct err *e)
{
    const struct mapped *m = &c->x->rank[p->rank];
    uint8_t *data = (uint8_t *)m->map + m->payload_at + p->offset;
    int32_t rows = b.row[1] - b.row[0], cols = b.col[1] - b.col[0];
    int32_t to_col = b.col[0] - c->w->col.begin, from_col = b.col[0] - p->col[0];
    if (!c->mat) {
        memcpy(c->vec + to_col, (const float *)(const void *)data + from_col, sizeof(float) * (size_t)cols);
        return 0;
    }
    struct wmat from;
    size_t bytes;
    shard_part_matrix(c->t, p, &from, &bytes);
    from.data = data + p->stride * (size_t)(c->expert - p->stack[0]);
    if (!wmat_same_chunks(c->mat, to_col, &from, from_col, cols))
        return err_set(
            e, ERR_SPLIT,
            "%s: the int8 scales of %s belong to chunks of its columns, which this split cuts "
            "elsewhere (columns %d to %d of rank %d); degrees that divide 8 can be made of each other; "
            "for others shard the model itself again",
            shardset_path(c->x->s), c->w->name, p->col[0], p->col[1], p->rank);
    wmat_copy(c->mat, b.row[0] - c->w->row.begin, to_col, &from, b.row[0] - p->row[0], from_col, rows, cols);
    return 0;
}

/* Takes the box from the first rank that has any of it, and what is left, up to four boxes around that, from
 * others: nothing twice, and nothing is missed in silence. */
static int fill(const struct cut *c, struct box b, struct err *e)
{
    if (b.row[0] >= b.row[1] || b.col[0] >= b.col[1])
        return 0;
    for (int32_t i = 0; i < c->t->n_parts; i++) {
        const struct shard_part *p = &c->t->part[i];
        struct box in;
        if (c->expert < p->stack[0] || c->expert >= p->stack[1] || !intersect(b.row, p->row, in.row) ||
            !intersect(b.col, p->col, in.col))
            continue;
        const struct box rest[4] = {{{b.row[0], in.row[0]}, {b.col[0], b.col[1]}},
                                    {{in.row[1], b.row[1]}, {b.col[0], b.col[1]}},
                                    {{in.row[0], in.row[1]}, {b.col[0], in.col[0]}},
                                    {{in.row[0], in.row[1]}, {in.col[1], b.col[1]}}};
        int rc = move_box(c, p, in, e);
        for (int k = 0; k < 4 && !rc; k++)
            rc = fill(c, rest[k], e);
        return rc;
    }
    return err_set(e, ERR_FORMAT, "%s: no rank holds rows %d to %d, columns %d to %d of %s (expert %d)",
                   shardset_path(c->x->s), b.row[0], b.row[1], b.col[0], b.col[1], c->w->name, c->expert);
}

int slices_cut(const struct slices *x, struct weights *w, int32_t i, int32_t member, int32_t row0,
               int32_t n_rows, struct err *e)
{
    const struct plan_weight *pw = &x->p->weights[i];
    struct cut c = {.x = x,
                    .t = shardset_tensor(x->s, x->tensor[i]),
                    .w = pw,
                    .expert = pw->stack.begin + member,
                    .mat = pw->matrix ? &w->mat[i][member] : NULL,
                    .vec = w->vec[i]};
    int32_t begin = pw->row.begin + row0;
    return fill(&c, (struct box){{begin, begin + n_rows}, {pw->col.begin, pw->col.end}}, e);
}
