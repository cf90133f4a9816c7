#include "engine/shard.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>
#include "base/mem.h"
#include "engine/slices.h"
#include "formats/shardset.h"
#include "formats/source.h"

#define WINDOW_BYTES ((size_t)256 << 20)

const char *shard_quant_name(enum quant q)
{
    static const char *const names[] = {"none", "w8a8", "w4"};
    return names[q];
}

static int make_plan(const struct checkpoint *c, const struct graph *g, const struct shard_options *o,
                     int rank, struct plan **ret, struct err *e)
{
    struct checkpoint_source source;
    checkpoint_source_init(&source, c);
    /* Weights do not depend on what a tick may hold. */
    struct plan_options po = {.tp = o->tp,
                              .pp = o->pp,
                              .dp = o->dp,
                              .ep = o->ep,
                              .rank = rank % o->tp,
                              .stage = rank / o->tp % o->pp,
                              .lane = rank / (o->tp * o->pp),
                              .source = &source.base,
                              .quant = o->quant,
                              .kv = KV_F16,
                              .max_tokens = 1,
                              .max_out = 1,
                              .page_tokens = 1};
    return plan_make(g, &po, ret, e);
}

struct writing {
    const struct checkpoint *c;
    const struct shard_options *o;
    struct shardset_writer *w;
    uint64_t done, window, total;
};

/* A window's own progress, as a part of the whole. */
static void window_progress(void *ctx, uint64_t done, uint64_t total)
{
    const struct writing *x = ctx;
    double part = total ? (double)done / (double)total : 1;
    if (x->o->progress)
        x->o->progress(x->o->progress_ctx, x->done + (uint64_t)(part * (double)x->window), x->total);
}

static void layout_text(struct layout l, char buf[64])
{
    if (l.kind == LAY_SPLIT)
        snprintf(buf, 64, "split(%s)", axis_name(l.axis));
    else
        snprintf(buf, 64, "whole");
}

/* Of all ranks: experts, or heads. */
static int32_t stack_size(const struct plan *p, const struct plan_weight *w)
{
    return p->graph->axis_n[graph_value(p->graph, p->slots[w->slot].v)->dim[0]];
}

/* layout: storage for the tensor's. */
static void describe(const struct plan *p, const struct plan_weight *w, char layout[64],
                     struct shard_tensor *t, struct shard_part *part)
{
    layout_text(w->layout, layout);
    *t = (struct shard_tensor){.name = w->name,
                               .layout = layout,
                               .src = w->src,
                               .dtype = w->dtype,
                               .matrix = w->matrix,
                               .stacked = w->stacked,
                               .experts = w->stacked ? stack_size(p, w) : 1,
                               .rows = w->all_rows,
                               .cols = w->all_cols};
    if (w->dtype == DT_F8_E4M3) {
        t->scale_rows = w->blocks.scale_rows;
        t->scale_cols = w->blocks.scale_cols;
    }
    *part = (struct shard_part){.stack = {w->stack.begin, w->stack.end},
                                .row = {w->row.begin, w->row.end},
                                .col = {w->col.begin, w->col.end},
                                .bytes = w->bytes};
    if (w->matrix)
        part->cuts = w->cuts;
}

static int load_window(struct writing *x, const struct plan *p, const struct weights_part *part,
                       struct weights **ret, struct err *e)
{
    struct load_options lo = {.threads = x->o->threads, .progress = window_progress, .progress_ctx = x};
    int rc = weights_new_part(p, part, ret, e);
    if (rc)
        return rc;
    x->window = (*ret)->bytes;
    rc = load_into(x->c, *ret, &lo, e);
    x->done += x->window;
    if (rc)
        weights_free(*ret);
    return rc;
}

/* Weights [first, ret) fit a window. */
static int32_t window_end(const struct plan *p, int32_t first)
{
    size_t bytes = 0;
    int32_t i = first;
    while (i < p->n_weights && p->weights[i].expert_layer < 0 &&
           (i == first || bytes + p->weights[i].bytes <= WINDOW_BYTES))
        bytes += ROUND_UP(p->weights[i++].bytes, 64);
    return i;
}

static int write_window(struct writing *x, const struct plan *p, int32_t first, int32_t end, struct err *e)
{
    const struct weights_part window = {first, end - first, {0, 0}};
    struct weights *w;
    int rc = load_window(x, p, &window, &w, e);
    if (rc)
        return rc;
    const uint8_t *data = w->memory;
    for (int32_t i = first; i < end && !rc; i++) {
        struct shard_tensor t;
        struct shard_part part;
        char layout[64];
        describe(p, &p->weights[i], layout, &t, &part);
        rc = shardset_add(x->w, &t, &part, data, e);
        data += ROUND_UP(p->weights[i].bytes, 64);
    }
    weights_free(w);
    return rc;
}

