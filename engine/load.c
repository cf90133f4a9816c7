#include "engine/load.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "engine/records.h"
#include "engine/slices.h"
#include "exec/pool.h"
#include "formats/dequant.h"

/* Where the matrix of one expert lies. A plan's name has a * for the expert's number; checkpoints have one
 * tensor an expert (Hugging Face's hub), all stacked in one (GGUF), or gate and up stacked in one too
 * (transformers 5 in memory). */
struct source {
    const struct tensor *tensor;
    int64_t row0; /* of the matrix, in the tensor seen as rows */
    int64_t rows; /* of one expert's (or head's) matrix, if it is stacked; 0 if the tensor is the matrix */
    bool turned;  /* the tensor holds the matrix's columns as rows */
    bool of_kv_b; /* one head's part of kv_b_proj */
};

/* DeepSeek's kv_b_proj [heads x (nope + v), kv_lora] holds what latent attention absorbs: of each head first
 * the rows that make keys, wanted turned, then those that make values. */
static struct source source_in_kv_b(const struct checkpoint *c, const char *name, const char *star,
                                    int32_t head)
{
    struct source s = {0};
    int n = (int)(star - name); /* "... .self_attn.k_b_proj." */
    char *whole = xasprintf("%.*skv_b_proj%s", n - (int)strlen("k_b_proj."), name, star + 1);
    s.tensor = checkpoint_find(c, whole);
    xfree(whole);
    const json_t *config = checkpoint_config(c);
    int64_t heads = json_integer_value(json_object_get(config, "num_attention_heads"));
    int64_t nope = json_integer_value(json_object_get(config, "qk_nope_head_dim"));
    if (!s.tensor || s.tensor->n_dims != 2 || heads < 1 || s.tensor->dim[0] % heads || nope < 1 ||
        nope >= s.tensor->dim[0] / heads) {
        s.tensor = NULL;
        return s;
    }
    int64_t each = s.tensor->dim[0] / heads;
    s.of_kv_b = true;
    s.turned = star[-(int)strlen("k_b_proj.")] == 'k';
    s.rows = s.turned ? nope : each - nope;
    s.row0 = head * each + (s.turned ? 0 : nope);
    return s;
}

static struct source source_of(const struct checkpoint *c, const char *name, int32_t expert)
{
    struct source s = {0};
    const char *star = strchr(name, '*');
    if (!star) {
        s.tensor = checkpoint_find(c, name);
        return s;
    }
    char *one = xasprintf("%.*s%d%s", (int)(star - name), name, expert, star + 1);
    char *all = xasprintf("%.*s%s", (int)(star - name - 1), name, star + 1);
    char *bare =
        xstrndup(all, strlen(all) - (strlen(all) > 7 && !strcmp(all + strlen(all) - 7, ".weight") ? 7 : 0));
    char *pair = NULL;
    s.tensor = checkpoint_find(c, one);
    if (!s.tensor) {
        s.tensor = checkpoint_find(c, all);
        if (!s.tensor)
            s.tensor = checkpoint_find(c, bare);
        if (s.tensor && s.tensor->n_dims == 3) {
            s.rows = s.tensor->dim[1];
            s.row0 = expert * s.rows;
        }
    }
    if (!s.tensor && (strstr(name, "k_b_proj.*") || strstr(name, "v_b_proj.*")))
        s = source_in_kv_b(c, name, star, expert);
    size_t n = strlen(bare);
    bool gate = n > 9 && !strcmp(bare + n - 9, "gate_proj"), up = n > 7 && !strcmp(bare + n - 7, "up_proj");
    if (!s.tensor && (gate || up)) {
        pair = xasprintf("%.*sgate_up_proj", (int)(n - (gate ? 9 : 7)), bare);
        s.tensor = checkpoint_find(c, pair);
        if (s.tensor && s.tensor->n_dims == 3) {
            s.rows = s.tensor->dim[1] / 2;
            s.row0 = (2 * expert + up) * s.rows;
        }
    }
    xfree(one);
    xfree(all);
    xfree(bare);
    xfree(pair);
    return s;
}

