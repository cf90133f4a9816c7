/* split.c: where axes are cut.
 *
 * An axis of N elements with granularity g has U = ceil(N / g) units. Over n ranks, rank r gets units
 * [floor(r U / n), floor((r+1) U / n)). The summation tree cuts a contraction axis the same way into
 * YOKE_CHUNKS chunks; since floor(c U / 8) at c = 8 r / n is floor(r U / n), every rank's range is a whole
 * number of chunks when n divides 8, however uneven U is: that is why the bits are the same at degree 1, 2, 4
 * and 8.
 */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "plan/internal.h"

static int32_t gcd(int32_t a, int32_t b)
{
    while (b) {
        int32_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

static int32_t bound(int32_t n_elements, int32_t gran, int r, int n)
{
    int64_t units = (n_elements + gran - 1) / gran;
    int64_t at = units * r / n * gran;
    return (int32_t)MIN(at, n_elements);
}

struct range plan_part(const struct plan *p, enum axis a, int r, int n)
{
    const int32_t *axis_n = p->graph->axis_n;
    if (a == AX_KV_HEAD) {
        struct range q = plan_part(p, AX_HEAD, r, n);
        int32_t share = axis_n[AX_HEAD] / axis_n[AX_KV_HEAD];
        return (struct range){q.begin / share, range_n(q) ? (q.end + share - 1) / share : q.begin / share};
    }
    return (struct range){bound(axis_n[a], p->gran[a], r, n), bound(axis_n[a], p->gran[a], r + 1, n)};
}

void split_place(const struct plan *p, enum axis a, int *ret_rank, int *ret_n)
{
    int slices = plan_expert_slices(p); /* of an expert: the fast index, as in MindFormers */
    int all = plan_spreads(p) ? p->opt.lane * p->opt.tp + p->opt.rank : p->opt.rank;
    *ret_rank = a == AX_EXPERT ? all / slices : a == AX_MOE_FFN ? all % slices : p->opt.rank;
    *ret_n = a == AX_EXPERT ? p->opt.ep : a == AX_MOE_FFN ? slices : p->opt.tp;
}

struct range split_mine(const struct plan *p, enum axis a)
{
    int rank, n;
    split_place(p, a, &rank, &n);
    return plan_part(p, a, rank, n);
}

/* An axis that integer weights contract must be cut at multiples of their groups of 32: with inner axes of m
 * elements behind it, at multiples of 32 / gcd(32, m). */
static void need_groups(struct plan *p, enum axis a, int32_t inner)
{
    int32_t need = 32 / gcd(32, inner), *have = &p->gran[a];
    *have = *have / gcd(*have, need) * need;
}

void split_granularity(struct plan *p, const enum dtype *held)
{
    const struct graph *g = p->graph;
    for (int a = 0; a < AX_COUNT; a++)
        p->gran[a] = 1;
    for (int i = 0; i < g->n_ops; i++) {
        const struct op *o = &g->ops[i];
        if (o->kind == OP_EXPERTS && act_kind_of(held[o->in[2].id]) != ACT_F32)
            need_groups(p, AX_EMBED, 1);
        if (o->kind == OP_EXPERTS && act_kind_of(held[o->in[4].id]) != ACT_F32)
            need_groups(p, AX_MOE_FFN, 1);
        if (o->kind != OP_MATMUL || act_kind_of(held[o->in[1].id]) == ACT_F32)
            continue;
        const struct value *x = graph_value(g, o->in[0]);
        int32_t inner = 1;
        for (int d = 2; d < x->n_dims; d++)
            inner *= g->axis_n[x->dim[d]];
        need_groups(p, x->dim[1], inner);
    }
}

void plan_legal_degrees(const struct graph *g, const int32_t *gran, int max, struct buf *out)
{
    int32_t units = INT32_MAX;
    const enum axis cut[] = {AX_HEAD, AX_FFN, AX_SHARED_FFN};
    for (size_t i = 0; i < ARRAY_LEN(cut); i++)
        if (g->axis_n[cut[i]])
            units = MIN(units, (g->axis_n[cut[i]] + gran[cut[i]] - 1) / gran[cut[i]]);
    units = MIN(units, max);
    if (units <= 16)
        for (int n = 1; n <= units; n++)
            buf_addf(out, "%s%d", n > 1 ? ", " : "", n);
    else
        buf_addf(out, "1 to %d", units);
}

/* Within a replica an all-reduce adds each rank's weighted sum, of whole experts or of parts: only the former
 * is one rank's sum. Where experts are spread, the parts of each expert come back and are added before they
 * are weighted, as the tree of its inner axis has it. */
static void explain_bits(struct plan *p)
{
    int n = p->opt.tp, slices = plan_expert_slices(p);
    bool spread = plan_spreads(p);
    p->bits_equal = false;
    if (YOKE_CHUNKS % n)
        snprintf(p->why_not, sizeof(p->why_not),
                 "the summation tree has %d chunks, which %d ranks cannot share evenly; degrees 1, 2, 4 and "
                 "8 keep the bits",
                 YOKE_CHUNKS, n);
    else if (p->graph->axis_n[AX_EXPERT] && slices > 1 && !spread)
        snprintf(p->why_not, sizeof(p->why_not),
                 "experts are sliced over %d ranks, so that weighted sums of parts are added; --ep %d keeps "
                 "them whole, and the bits",
                 slices, n);
    else if (spread && YOKE_CHUNKS % slices)
        snprintf(p->why_not, sizeof(p->why_not),
                 "experts are sliced over %d ranks, which cannot share the %d chunks of the summation tree "
                 "evenly; 1, 2, 4 and 8 can",
                 slices, YOKE_CHUNKS);
    else
        p->bits_equal = true;
}

/* Every rank has experts, and of each some columns of its inner axis. */
static bool legal_experts(const struct plan *p, int ep)
{
    const struct graph *g = p->graph;
    int n = p->opt.dp * p->opt.tp, experts = g->axis_n[AX_EXPERT];
    if (n % ep || ep > experts)
        return false;
    bool spread = experts_spread(g, p->opt.tp, p->opt.dp, ep);
    int slices = (spread ? n : p->opt.tp) / ep;
    return (!spread || n <= PLAN_MAX_RANKS) &&
           slices <= (g->axis_n[AX_MOE_FFN] + p->gran[AX_MOE_FFN] - 1) / p->gran[AX_MOE_FFN];
}

static int check_experts(const struct plan *p, struct err *e)
{
    const struct graph *g = p->graph;
    int ep = p->opt.ep, n = p->opt.dp * p->opt.tp, experts = g->axis_n[AX_EXPERT];
    if (!experts && ep == 1)
        return 0;
    if (!experts)
        return err_set(e, ERR_SPLIT, "expert parallelism of %d: this model has no experts; only 1 is legal",
                       ep);
    if (legal_experts(p, ep))
        return 0;
    struct buf legal = BUF_INIT;
    for (int i = 1; i <= MIN(n, experts); i++)
        if (legal_experts(p, i))
            buf_addf(&legal, "%s%d", legal.len ? ", " : "", i);
    err_set(
        e, ERR_SPLIT,
        "expert parallelism of %d over %d ranks (data %d x tensor %d), %d experts of %d: legal degrees for "
        "them: %s",
        ep, n, p->opt.dp, p->opt.tp, experts, g->axis_n[AX_MOE_FFN],
        legal.len ? legal.s : "none; use fewer ranks");
    buf_release(&legal);
    return ERR_SPLIT;
}

int split_check(struct plan *p, struct err *e)
{
    const struct graph *g = p->graph;
    if (p->opt.pp > g->n_layers)
        return err_set(e, ERR_SPLIT,
                       "pipeline parallelism of %d: the model has %d layers; legal degrees are 1 to %d",
                       p->opt.pp, g->n_layers, g->n_layers);
    int n = p->opt.tp;
    const enum axis cut[] = {AX_HEAD, AX_FFN, AX_SHARED_FFN};
    for (size_t i = 0; i < ARRAY_LEN(cut) && n > 1; i++) {
        enum axis a = cut[i];
        if (!g->axis_n[a])
            continue;
        int32_t units = (g->axis_n[a] + p->gran[a] - 1) / p->gran[a];
        if (units >= n)
            continue;
        struct buf legal = BUF_INIT;
        plan_legal_degrees(g, p->gran, PLAN_MAX_RANKS, &legal);
        char why[64] = "";
        if (p->gran[a] > 1)
            snprintf(why, sizeof(why), " in units of %d", p->gran[a]);
        err_set(e, ERR_SPLIT,
                "tensor parallelism of %d: the %s axis has %d elements%s, which leaves ranks without any; "
                "legal degrees for this model: %s",
                n, axis_name(a), g->axis_n[a], why, legal.s);
        buf_release(&legal);
        return ERR_SPLIT;
    }
    int rc = check_experts(p, e);
    if (!rc)
        explain_bits(p);
    return rc;
}

struct range plan_stage(const struct plan *p, int stage)
{
    return (struct range){stage ? p->stage_end[stage - 1] : 0, p->stage_end[stage]};
}

/* The chunks of a weight's columns that a rank holds, counted from its own first column. */
struct cuts split_cuts(const struct plan *p, const struct value *w, int n_in, struct layout l)
{
    const struct graph *g = p->graph;
    int first = w->n_dims - n_in;
    enum axis outer = w->dim[first];
    int32_t inner = 1, n = g->axis_n[outer];
    for (int d = first + 1; d < w->n_dims; d++)
        inner *= g->axis_n[w->dim[d]];
    struct range mine = {0, n};
    struct cuts c = {0};
    int c0 = 0, c1 = YOKE_CHUNKS, rank, ranks;
    split_place(p, outer, &rank, &ranks);
    /* with 8 % ranks == 0 the chunks inside `mine` are whole; otherwise they are clipped to it */
    if ((l.kind == LAY_SPLIT && l.axis == outer) || (outer == AX_MOE_FFN && ranks > 1)) {
        mine = plan_part(p, outer, rank, ranks);
        if (YOKE_CHUNKS % ranks == 0) {
            c0 = rank * YOKE_CHUNKS / ranks;
            c1 = c0 + YOKE_CHUNKS / ranks;
        }
    }
    for (int i = c0; i < c1; i++) {
        int32_t end = MIN(MAX(bound(n, p->gran[outer], i + 1, YOKE_CHUNKS), mine.begin), mine.end);
        c.at[++c.n] = (end - mine.begin) * inner;
    }
    return c;
}
