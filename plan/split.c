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

/* An axis that integer weights contract must be cut at multiples of their groups of 32: with inner axes of m
 * elements behind it, at multiples of 32 / gcd(32, m). */
void split_granularity(struct plan *p, const enum dtype *held)
{
    const struct graph *g = p->graph;
    for (int a = 0; a < AX_COUNT; a++)
        p->gran[a] = 1;
    for (int i = 0; i < g->n_ops; i++) {
        const struct op *o = &g->ops[i];
        if (o->kind != OP_MATMUL || act_kind_of(held[o->in[1].id]) == ACT_F32)
            continue;
        const struct value *x = graph_value(g, o->in[0]);
        int32_t inner = 1;
        for (int d = 2; d < x->n_dims; d++)
            inner *= g->axis_n[x->dim[d]];
        int32_t need = 32 / gcd(32, inner);
        int32_t *have = &p->gran[x->dim[1]];
        *have = *have / gcd(*have, need) * need;
    }
}

void plan_legal_degrees(const struct graph *g, const int32_t *gran, int max, struct buf *out)
{
    int32_t units = INT32_MAX;
    const enum axis cut[] = {AX_HEAD, AX_FFN};
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

static void explain_bits(struct plan *p)
{
    int n = p->opt.tp;
    p->bits_equal = n <= YOKE_CHUNKS && YOKE_CHUNKS % n == 0;
    if (!p->bits_equal)
        snprintf(p->why_not, sizeof(p->why_not),
                 "the summation tree has %d chunks, which %d ranks cannot share evenly; degrees 1, 2, 4 and "
                 "8 keep the bits",
                 YOKE_CHUNKS, n);
}

int split_check(struct plan *p, struct err *e)
{
    const struct graph *g = p->graph;
    int n = p->opt.tp;
    const enum axis cut[] = {AX_HEAD, AX_FFN};
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
    explain_bits(p);
    return 0;
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
    if (l.kind == LAY_SPLIT && l.axis == outer)
        mine = plan_part(p, outer, p->opt.rank, p->opt.tp);
    struct cuts c = {0};
    /* with 8 % tp == 0 the chunks inside `mine` are whole; otherwise they are clipped to it */
    bool tree = !(l.kind == LAY_SPLIT && l.axis == outer) || YOKE_CHUNKS % p->opt.tp == 0;
    int c0 = 0, c1 = YOKE_CHUNKS;
    if (tree && l.kind == LAY_SPLIT && l.axis == outer) {
        c0 = p->opt.rank * YOKE_CHUNKS / p->opt.tp;
        c1 = c0 + YOKE_CHUNKS / p->opt.tp;
    }
    for (int i = c0; i < c1; i++) {
        int32_t end = MIN(MAX(bound(n, p->gran[outer], i + 1, YOKE_CHUNKS), mine.begin), mine.end);
        c.at[++c.n] = (end - mine.begin) * inner;
    }
    return c;
}