static enum dtype dtype_of(const struct weight_source *s, const char *name)
{
    const struct checkpoint_source *c = (const struct checkpoint_source *)s;
    const struct tensor *t = source_of(c->checkpoint, name, 0).tensor;
    return t ? t->dtype : DT_NONE;
}

static void scale_block(const struct weight_source *s, int32_t *ret_rows, int32_t *ret_cols)
{
    const struct checkpoint_source *c = (const struct checkpoint_source *)s;
    const json_t *q = json_object_get(checkpoint_config(c->checkpoint), "quantization_config");
    const json_t *block = json_object_get(q, "weight_block_size");
    json_int_t rows = json_integer_value(json_array_get(block, 0)),
               cols = json_integer_value(json_array_get(block, 1));
    *ret_rows = rows > 0 && rows < INT32_MAX ? (int32_t)rows : 128; /* DeepSeek's */
    *ret_cols = cols > 0 && cols < INT32_MAX ? (int32_t)cols : 128;
}

/* The scales of a float8 tensor: X.weight_scale_inv beside X.weight. NULL: none. */
static const struct tensor *scales_of(const struct checkpoint *c, const struct tensor *t)
{
    char *name = xasprintf("%s_scale_inv", t->name);
    const struct tensor *s = checkpoint_find(c, name);
    xfree(name);
    return s;
}

