/* yoke plan: what a split would cost and do, without loading a weight. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/plan_auto.h"
#include "cli/session.h"

struct planner {
    struct session *x;
    struct plan_options opt;
    struct checkpoint_source source;
    struct plan **ranks; /* [n_ranks]: one replica's, tp the fast index; of all if they share experts */
    int tp, pp, n_ranks;
};

static int make_plans(struct planner *p, int tp, struct err *e)
{
    p->tp = p->opt.tp = tp;
    p->pp = MAX(p->opt.pp, 1);
    p->n_ranks = tp * p->pp * (experts_spread(p->x->graph, tp, p->opt.dp, p->opt.ep) ? p->opt.dp : 1);
    XNEW_N(p->ranks, (size_t)p->n_ranks);
    for (int r = 0; r < p->n_ranks; r++) {
        p->opt.rank = r % tp;
        p->opt.stage = r / tp % p->pp;
        p->opt.lane = r / (tp * p->pp);
        int rc = plan_make(p->x->graph, &p->opt, &p->ranks[r], e);
        if (rc)
            return rc;
    }
    return 0;
}

static void free_plans(struct planner *p)
{
    for (int r = 0; p->ranks && r < p->n_ranks; r++)
        plan_free(p->ranks[r]);
    xfree(p->ranks);
    p->ranks = NULL;
}

static const char *layout_text(struct layout l, char *buf, size_t n)
{
    if (l.kind == LAY_SPLIT)
        snprintf(buf, n, "split(%s)", axis_name(l.axis));
    else
        snprintf(buf, n, "%s", l.kind == LAY_WHOLE ? "whole" : "partial");
    return buf;
}

static double gib(double bytes)
{
    return bytes / 0x1p30;
}