/* A layer's experts, some at a time. */
static int write_experts(struct writing *x, const struct plan *p, const struct expert_layer *l, struct err *e)
{
    struct shard_tensor t[RECORD_PARTS];
    struct shard_part part[RECORD_PARTS];
    char layout[RECORD_PARTS][64];
    for (int i = 0; i < RECORD_PARTS; i++)
        describe(p, &p->weights[l->weight + i], layout[i], &t[i], &part[i]);
    int rc = shardset_begin_records(x->w, RECORD_PARTS, t, part, l->at, l->bytes, e);
    int32_t n = range_n(l->stack), step = (int32_t)MAX(WINDOW_BYTES / l->bytes, (size_t)1);
    for (int32_t k = 0; k < n && !rc; k += step) {
        const struct weights_part window = {l->weight, RECORD_PARTS, {k, MIN(k + step, n)}};
        struct weights *w;
        rc = load_window(x, p, &window, &w, e);
        if (rc)
            break;
        rc = shardset_add_records(x->w, range_n(window.experts), w->memory, e);
        weights_free(w);
    }
    return rc;
}

static int write_rank(struct writing *x, const struct graph *g, int rank, struct err *e)
{
    struct plan *p;
    int rc = make_plan(x->c, g, x->o, rank, &p, e);
    if (rc)
        return rc;
    rc = shardset_begin_rank(x->w, rank, p->n_weights, e);
    for (int32_t i = 0, end; i < p->n_weights && !rc; i = end) {
        int32_t layer = p->weights[i].expert_layer;
        end = layer < 0 ? window_end(p, i) : i + RECORD_PARTS;
        rc = layer < 0 ? write_window(x, p, i, end, e) : write_experts(x, p, &p->expert_layers[layer], e);
    }
    if (!rc)
        rc = shardset_end_rank(x->w, e);
    plan_free(p);
    return rc;
}

/* Everything that can be wrong about model and split is found here, before a byte is written. */
static int check_all(const struct checkpoint *c, const struct graph *g, const struct shard_options *o,
                     struct warn_sink *warn, int *ret_ranks, uint64_t *ret_bytes, struct err *e)
{
    int rc = load_check(c, g, warn, e);
    *ret_bytes = 0;
    *ret_ranks = 1; /* until the first plan knows */
    for (int r = 0; r < *ret_ranks && !rc; r++) {
        struct plan *p;
        rc = make_plan(c, g, o, r, &p, e);
        if (rc)
            break;
        *ret_bytes += weights_offset(p, p->n_weights);
        *ret_ranks = slices_n_ranks(p);
        plan_free(p);
    }
    return rc;
}

static bool same_folder(const char *a, const char *b)
{
    char ra[PATH_MAX], rb[PATH_MAX];
    return realpath(a, ra) && realpath(b, rb) && !strcmp(ra, rb);
}

static void digest_of(const struct graph *g, char ret[33])
{
    struct buf b = BUF_INIT;
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};
    graph_print(g, &b);
    EVP_Digest(b.s, b.len, digest, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 16; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    buf_release(&b);
}

int shard_write(const struct checkpoint *c, const struct graph *g, const struct shard_options *options,
                struct warn_sink *warn, struct err *e)
{
    struct shard_options o = *options;
    o.tp = MAX(o.tp, 1);
    o.pp = MAX(o.pp, 1);
    o.dp = MAX(o.dp, 1);
    o.ep = MAX(o.ep, 1);
    struct writing x = {.c = c, .o = &o};
    int ranks;
    json_t *source = NULL;
    char graph[33];
    const struct shardset *from = checkpoint_shardset(c);
    if (same_folder(checkpoint_path(c), o.out))
        return err_set(e, ERR_USAGE, "%s is the model itself; give another folder to write to", o.out);
    int rc = check_all(c, g, &o, warn, &ranks, &x.total, e);
    if (!rc && !from)
        rc = source_describe(c, o.full, &source, e);
    if (rc)
        return rc;
    digest_of(g, graph);
    struct shardset_info info = {.ranks = ranks,
                                 .tp = o.tp,
                                 .ep = o.ep,
                                 .pp = o.pp,
                                 .quant = shard_quant_name(o.quant),
                                 .yoke = o.yoke,
                                 .graph = graph,
                                 .source = from ? shardset_info(from)->source : source};
    rc = shardset_create(o.out, &info, x.total, &x.w, e);
    for (int r = 0; r < ranks && !rc; r++)
        rc = write_rank(&x, g, r, e);
    if (!rc)
        rc = shardset_add_model(x.w, c, o.config_dir, e);
    if (rc)
        shardset_abort(x.w);
    else
        rc = shardset_commit(x.w, e);
    json_decref(source);
    return rc;
}