void checkpoint_source_init(struct checkpoint_source *s, const struct checkpoint *c)
{
    s->base.dtype_of = dtype_of;
    s->base.scale_block = scale_block;
    s->checkpoint = c;
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

static int64_t value_count(const struct tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        n *= t->dim[d];
    return n;
}

static bool fits(const struct plan_weight *w, const struct source *x)
{
    const struct tensor *t = x->tensor;
    if (!w->matrix)
        return value_count(t) == w->all_cols && t->n_dims <= 2;
    if (x->of_kv_b)
        return x->rows == (x->turned ? w->all_cols : w->all_rows) &&
               t->dim[1] == (x->turned ? w->all_rows : w->all_cols);
    if (x->rows)
        return x->rows == w->all_rows && t->dim[2] == w->all_cols;
    if (t->n_dims == 1) /* a matrix of one row may be stored as a vector (GGUF) */
        return w->all_rows == 1 && t->dim[0] == w->all_cols;
    return t->n_dims == 2 && t->dim[0] == w->all_rows && t->dim[1] == w->all_cols;
}

static void show_shape(const struct tensor *t, struct buf *out)
{
    buf_addc(out, '[');
    for (int d = 0; d < t->n_dims; d++)
        buf_addf(out, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    buf_addc(out, ']');
}

/* One weight (of one expert, if stacked): is it there, and does it fit? */
static void check_one(const struct checkpoint *c, const struct plan_weight *w, int32_t expert, bool *used,
                      struct buf *missing, struct buf *bad)
{
    struct source x = source_of(c, w->name, expert);
    const struct tensor *t = x.tensor;
    if (!t) {
        const char *star = strchr(w->name, '*'), *comma = missing->len ? ", " : "";
        if (star)
            buf_addf(missing, "%s%.*s%d%s", comma, (int)(star - w->name), w->name, expert, star + 1);
        else
            buf_addf(missing, "%s%s", comma, w->name);
        return;
    }
    used[t - checkpoint_tensor(c, 0)] = true;
    const struct tensor *scales = t->dtype == DT_F8_E4M3 ? scales_of(c, t) : NULL;
    if (scales)
        used[scales - checkpoint_tensor(c, 0)] = true;
    else if (t->dtype == DT_F8_E4M3 && !checkpoint_shardset(c)) /* which has them packed with the codes */
        buf_addf(missing, "%s%s_scale_inv", missing->len ? ", " : "", t->name);
    if (fits(w, &x))
        return;
    buf_addf(bad, "%s%s is ", bad->len ? "; " : "", t->name);
    show_shape(t, bad);
    if (w->matrix)
        buf_addf(bad, ", but config.json makes it [%lld, %lld]", (long long)w->all_rows,
                 (long long)w->all_cols);
    else
        buf_addf(bad, ", but config.json makes it [%lld]", (long long)w->all_cols);
}

/* What the graph expects of one weight: name and shape. */
static struct plan_weight expected(const struct graph *g, val w)
{
    const struct value *v = graph_value(g, w);
    int n_in = weight_inputs(g, w);
    struct plan_weight pw = {
        .name = v->name, .matrix = n_in > 0, .all_rows = 1, .all_cols = value_width(g, v)};
    pw.stacked = strchr(v->name, '*') != NULL;
    if (pw.matrix) {
        pw.all_cols = 1;
        for (int d = pw.stacked; d < v->n_dims; d++)
            *(d < v->n_dims - n_in ? &pw.all_rows : &pw.all_cols) *= g->axis_n[v->dim[d]];
    }
    return pw;
}

/* Layers beyond the model's own are multi-token prediction's (DeepSeek V3): named as one thing, not tensor by
 * tensor. */
static bool beyond_layers(const struct checkpoint *c, const struct graph *g, const char *name, int *ret_layer)
{
    const char *type = json_string_value(json_object_get(checkpoint_config(c), "model_type"));
    return type && !strncmp(type, "deepseek", 8) && sscanf(name, "model.layers.%d.", ret_layer) == 1 &&
           *ret_layer >= g->n_layers;
}

static void name_unused(const struct checkpoint *c, const struct graph *g, const bool *used,
                        struct warn_sink *warn)
{
    struct buf extra = BUF_INIT;
    int n = 0, n_mtp = 0, layer, first = INT32_MAX, last = 0;
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const char *name = checkpoint_tensor(c, i)->name;
        if (used[i] || harmless(c, name))
            continue;
        if (beyond_layers(c, g, name, &layer)) {
            n_mtp++;
            first = MIN(first, layer);
            last = MAX(last, layer);
        } else {
            buf_addf(&extra, "%s%s", n++ ? ", " : "", name);
        }
    }
    if (n)
        warn_to(warn, "%s: %d tensor%s not used by this architecture: %s", checkpoint_path(c), n,
                n > 1 ? "s are" : " is", extra.s);
    if (n_mtp && first == last)
        warn_to(warn, "%s: the multi-token prediction layer (model.layers.%d, %d tensors) is not used",
                checkpoint_path(c), first, n_mtp);
    else if (n_mtp)
        warn_to(warn,
                "%s: the multi-token prediction layers (model.layers.%d to %d, %d tensors) are not used",
                checkpoint_path(c), first, last, n_mtp);
    buf_release(&extra);
}

int load_check(const struct checkpoint *c, const struct graph *g, struct warn_sink *warn, struct err *e)
{
    struct buf bad = BUF_INIT, missing = BUF_INIT;
    bool *used;
    XNEW_N(used, checkpoint_n_tensors(c));
    for (int i = 0; i < g->n_values; i++) {
        if (g->values[i].kind != VAL_WEIGHT)
            continue;
        struct plan_weight w = expected(g, (val){i});
        int32_t n = w.stacked ? g->axis_n[g->values[i].dim[0]] : 1;
        for (int32_t k = 0; k < n; k++)
            check_one(c, &w, k, used, &missing, &bad);
    }
    name_unused(c, g, used, warn);
    int rc = 0;
    if (missing.len || bad.len)
        rc = err_set(e, ERR_FORMAT, "%s: %s%s%s%s%s", checkpoint_path(c),
                     missing.len ? "tensors are missing: " : "", missing.len ? missing.s : "",
                     missing.len && bad.len ? "; " : "",
                     bad.len ? "tensors have another shape than expected: " : "", bad.len ? bad.s : "");
    buf_release(&bad);
    buf_release(&missing);
    xfree(used);
    return rc;
}

#define PIECE_BYTES ((size_t)4 << 20)

/* A run of one weight's panels (or a whole vector): the unit of reading and packing. */
struct piece {
    int32_t weight, member, row0, n_rows; /* member: of the local stack */
};

struct loader {
    const struct checkpoint *c;
    const struct plan *p;
    struct weights *w;
    struct slices *slices; /* a shard set's; NULL: tensors are read */
    struct piece *pieces;
    int n_pieces, cap_pieces;
    uint64_t total;
    const struct load_options *o;
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
    for (int i = lo->w->part.first; i < lo->w->part.first + lo->w->part.n; i++) {
        const struct plan_weight *w = &lo->p->weights[i];
        struct range here = weights_members(lo->w, i);
        size_t bytes = row_bytes(w);
        int32_t rows = range_n(w->row), step = rows;
        lo->total += bytes * (size_t)rows * (size_t)range_n(here);
        bool whole = w->stacked && strstr(w->name, "_b_proj.*"); /* load_part */
        if (w->matrix && bytes && !whole)
            step = (int32_t)MIN((size_t)rows, ROUND_UP(MAX(PIECE_BYTES / bytes, (size_t)1), WMAT_PANEL));
        for (int32_t k = here.begin; k < here.end; k++)
            for (int32_t at = 0; at < rows; at += step) {
                XGROW(lo->pieces, lo->n_pieces, lo->cap_pieces);
                lo->pieces[lo->n_pieces++] = (struct piece){i, k, at, MIN(step, rows - at)};
            }
    }
}

/* Float8 rows [row0, row0 + n) of columns [c0, c1) of a tensor, and the scales of their blocks. blocks: where
 * row0 and c0 lie in theirs. */
static int read_scales(const struct checkpoint *c, const struct tensor *t, const struct scale_blocks *b,
                       int64_t row0, int64_t n, int64_t c0, int64_t c1, struct buf *scales,
                       size_t *ret_stride, struct err *e)
{
    const struct tensor *s = scales_of(c, t);
    int64_t r0 = row0 / b->scale_rows, r1 = (row0 + n + b->scale_rows - 1) / b->scale_rows,
            k0 = c0 / b->scale_cols, k1 = (c1 + b->scale_cols - 1) / b->scale_cols;
    if (!s || s->n_dims != 2 || s->dtype != DT_F32 || r1 > s->dim[0] || k1 > s->dim[1])
        return err_set(e, ERR_FORMAT,
                       "%s: its scales (%s_scale_inv) should be f32, one for each block of %d x %d", t->name,
                       t->name, b->scale_rows, b->scale_cols);
    *ret_stride = sizeof(float) * (size_t)(k1 - k0);
    buf_clear(scales);
    buf_reserve(scales, *ret_stride * (size_t)(r1 - r0));
    return checkpoint_read(c, s, r0, r1, k0, k1, scales->s, e);
}

/* Float8 codes in `bytes` to floats in `plain`, scales applied. */
static int expand_f8(const struct loader *lo, const struct plan_weight *w, const struct tensor *t,
                     int64_t row0, int32_t n, int64_t c0, int64_t c1, const struct buf *bytes,
                     struct buf *plain, struct err *e)
{
    struct buf scales = BUF_INIT;
    struct scale_blocks b =
        scale_blocks_at(w->blocks.scale_rows, w->blocks.scale_cols, (int32_t)row0, (int32_t)c0);
    size_t stride;
    int rc = read_scales(lo->c, t, &b, row0, n, c0, c1, &scales, &stride, e);
    buf_clear(plain);
    buf_reserve(plain, sizeof(float) * (size_t)n * (size_t)(c1 - c0));
    if (!rc)
        f8_rows_to_f32(bytes->s, (size_t)(c1 - c0), n, (int32_t)(c1 - c0), &b, scales.s, stride,
                       (float *)(void *)plain->s);
    buf_release(&scales);
    return rc;
}

/* A head's part of kv_b_proj, whole: as floats unless its own 16 bits will do, and turned if need be. */
static int load_part(struct loader *lo, const struct piece *x, const struct source *src, struct buf *bytes,
                     struct err *e)
{
    const struct plan_weight *w = &lo->p->weights[x->weight];
    struct wmat *m = &lo->w->mat[x->weight][x->member];
    const struct tensor *t = src->tensor;
    int64_t cols = t->dim[t->n_dims - 1], rows = src->rows;
    size_t stride = dtype_bytes(w->src, (size_t)cols),
           size = w->dtype == w->src ? dtype_bytes(w->src, 1) : sizeof(float);
    buf_clear(bytes);
    buf_reserve(bytes, stride * (size_t)rows);
    int rc = checkpoint_read(lo->c, t, src->row0, src->row0 + rows, 0, cols, bytes->s, e);
    if (rc)
        return rc;
    struct buf plain = BUF_INIT, turned = BUF_INIT;
    const char *at = bytes->s;
    if (w->dtype != w->src) {
        buf_reserve(&plain, sizeof(float) * (size_t)(rows * cols));
        if (w->src == DT_F8_E4M3)
            rc = expand_f8(lo, w, t, src->row0, (int32_t)rows, 0, cols, bytes, &plain, e);
        for (int64_t i = 0; i < rows && w->src != DT_F8_E4M3; i++)
            dequant_row(w->src, bytes->s + (size_t)i * stride, cols, (float *)(void *)plain.s + i * cols);
        at = plain.s;
    }
    if (src->turned) {
        buf_reserve(&turned, size * (size_t)(rows * cols));
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < cols; k++)
                memcpy(turned.s + (size_t)(k * rows + i) * size, at + (size_t)(i * cols + k) * size, size);
        at = turned.s;
    }
    if (!rc)
        wmat_pack(m, 0, m->rows, w->dtype, at, size * (size_t)m->cols);
    buf_release(&plain);
    buf_release(&turned);
    atomic_fetch_add(&lo->done, stride * (size_t)rows);
    return rc;
}