/* Bytes in the unit that suits them: "12.3 KiB". */
static const char *size_text(double bytes, char *buf, size_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    for (; bytes >= 1024 && u + 1 < ARRAY_LEN(units); u++)
        bytes /= 1024;
    snprintf(buf, n, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

/* What a step makes one rank send for one row; 0: nothing. */
static size_t sent_bytes(const struct plan *p, const struct step *s)
{
    return plan_step_bytes(p, s, 1) + plan_spread_bytes(p, s);
}

/* The layer of a weight, from the first step that uses it. */
static int layer_of(const struct plan *p, const struct plan_weight *w)
{
    for (int32_t i = 0; i < p->n_steps; i++)
        for (int k = 0; k < STEP_MAX_IN; k++)
            if (p->steps[i].in[k] == w->slot)
                return p->steps[i].layer;
    return -1;
}

static const char *name_in_layer(const char *name)
{
    const char *at = strstr(name, ".layers.");
    return at && strchr(at + 8, '.') ? strchr(at + 8, '.') + 1 : name;
}

static bool holds_experts(const struct plan *p, const struct plan_weight *w)
{
    return w->stacked && graph_value(p->graph, p->slots[w->slot].v)->dim[0] == AX_EXPERT;
}

/* One layer's tensors and collectives as lines (names without the layer's number, so that equal layers are
 * equal text). */
static void layer_text(const struct plan *p, int layer, struct buf *out)
{
    char a[64], b[32];
    for (int i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = &p->weights[i];
        if (layer_of(p, w) != layer)
            continue;
        buf_addf(out, "  %-36s %-6s %-16s", name_in_layer(w->name), dtype_name(w->dtype),
                 layout_text(w->layout, a, sizeof(a)));
        if (holds_experts(p, w))
            buf_addf(out, " [%d of %d experts, ", range_n(w->stack), p->graph->axis_n[AX_EXPERT]);
        else if (w->matrix)
            buf_adds(out, " [");
        if (w->matrix)
            buf_addf(out, "%d of %lld, %d of %lld]", range_n(w->row), (long long)w->all_rows, range_n(w->col),
                     (long long)w->all_cols);
        else
            buf_addf(out, " [%d of %lld]", range_n(w->col), (long long)w->all_cols);
        buf_addf(out, " %s\n", size_text((double)w->bytes, b, sizeof(b)));
    }
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct step *s = &p->steps[i];
        if (s->layer == layer && sent_bytes(p, s))
            buf_addf(out, "  > %-34s %s a %s\n", step_name(s->kind),
                     size_text((double)sent_bytes(p, s), b, sizeof(b)),
                     p->slots[s->in[0]].row_axis == AX_OUT ? "wanted logit row" : "token");
    }
}

/* The plan of the first rank of the stage that has a layer (-1: the embedding's). */
static const struct plan *plan_of_layer(const struct planner *p, int layer)
{
    for (int s = 0; s < p->pp; s++)
        if (layer < p->ranks[s * p->tp]->layers.end)
            return p->ranks[s * p->tp];
    return p->ranks[0];
}

static void print_layers(const struct planner *p, int n_layers)
{
    struct buf last = BUF_INIT, now = BUF_INIT;
    int first = 0;
    printf("\noutside the layers (a stage's first rank)\n");
    layer_text(p->ranks[0], -1, &now);
    if (p->pp > 1)
        layer_text(p->ranks[(p->pp - 1) * p->tp], -1, &now);
    fputs(now.s, stdout);
    for (int l = 0; l <= n_layers; l++) {
        buf_clear(&now);
        if (l < n_layers)
            layer_text(plan_of_layer(p, l), l, &now);
        if (l && (l == n_layers || strcmp(now.s, last.s))) {
            printf(first == l - 1 ? "layer %d\n" : "layers %d to %d, each\n", first, l - 1);
            fputs(last.s, stdout);
            first = l;
        }
        buf_clear(&last);
        buf_add(&last, now.s, now.len);
    }
    buf_release(&last);
    buf_release(&now);
}

static int64_t max_context(const struct session *x)
{
    int64_t asked = x->settings->seq_length;
    return asked && asked < x->hparams.max_position ? asked : x->hparams.max_position;
}

/* How much of a rank's experts is in memory, and what its weights take then. */
static struct plan_cache held(const struct planner *p, const struct plan *q)
{
    struct plan_cache c;
    uint64_t size = p->x->settings->expert_cache;
    plan_cache(q, size ? size : UINT64_MAX, &c);
    return c;
}

static size_t resident(const struct planner *p, const struct plan *q)
{
    return held(p, q).weight_bytes;
}

/* Ranks of one kind as one line. */
static void print_cache(const struct planner *p)
{
    char cache[32], record[32];
    printf("\nexpert cache of %s a rank:\n",
           size_text((double)p->x->settings->expert_cache, cache, sizeof(cache)));
    for (int first = 0, r = 1; r <= p->n_ranks; r++) {
        struct plan_cache a = held(p, p->ranks[first]), b = held(p, p->ranks[MIN(r, p->n_ranks - 1)]);
        if (r < p->n_ranks && a.records == b.records && a.slots == b.slots && a.slot_bytes == b.slot_bytes)
            continue;
        printf(first == r - 1 ? "  rank %d: " : "  ranks %d to %d, each: ", first, r - 1);
        if (!a.records)
            printf("no experts\n");
        else if (a.slots == a.records)
            printf("all %d experts (of all layers) are in memory\n", a.records);
        else
            printf("%d of %d experts (of all layers; %.0f%%) are in memory, the others are read from disk, "
                   "%s each\n",
                   a.slots, a.records, 100.0 * a.slots / a.records,
                   size_text((double)a.slot_bytes, record, sizeof(record)));
        first = r;
    }
}

static void print_ranks(const struct planner *p)
{
    int64_t context = max_context(p->x);
    printf("%-6s %14s %16s %22s %12s %14s\n", "rank", "weights", "KV a token", "KV at max length", "work",
           "sum");
    for (int r = 0; r < p->n_ranks; r++) {
        const struct plan *q = p->ranks[r];
        double kv = (double)plan_kv_token_bytes(q), full = kv * (double)context;
        char kv_text[32];
        double weights = (double)resident(p, q);
        printf("%-6d %10.3f GiB %16s %18.3f GiB %8.3f GiB %10.3f GiB\n", r, gib(weights),
               size_text(kv, kv_text, sizeof(kv_text)), gib(full), gib((double)q->work_bytes),
               gib(weights + full + (double)q->work_bytes));
    }
    if (p->x->settings->expert_cache)
        print_cache(p);
}

/* Tokens of KV that fit beside weights and work on the fullest rank. */
static int64_t tokens_that_fit(const struct planner *p, uint64_t memory)
{
    int64_t least = INT64_MAX;
    for (int r = 0; r < p->n_ranks; r++) {
        const struct plan *q = p->ranks[r];
        uint64_t fixed = resident(p, q) + q->work_bytes;
        int64_t pages = memory > fixed ? (int64_t)((memory - fixed) / q->kv_page_bytes) : 0;
        least = MIN(least, pages * q->opt.page_tokens);
    }
    return least;
}

/* The cache holds a layer's experts of every rank. */
static bool cache_fits(const struct planner *p)
{
    bool fits = true;
    for (int r = 0; r < p->n_ranks; r++)
        fits &= held(p, p->ranks[r]).slots >= held(p, p->ranks[r]).least;
    return fits;
}

/* The smallest degree at which at least one full context fits; 0 if none does. */
static int smallest_degree(const struct planner *p, uint64_t memory)
{
    struct err e;
    for (int tp = 1; tp <= PLAN_MAX_RANKS; tp++) {
        struct planner q = {.x = p->x, .opt = p->opt};
        int rc = make_plans(&q, tp, &e);
        bool fits = !rc && cache_fits(&q) && tokens_that_fit(&q, memory) >= max_context(p->x);
        free_plans(&q);
        if (fits)
            return tp;
    }
    return 0;
}

static void print_memory(const struct planner *p, uint64_t memory)
{
    int64_t tokens = tokens_that_fit(p, memory), context = max_context(p->x);
    printf("\nwith %.2f GiB a rank: ", gib((double)memory));
    if (tokens) {
        printf("%lld tokens of KV fit\n", (long long)tokens);
        for (int64_t batch = 1; batch <= 64 && tokens / batch; batch *= 4)
            printf("  batch %-3lld  longest context %lld%s\n", (long long)batch,
                   (long long)MIN(tokens / batch, context),
                   tokens / batch >= context ? " (the model's limit)" : "");
        if (tokens >= context)
            printf("  at the full context of %lld tokens: batch %lld\n", (long long)context,
                   (long long)(tokens / context));
    } else {
        printf("weights and work alone do not fit\n");
    }
    if (tokens < context) {
        int tp = smallest_degree(p, memory);
        if (tp)
            printf("  the smallest degree at which a full context fits is --tp %d\n", tp);
        else
            printf("  no degree of tensor parallelism fits a full context; more memory, a smaller --quant or "
                   "--seq-length would\n");
    }
}

static json_t *layer_json(const struct plan *p, int layer)
{
    char text[64];
    json_t *tensors = json_array(), *collectives = json_array();
    for (int i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = &p->weights[i];
        if (layer_of(p, w) != layer)
            continue;
        json_t *tensor = json_pack("{s:s, s:s, s:s, s:[i,i], s:[i,i], s:I}", "name", w->name, "dtype",
                                   dtype_name(w->dtype), "layout", layout_text(w->layout, text, sizeof(text)),
                                   "rows", w->row.begin, w->row.end, "columns", w->col.begin, w->col.end,
                                   "bytes", (json_int_t)w->bytes);
        if (holds_experts(p, w))
            json_object_set_new(tensor, "experts", json_pack("[i,i]", w->stack.begin, w->stack.end));
        json_array_append_new(tensors, tensor);
    }
    for (int32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].layer == layer && sent_bytes(p, &p->steps[i]))
            json_array_append_new(
                collectives,
                json_pack("{s:s, s:I, s:s}", "kind", step_name(p->steps[i].kind), "bytes_per_row",
                          (json_int_t)sent_bytes(p, &p->steps[i]), "rows",
                          p->slots[p->steps[i].in[0]].row_axis == AX_OUT ? "wanted logits" : "tokens"));
    return json_pack("{s:i, s:o, s:o}", "layer", layer, "tensors", tensors, "collectives", collectives);
}

