/* stages.c: where a pipeline is cut.
 *
 * Stages should take equally long, since the slowest sets the pace. How long a layer takes is estimated for a
 * tick of some decoding sequences, with the stated constants of cost.h: not those of the machine at hand, for
 * all ranks must cut alike, and only ratios matter. Bytes alone would not do: a head in 8 bits over layers in
 * 4 counts twice its work, and a layer of many experts computes with few of them. But memory counts too: no
 * stage holds more than a quarter above what the most even cut by bytes would need.
 */
#include <math.h>
#include "base/mem.h"
#include "plan/cost.h"
#include "plan/internal.h"

enum { TICK_ROWS = 8, TICK_POSITIONS = 512 }; /* of each sequence's cache */
#define MOST_ABOVE_EVEN 1.25

static void add_weight(const struct plan *p, const struct cost_machine *m, const struct op *o,
                       const struct value *w, enum dtype held, struct stage_cost *c)
{
    const struct graph *g = p->graph;
    enum dtype t = held == DT_I4G   ? DT_Q4_0
                   : held == DT_I8C ? DT_I8
                                    : held,
               rate = held == DT_I8 ? DT_I8C : held;
    const struct dtype_info *d = dtype_info(t);
    double macs = (double)value_width(g, w), bytes = macs * d->block_bytes / d->block;
    double one = m->one[rate] > 0 ? m->one[rate] : m->one[DT_F32];
    double many = m->many[rate] > 0 ? m->many[rate] : m->many[DT_F32];
    c->bytes += bytes;
    if (o->kind == OP_EXPERTS) {
        int n = g->axis_n[AX_EXPERT], k = g->axis_n[AX_CHOICE] / 2;
        double read = cost_experts_read(n, k, 1, TICK_ROWS);
        c->time_s += read / n * bytes / one + MAX(0, TICK_ROWS * k - read) / n * macs / many;
    } else {
        c->time_s += bytes / one + (TICK_ROWS - 1) * macs / many;
    }
}

/* Of each layer, and at [n_layers] of what follows them. Embeddings are looked up: no time, and where they
 * are tied their bytes count with the head. */
void stages_weigh(struct plan *p, const enum dtype *held)
{
    const struct graph *g = p->graph;
    struct cost_machine m;
    cost_machine_default(&m, 1, 1, 0);
    XNEW_N(p->stage_cost, (size_t)g->n_layers + 1);
    for (int i = 0; i < g->n_ops; i++) {
        const struct op *o = &g->ops[i];
        struct stage_cost *c = &p->stage_cost[o->layer < 0 ? g->n_layers : o->layer];
        if (o->kind == OP_EMBED)
            continue;
        c->time_s += m.step_s;
        if (o->kind == OP_ATTEND)
            c->time_s += 2.0 * (double)value_width(g, graph_value(g, o->in[0])) * TICK_POSITIONS * TICK_ROWS /
                         m.attend_one;
        for (int k = 0; k < op_inputs(o); k++) {
            const struct value *w = graph_value(g, o->in[k]);
            if (w->kind == VAL_WEIGHT)
                add_weight(p, &m, o, w, held[o->in[k].id], c);
        }
    }
}

/* Can n stages hold all layers with none above `most`? The last one has the head too. Greedy; fills end if it
 * can. */
static bool fits_stages(const struct stage_cost *c, int layers, int n, struct stage_cost most, int32_t *end)
{
    int at = 0;
    for (int s = 0; s < n; s++) {
        struct stage_cost sum = s == n - 1 ? c[layers] : (struct stage_cost){0};
        int least = at + 1, left = n - 1 - s; /* every stage has a layer */
        while (at < layers - left && (at < least || (sum.time_s + c[at].time_s <= most.time_s &&
                                                     sum.bytes + c[at].bytes <= most.bytes))) {
            sum.time_s += c[at].time_s;
            sum.bytes += c[at++].bytes;
        }
        end[s] = at;
        if (sum.time_s > most.time_s || sum.bytes > most.bytes)
            return false;
    }
    return at == layers;
}

/* The smallest bound with which all layers fit, by bisection of what *bound points to in `most`. */
static void bisect(const struct stage_cost *c, int layers, int n, double total, double *bound,
                   struct stage_cost *most, int32_t *end)
{
    double low = 0, high = total * (1 + 1e-9); /* sums are rounded */
    for (int i = 0; i < 60; i++) {
        *bound = (low + high) / 2;
        if (fits_stages(c, layers, n, *most, end))
            high = *bound;
        else
            low = *bound;
    }
    *bound = high;
}

void stages_cut(const struct stage_cost *c, int layers, int n, int32_t *ret_end)
{
    struct stage_cost total = {0}, most = {INFINITY, INFINITY};
    for (int l = 0; l <= layers; l++) {
        total.time_s += c[l].time_s;
        total.bytes += c[l].bytes;
    }
    bisect(c, layers, n, total.bytes, &most.bytes, &most, ret_end);
    most.bytes *= MOST_ABOVE_EVEN;
    bisect(c, layers, n, total.time_s, &most.time_s, &most, ret_end);
    fits_stages(c, layers, n, most, ret_end);
}