/* Rows of float8: packed with their scales, or quantised from their values. */
static int pack_f8(struct loader *lo, const struct piece *x, const struct source *src,
                   const struct buf *bytes, struct err *e)
{
    const struct plan_weight *w = &lo->p->weights[x->weight];
    struct wmat *m = &lo->w->mat[x->weight][x->member];
    int64_t row0 = w->row.begin + x->row0, c0 = w->col.begin, c1 = w->col.end;
    struct buf b = BUF_INIT;
    size_t stride;
    int rc;
    if (w->dtype == DT_F8_E4M3) {
        rc = read_scales(lo->c, src->tensor, &w->blocks, row0, x->n_rows, c0, c1, &b, &stride, e);
        if (!rc)
            wmat_pack_f8(m, x->row0, x->n_rows, bytes->s, (size_t)(c1 - c0), b.s, stride);
    } else {
        rc = expand_f8(lo, w, src->tensor, row0, x->n_rows, c0, c1, bytes, &b, e);
        if (!rc)
            wmat_pack(m, x->row0, x->n_rows, DT_F32, b.s, sizeof(float) * (size_t)(c1 - c0));
    }
    buf_release(&b);
    return rc;
}

static int load_piece(struct loader *lo, const struct piece *x, struct buf *bytes, struct err *e)
{
    const struct plan_weight *w = &lo->p->weights[x->weight];
    if (lo->slices) {
        atomic_fetch_add(&lo->done, row_bytes(w) * (size_t)x->n_rows);
        return slices_cut(lo->slices, lo->w, x->weight, x->member, x->row0, x->n_rows, e);
    }
    struct source src = source_of(lo->c, w->name, w->stack.begin + x->member);
    if (src.of_kv_b || (w->dtype == DT_F32 && w->src != DT_F32 && w->matrix))
        return load_part(lo, x, &src, bytes, e);
    size_t stride = row_bytes(w), n = stride * (size_t)x->n_rows;
    int64_t c0, c1;
    stored_columns(w, &c0, &c1);
    buf_clear(bytes);
    buf_reserve(bytes, n);
    int64_t row0 = src.row0 + w->row.begin + x->row0;
    int rc = checkpoint_read(lo->c, src.tensor, row0, row0 + x->n_rows, c0, c1, bytes->s, e);
    if (rc)
        return rc;
    if (w->src == DT_F8_E4M3 && w->matrix)
        rc = pack_f8(lo, x, &src, bytes, e);
    else if (w->matrix)
        wmat_pack(&lo->w->mat[x->weight][x->member], x->row0, x->n_rows, w->src, bytes->s, stride);
    else
        dequant_row(w->src, bytes->s, c1 - c0, lo->w->vec[x->weight]);
    atomic_fetch_add(&lo->done, n);
    return rc;
}