static json_t *cache_json(const struct planner *p, const struct plan *q)
{
    struct plan_cache c = held(p, q);
    return json_pack("{s:i, s:i, s:I, s:I}", "experts", c.records, "held", c.slots, "bytes",
                     (json_int_t)c.bytes, "expert_bytes", (json_int_t)c.slot_bytes);
}

static void print_json(const struct planner *p)
{
    const struct session *x = p->x;
    json_t *ranks = json_array();
    for (int r = 0; r < p->n_ranks; r++) {
        const struct plan *q = p->ranks[r];
        json_t *layers = json_array();
        for (int l = -1; l < x->hparams.layers; l++)
            json_array_append_new(layers, layer_json(q, l));
        json_t *rank =
            json_pack("{s:i, s:I, s:I, s:I, s:I, s:o}", "rank", r, "weight_bytes", (json_int_t)resident(p, q),
                      "kv_bytes_per_token", (json_int_t)plan_kv_token_bytes(q), "kv_bytes_at_max_length",
                      (json_int_t)plan_kv_token_bytes(q) * max_context(x), "work_bytes",
                      (json_int_t)q->work_bytes, "layers", layers);
        if (x->settings->expert_cache)
            json_object_set_new(rank, "expert_cache", cache_json(p, q));
        json_array_append_new(ranks, rank);
    }
    json_t *o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:b, s:I, s:b, s:s, s:s, s:o}", "model",
                          x->settings->weights, "tp", p->tp, "pp", p->pp, "dp", p->opt.dp, "ep", p->opt.ep,
                          "experts_spread", (int)plan_spreads(p->ranks[0]), "max_context",
                          (json_int_t)max_context(x), "bits_equal", (int)p->ranks[0]->bits_equal,
                          "bits_why_not", p->ranks[0]->why_not, "plan_hash", "", "ranks", ranks);
    char hash[32];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)plan_hash(p->ranks[0]));
    json_object_set_new(o, "plan_hash", json_string(hash));
    if (x->settings->memory) {
        json_object_set_new(o, "memory", json_integer((json_int_t)x->settings->memory));
        json_object_set_new(o, "kv_tokens_that_fit", json_integer(tokens_that_fit(p, x->settings->memory)));
        json_object_set_new(o, "smallest_tp_for_full_context",
                            json_integer(smallest_degree(p, x->settings->memory)));
    }
    json_dumpf(o, stdout, JSON_INDENT(1));
    fputc('\n', stdout);
    json_decref(o);
}