static void load_some(void *ctx, int ith, int nth)
{
    struct loader *lo = ctx;
    struct buf bytes = BUF_INIT;
    for (int i; !atomic_load(&lo->failed) && (i = atomic_fetch_add(&lo->next, 1)) < lo->n_pieces;) {
        if (load_piece(lo, &lo->pieces[i], &bytes, &lo->errs[ith]))
            atomic_store(&lo->failed, true);
        if (ith == 0 && lo->o->progress)
            lo->o->progress(lo->o->progress_ctx, atomic_load(&lo->done), lo->total);
    }
    buf_release(&bytes);
}

int load_into(const struct checkpoint *c, struct weights *w, const struct load_options *o, struct err *e)
{
    struct loader lo = {.c = c, .p = w->plan, .w = w, .o = o};
    struct pool *pool = NULL;
    int rc = pool_new(o->threads, true, NULL, &pool, e);
    bool all = w->part.n == w->plan->n_weights && w->part.experts.end;
    if (!rc && checkpoint_shardset(c))
        rc = slices_open(checkpoint_shardset(c), w->plan, all, &lo.slices, e);
    if (rc)
        goto done;
    XNEW_N(lo.errs, (size_t)o->threads);
    list_pieces(&lo);
    pool_run(pool, load_some, &lo);
    for (int i = 0; i < o->threads && !rc; i++)
        if (lo.errs[i].code) {
            rc = lo.errs[i].code;
            if (e)
                *e = lo.errs[i];
        }
    if (o->progress && !rc)
        o->progress(o->progress_ctx, lo.total, lo.total);
done:
    pool_free(pool);
    slices_close(lo.slices);
    xfree(lo.pieces);
    xfree(lo.errs);
    mem_trim(); /* buffers of slices, megabytes of them */
    return rc;
}

/* What was asked for and what is there, and what would be legal. */
static int another_split(const struct shardset *s, const struct plan *p, const struct err *why, struct err *e)
{
    const struct shardset_info *i = shardset_info(s);
    int ranks = slices_n_ranks(p);
    if (i->tp == p->opt.tp && i->pp == p->opt.pp && i->ep == p->opt.ep && i->ranks == ranks)
        return err_set(e, ERR_SPLIT, "%s; the set was written for another model or version: write it again",
                       why->msg);
    return err_set(e, ERR_SPLIT,
                   "%s was written for --tp %d --pp %d --ep %d (%d ranks), but --tp %d --pp %d --ep %d (%d "
                   "ranks) is asked for: give the former, or --auto-trans-ckpt True to have it cut anew",
                   shardset_path(s), i->tp, i->pp, i->ep, i->ranks, p->opt.tp, p->opt.pp, p->opt.ep, ranks);
}

static int pack_part(const struct checkpoint *c, const struct plan *p, const struct weights_part *part,
                     const struct load_options *o, struct weights **ret, struct err *e)
{
    struct weights *w;
    int rc = weights_new_part(p, part, &w, e);
    if (rc)
        return rc;
    rc = load_into(c, w, o, e);
    if (rc)
        weights_free(w);
    else
        *ret = w;
    return rc;
}