static void print_text(const struct planner *p)
{
    const struct session *x = p->x;
    const struct hparams *h = &x->hparams;
    printf("%s: %d layers, hidden %d, %d heads on %d KV heads of %d, ffn %d, vocabulary %d, context %lld\n",
           x->settings->weights, h->layers, h->hidden, h->heads, h->kv_heads, h->head_dim, h->ffn, h->vocab,
           (long long)max_context(x));
    printf("tensor parallelism %d, pipeline %d, experts %d, replicas %d; ticks of at most %d tokens; pages "
           "of %d tokens\n",
           p->tp, p->pp, p->opt.ep, p->opt.dp, p->opt.max_tokens, p->opt.page_tokens);
    struct buf experts = BUF_INIT;
    plan_print_experts(p->ranks[0], &experts);
    if (experts.len)
        printf("experts: %s\n", experts.s);
    buf_release(&experts);
    printf("bits: %s%s\n\n",
           p->ranks[0]->bits_equal ? "the same as on one rank, whatever the batch"
                                   : "not those of one rank: ",
           p->ranks[0]->why_not);
    print_ranks(p);
    if (x->settings->memory)
        print_memory(p, x->settings->memory);
    print_layers(p, h->layers);
}

/* Every replica's ranks, as experts may be spread over them. */
static int check_cache(const struct planner *p, int tp, struct err *e)
{
    struct session_cache cache = {0};
    int rc = 0;
    for (int lane = 0; lane < MAX(p->opt.dp, 1) && p->x->settings->expert_cache && !rc; lane++) {
        struct planner q = {.x = p->x, .opt = p->opt};
        q.opt.lane = lane;
        rc = make_plans(&q, tp, e);
        for (int r = 0; r < q.n_ranks && !rc; r++)
            session_cache_add(&cache, q.ranks[r], p->x->settings->expert_cache);
        free_plans(&q);
    }
    return rc ? rc : session_cache_check(&cache, p->x->settings, e);
}

int command_plan(struct settings *s, struct warn_sink *warn, struct err *e)
{
    struct session x;
    struct planner p = {.x = &x};
    if (s->advise && s->expert_cache)
        return err_set(
            e, ERR_USAGE,
            "--auto does not weigh --expert-cache: what reading experts costs depends on which ones are "
            "chosen; look at a split of your own with yoke plan --expert-cache");
    if (s->advise)
        return plan_advise(s, warn, e);
    int rc = session_open(s, 0, 1, 0, warn, &x, e);
    if (!rc) {
        int32_t batch = s->max_batch ? (int32_t)s->max_batch : 1;
        checkpoint_source_init(&p.source, x.checkpoint);
        p.opt = (struct plan_options){.source = &p.source.base,
                                      .pp = (int)s->pp,
                                      .ep = (int)s->ep,
                                      .dp = (int)s->dp,
                                      .quant = (enum quant)s->quant,
                                      .kv = session_kv_dtype(s, x.checkpoint),
                                      .max_tokens = MAX((int32_t)s->prefill_chunk, batch),
                                      .max_out = batch,
                                      .page_tokens = (int32_t)s->block_size};
        rc = make_plans(&p, (int)s->tp, e);
        if (rc)
            err_prefix(e, "%s", s->weights);
        else
            rc = check_cache(&p, (int)s->tp, e);
    }
    if (!rc) {
        if (s->format == FORMAT_JSON)
            print_json(&p);
        else
            print_text(&p);
    }
    free_plans(&p);
    session_close(&x);
    return rc;
}