/* What is no expert's, of a set that fits: read, not mapped. A file that changes under a run is then the
 * error of an expert that cannot be read, where touching a mapped page would end the process. */
static int read_rest(const struct shardset *s, struct weights *w, const struct load_options *o, struct err *e)
{
    const struct plan *p = w->plan;
    struct file f;
    size_t payload_at, done = 0;
    int rc = shardset_open_rank(s, slices_rank(p), &f, &payload_at, e);
    if (rc)
        return rc;
    for (int32_t i = 0; i < p->n_weights && !rc; i++) {
        const struct plan_weight *pw = &p->weights[i];
        if (pw->expert_layer >= 0 || !pw->bytes)
            continue;
        void *to = pw->matrix ? (void *)w->mat[i][0].data : w->vec[i];
        rc = file_read_at(&f, payload_at + weights_offset(p, i), to, pw->bytes, e);
        done += pw->bytes;
        if (o->progress)
            o->progress(o->progress_ctx, done, w->bytes);
    }
    file_close(&f);
    return rc;
}

static int load_rest(const struct checkpoint *c, const struct plan *p, bool fits,
                     const struct load_options *o, struct weights **ret, struct err *e)
{
    const struct weights_part rest = {0, p->n_weights, {0, 0}};
    if (!fits)
        return pack_part(c, p, &rest, o, ret, e);
    int rc = weights_new_part(p, &rest, ret, e);
    if (rc)
        return rc;
    rc = read_rest(checkpoint_shardset(c), *ret, o, e);
    if (rc)
        weights_free(*ret);
    return rc;
}

/* All but the experts, and a cache for those. fits: the model is a shard set, and its file is what the plan
 * wants. */
static int load_cached(const struct checkpoint *c, const struct plan *p, bool fits,
                       const struct plan_cache *size, const struct load_options *o, struct weights **ret,
                       struct err *e)
{
    struct record_reader *reader;
    struct weights *w;
    if (size->slots < size->least)
        return err_set(
            e, ERR_MEMORY,
            "an expert cache of %.3f GiB holds %d experts, but should hold the %d of one layer that a "
            "rank has here: --expert-cache %llu at least (%.3f GiB)",
            (double)o->expert_cache / 0x1p30, size->slots, size->least,
            (unsigned long long)size->slot_bytes * (unsigned)size->least,
            (double)size->slot_bytes * size->least / 0x1p30);
    int rc = load_rest(c, p, fits, o, &w, e);
    if (rc)
        return rc;
    rc = fits ? records_of_set(checkpoint_shardset(c), p, &reader, e) : records_spill(c, p, o, &reader, e);
    if (!rc) {
        rc = expert_cache_new(p, size->slots, reader, &w->cache, e);
        if (rc)
            reader->close(reader);
    }
    if (rc)
        weights_free(w);
    else
        *ret = w;
    return rc;
}

int load_weights(const struct checkpoint *c, const struct plan *p, const struct load_options *o,
                 struct weights **ret, struct err *e)
{
    const struct weights_part all = weights_all(p);
    const struct shardset *s = checkpoint_shardset(c);
    struct plan_cache size;
    struct err why;
    bool fits = s && !slices_fit(s, p, &why);
    if (s && !fits && !o->reslice)
        return another_split(s, p, &why, e);
    int rc =
        s && o->verify ? shardset_verify(s, fits ? slices_rank(p) : -1, o->progress, o->progress_ctx, e) : 0;
    if (rc)
        return rc;
    plan_cache(p, o->expert_cache ? o->expert_cache : UINT64_MAX, &size);
    if (size.slots < size.records)
        return load_cached(c, p, fits, &size, o, ret, e);
    return fits ? slices_map(s, p, ret, e) : pack_part(c, p, &all, o, ret, e);
}
