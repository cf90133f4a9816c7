/* lower.c: from graph ops to this rank's steps and slots, with conversions where layouts disagree. */
#include <assert.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/attention.h"
#include "plan/internal.h"

/* One form in which a value exists on this rank: a layout, and for activations a quantised kind. */
struct form {
    struct layout layout;
    int32_t slot;
    int32_t next; /* index into forms, or -1 */
};

struct lower {
    struct plan *p;
    enum dtype *held; /* by value id: the format in which a weight is held */
    enum dtype *src;  /* by value id: in the checkpoint */
    struct layout
        *native;       /* by value id: layout at its making (weights: as pinned or implied by the degrees) */
    int32_t *forms_of; /* by value id: first form, or -1 */
    struct form *forms;
    int32_t n_forms, cap_forms;
    int32_t *rope_table; /* by rope: slot, or -1 */
};

static int32_t new_slot(struct plan *p, struct slot s)
{
    XGROW(p->slots, p->n_slots, p->cap_slots);
    s.root = p->n_slots;
    s.def = s.last = -1;
    p->slots[p->n_slots] = s;
    return p->n_slots++;
}

static struct step *new_step(struct plan *p, int kind, int share, int layer, int op)
{
    XGROW(p->steps, p->n_steps, p->cap_steps);
    struct step *s = &p->steps[p->n_steps++];
    *s = (struct step){.kind = (uint8_t)kind,
                       .share = (uint8_t)share,
                       .layer = (int16_t)layer,
                       .op = op,
                       .in = {-1, -1, -1, -1},
                       .out = -1,
                       .tmp = -1};
    return s;
}

static void add_form(struct lower *lo, val v, struct layout l, int32_t slot)
{
    XGROW(lo->forms, lo->n_forms, lo->cap_forms);
    lo->forms[lo->n_forms] = (struct form){l, slot, lo->forms_of[v.id]};
    lo->forms_of[v.id] = lo->n_forms++;
}

static int32_t find_form(const struct lower *lo, val v, struct layout l)
{
    for (int32_t i = lo->forms_of[v.id]; i >= 0; i = lo->forms[i].next)
        if (layout_eq(lo->forms[i].layout, l))
            return lo->forms[i].slot;
    return -1;
}

static int32_t local_n(const struct plan *p, enum axis a, struct layout l)
{
    if (l.kind == LAY_SPLIT && l.axis == a)
        return range_n(plan_part(p, a, p->opt.rank, p->opt.tp));
    return p->graph->axis_n[a];
}

static size_t max_rows(const struct plan *p, int row_axis)
{
    if (row_axis == AX_PAIR) { /* at worst every token of every replica wants all its experts of this rank */
        int32_t k = p->graph->axis_n[AX_CHOICE] / 2;
        if (!plan_spreads(p))
            return (size_t)p->opt.max_tokens * (size_t)k;
        return (size_t)p->opt.max_tokens * (size_t)p->opt.dp *
               (size_t)MIN(k, range_n(split_mine(p, AX_EXPERT)));
    }
    return (size_t)(row_axis == AX_OUT ? p->opt.max_out : p->opt.max_tokens);
}

/* A work slot of floats for an activation in a layout. */
static int32_t act_slot(struct plan *p, val v, struct layout l)
{
    const struct value *x = graph_value(p->graph, v);
    struct slot s = {.kind = SLOT_WORK, .v = v, .layout = l, .row_axis = x->dim[0], .width = 1};
    for (int i = 1; i < x->n_dims; i++) {
        s.dim[s.n_dims] = x->dim[i];
        s.dim_n[s.n_dims] = local_n(p, x->dim[i], l);
        s.width *= s.dim_n[s.n_dims++];
    }
    s.row_bytes = sizeof(float) * (size_t)s.width;
    s.bytes = s.row_bytes * max_rows(p, s.row_axis);
    return new_slot(p, s);
}

/* Rows that one rank sends out to spread experts, at worst, and gets back: all choices of its share of the
 * replica's tokens, each to every rank of the expert's group. */
static size_t max_sent(const struct plan *p)
{
    size_t tokens = (size_t)(p->opt.max_tokens + p->opt.tp - 1) / (size_t)p->opt.tp;
    return tokens * (size_t)(p->graph->axis_n[AX_CHOICE] / 2) * (size_t)plan_expert_slices(p);
}

static int32_t staging_slot(struct plan *p, int row_axis, size_t row_bytes)
{
    struct slot s = {.kind = SLOT_WORK, .v = {-1}, .row_axis = (uint8_t)row_axis, .row_bytes = row_bytes};
    s.bytes = row_bytes * max_rows(p, row_axis);
    return new_slot(p, s);
}

/* One matrix for each expert, or for each head (latent attention's absorbed matrices). */
static bool is_stacked(const struct value *w)
{
    bool heads = w->dim[0] == AX_HEAD && (w->dim[1] == AX_KV_LORA || w->dim[1] == AX_V_DIM);
    return w->n_dims == 3 && (w->dim[0] == AX_EXPERT || heads);
}

/* What --quant may touch: weights that are multiplied with, but for the few that decide (routers and gates).
 */
static bool may_quantise(const struct graph *g, val w)
{
    const struct value *v = graph_value(g, w);
    if (!is_stacked(v) && (value_has(v, AX_EXPERT) || value_has(v, AX_ONE)))
        return false;
    for (int i = 0; i < g->n_ops; i++)
        for (int k = 1; k < op_inputs(&g->ops[i]); k++)
            if ((g->ops[i].kind == OP_MATMUL || g->ops[i].kind == OP_EXPERTS) && g->ops[i].in[k].id == w.id)
                return true;
    return false;
}

/* --quant touches what is multiplied, not what is looked up; the head stays at 8 bits, where it costs quality
 * least. */
static enum dtype held_as(const struct lower *lo, val w, enum dtype src)
{
    const struct graph *g = lo->p->graph;
    enum quant q = lo->p->opt.quant;
    if (weight_inputs(g, w) == 0)
        return DT_F32;
    bool is_float = src == DT_F32 || src == DT_F16 || src == DT_BF16, f8 = src == DT_F8_E4M3;
    const struct value *v = graph_value(g, w);
    if (is_stacked(v) && v->dim[0] == AX_HEAD)
        return is_float ? src : DT_F32; /* a part of a tensor, turned: no block format survives that */
    if (q == QUANT_NONE || !(is_float || f8) || !may_quantise(g, w))
        return src;
    bool head = value_has(graph_value(g, w), AX_VOCAB);
    return q == QUANT_W4 && !head ? DT_I4G : DT_I8C;
}

static struct layout implied_layout(const struct value *w, int n_in)
{
    for (int i = 0; i < w->n_dims; i++)
        switch (w->dim[i]) {
        case AX_HEAD:
        case AX_KV_HEAD:
        case AX_FFN:
        case AX_SHARED_FFN:
        case AX_VOCAB:
            if (i == 0 || i == w->n_dims - n_in)
                return split_on(w->dim[i]);
            break;
        default:
            break;
        }
    return WHOLE;
}

static int weight_layout(const struct lower *lo, val w, int n_in, struct layout *ret, struct err *e)
{
    const struct plan *p = lo->p;
    const struct value *v = graph_value(p->graph, w);
    *ret = WHOLE;
    if (p->opt.tp == 1 && !(plan_spreads(p) && is_stacked(v) && v->dim[0] == AX_EXPERT))
        return 0;
    if (is_stacked(v)) {
        *ret = split_on(v->dim[0] == AX_HEAD ? AX_HEAD : p->opt.ep > 1 ? AX_EXPERT : AX_MOE_FFN);
        return 0;
    }
    *ret = implied_layout(v, n_in);
    for (int i = 0; i < p->opt.n_pins; i++)
        if (!strcmp(p->opt.pins[i].name, v->name))
            *ret = p->opt.pins[i].layout;
    if (ret->kind == LAY_SPLIT) {
        int d = value_dim_of(v, ret->axis);
        if (d != 0 && d != v->n_dims - n_in)
            return err_set(e, ERR_SPLIT,
                           "%s cannot be split on %s: only its outermost row or column axis can be", v->name,
                           axis_name(ret->axis));
    } else if (ret->kind == LAY_PARTIAL) {
        return err_set(e, ERR_SPLIT, "%s: a weight cannot be partial", v->name);
    }
    return 0;
}

/* Elements of the whole matrix that this rank holds, on its row side or column side. */
static struct range side_range(const struct plan *p, const struct value *v, int from, int to, struct layout l)
{
    int32_t inner = 1;
    for (int d = from + 1; d < to; d++)
        inner *= p->graph->axis_n[v->dim[d]];
    if (from == to)
        return (struct range){0, 1};
    enum axis a = v->dim[from];
    struct range r = {0, p->graph->axis_n[a]};
    if ((l.kind == LAY_SPLIT && l.axis == a) || a == AX_MOE_FFN)
        r = split_mine(p, a);
    return (struct range){r.begin * inner, r.end * inner};
}

static int32_t weight_slot(struct lower *lo, val w, struct layout l)
{
    int32_t slot = find_form(lo, w, l);
    if (slot >= 0)
        return slot;
    struct plan *p = lo->p;
    const struct graph *g = p->graph;
    const struct value *v = graph_value(g, w);
    int n_in = weight_inputs(g, w);
    struct plan_weight pw = {.name = v->name,
                             .matrix = n_in > 0,
                             .stacked = is_stacked(v),
                             .stack = {0, 1},
                             .expert_layer = -1,
                             .src = lo->src[w.id],
                             .dtype = lo->held[w.id],
                             .layout = l};
    if (pw.matrix) {
        int first = pw.stacked, first_in = v->n_dims - n_in;
        if (pw.stacked)
            pw.stack = l.kind == LAY_SPLIT || v->dim[0] == AX_EXPERT
                           ? split_mine(p, v->dim[0])
                           : (struct range){0, g->axis_n[v->dim[0]]};
        pw.row = side_range(p, v, first, first_in, l);
        pw.col = side_range(p, v, first_in, v->n_dims, l);
        pw.all_rows = pw.all_cols = 1;
        for (int d = first; d < v->n_dims; d++)
            *(d < first_in ? &pw.all_rows : &pw.all_cols) *= g->axis_n[v->dim[d]];
        pw.cuts = split_cuts(p, v, n_in, l);
        if (pw.src == DT_F8_E4M3 && p->opt.source && p->opt.source->scale_block) {
            int32_t sr, sc;
            p->opt.source->scale_block(p->opt.source, &sr, &sc);
            pw.blocks = scale_blocks_at(sr, sc, pw.row.begin, pw.col.begin);
        }
        struct wmat m;
        plan_weight_mat(&pw, &m);
        pw.bytes = ROUND_UP(wmat_bytes(&m), 64) * (size_t)range_n(pw.stack);
    } else {
        pw.row = (struct range){0, 1};
        pw.col = side_range(p, v, 0, v->n_dims, l);
        pw.all_rows = 1;
        pw.all_cols = value_width(g, v);
        pw.bytes = sizeof(float) * (size_t)range_n(pw.col);
    }
    struct slot s = {.kind = SLOT_WEIGHT, .v = w, .layout = l, .weight = p->n_weights, .bytes = pw.bytes};
    s.width = pw.matrix ? range_n(pw.row) : range_n(pw.col);
    pw.slot = slot = new_slot(p, s);
    XGROW(p->weights, p->n_weights, p->cap_weights);
    p->weights[p->n_weights++] = pw;
    p->weight_bytes += pw.bytes;
    add_form(lo, w, l, slot);
    return slot;
}

/* The conversion from one layout to another, as a step. WHOLE -> PARTIAL never happens: no rule wants
 * PARTIAL. */
static int conversion(struct layout from, struct layout to)
{
    if (from.kind == LAY_PARTIAL)
        return to.kind == LAY_WHOLE ? OP_ALLREDUCE : OP_REDUCE_SCATTER;
    if (from.kind == LAY_SPLIT)
        return to.kind == LAY_WHOLE ? OP_ALLGATHER : OP_ALLTOALL;
    return OP_SLICE;
}

/* A conversion belongs to the layer that made the value, though it is made where the first consumer asks for
 * it. */
static int32_t as_layout(struct lower *lo, val v, struct layout want)
{
    if (graph_value(lo->p->graph, v)->kind == VAL_WEIGHT)
        return weight_slot(lo, v, want);
    int layer = lo->p->graph->ops[graph_value(lo->p->graph, v)->op].layer;
    int32_t slot = find_form(lo, v, want);
    if (slot >= 0)
        return slot;
    struct plan *p = lo->p;
    struct layout have = lo->native[v.id];
    if (find_form(lo, v, WHOLE) >= 0)
        have = WHOLE; /* it was reduced or gathered before: slicing is free */
    int32_t from = find_form(lo, v, have), to = act_slot(p, v, want), tmp = -1;
    int kind = conversion(have, want);
    size_t in_row = p->slots[from].row_bytes, out_row = p->slots[to].row_bytes;
    if (kind == OP_ALLGATHER) {
        size_t all = 0; /* overlapping ranges make it more than the whole */
        for (int r = 0; r < p->opt.tp; r++)
            all += (size_t)range_n(plan_part(p, have.axis, r, p->opt.tp));
        tmp = staging_slot(p, p->slots[to].row_axis, out_row / (size_t)p->graph->axis_n[have.axis] * all);
    } else if (kind == OP_REDUCE_SCATTER) {
        size_t all = 0;
        for (int r = 0; r < p->opt.tp; r++)
            all += (size_t)range_n(plan_part(p, want.axis, r, p->opt.tp));
        tmp = staging_slot(p, p->slots[to].row_axis, in_row / (size_t)p->graph->axis_n[want.axis] * all);
    } else if (kind == OP_ALLTOALL) {
        size_t send = 0, recv = 0;
        for (int r = 0; r < p->opt.tp; r++) {
            send += (size_t)range_n(plan_part(p, want.axis, r, p->opt.tp));
            recv += (size_t)range_n(plan_part(p, have.axis, r, p->opt.tp));
        }
        send *= in_row / (size_t)p->graph->axis_n[want.axis];
        recv *= out_row / (size_t)p->graph->axis_n[have.axis];
        tmp = staging_slot(p, p->slots[to].row_axis, send + recv);
    }
    struct step *s = new_step(p, kind, kind == OP_SLICE ? SHARE_ROWS : SHARE_ONE, layer, -1);
    s->in[0] = from;
    s->out = to;
    s->tmp = tmp;
    s->axis_from = have.axis;
    s->axis_to = want.axis;
    add_form(lo, v, want, to);
    return to;
}

/* The quantised form of an activation that is already in the right layout; made once per (slot, kind, cuts).
 */
static int32_t as_quantised(struct lower *lo, int32_t slot, const struct plan_weight *w, int layer)
{
    struct plan *p = lo->p;
    struct act_layout act;
    act_layout_init(&act, act_kind_of(w->dtype), range_n(w->col), &w->cuts);
    if (act.kind == ACT_F32)
        return slot;
    for (int32_t i = p->n_steps - 1; i >= 0 && p->steps[i].layer == layer; i--) {
        const struct step *s = &p->steps[i];
        if (s->kind == STEP_QUANTIZE && s->in[0] == slot && p->slots[s->out].act.kind == act.kind &&
            !memcmp(&p->slots[s->out].act.cuts, &act.cuts, sizeof(act.cuts)))
            return s->out;
    }
    struct slot q = p->slots[slot];
    q.act = act;
    q.row_bytes = act.row_bytes;
    q.bytes = q.row_bytes * max_rows(p, q.row_axis);
    int32_t out = new_slot(p, q);
    struct step *s = new_step(p, STEP_QUANTIZE, SHARE_ROWS, layer, -1);
    s->in[0] = slot;
    s->out = out;
    return out;
}

/* The angles of a tick's positions are the same in every layer: one table per kind of rope, made first. */
static void rope_tables(struct lower *lo)
{
    struct plan *p = lo->p;
    for (int32_t r = 0; r < p->graph->n_ropes; r++) {
        int32_t rot = p->graph->ropes[r].rot;
        lo->rope_table[r] =
            staging_slot(p, AX_TOKEN, sizeof(float) * (size_t)rot); /* cos [rot/2], sin [rot/2] */
        struct step *s = new_step(p, STEP_ROPE_TABLE, SHARE_ROWS, -1, -1);
        s->out = lo->rope_table[r];
        s->rope = r;
    }
}

static bool made_by_columns(const struct plan *p, int32_t slot)
{
    for (int32_t i = p->n_steps - 1; i >= 0; i--)
        if (p->steps[i].out == slot)
            return p->steps[i].share == SHARE_COLS;
    return false;
}

static int share_of(const struct plan *p, enum op_kind k, const int32_t *in)
{
    if (k == OP_MATMUL)
        return SHARE_COLS;
    if (k == OP_ATTEND || k == OP_ABSORB || k == OP_EXPAND)
        return SHARE_TASKS;
    /* elementwise on fresh columns: stay with the thread that computed them, no barrier */
    if ((k == OP_ADD || k == OP_GLU) && (made_by_columns(p, in[0]) || made_by_columns(p, in[1])))
        return SHARE_COLS;
    return SHARE_ROWS;
}

/* A slot with a row for each one that this rank sends to spread experts. */
static int32_t sent_slot(struct plan *p, size_t row_bytes)
{
    int32_t slot = staging_slot(p, AX_TOKEN, row_bytes);
    p->slots[slot].bytes = row_bytes * max_sent(p);
    return slot;
}

/* A slot with a row for each (token, chosen expert) pair. */
static int32_t pair_slot(struct plan *p, int32_t width, size_t row_bytes)
{
    struct slot s = {
        .kind = SLOT_WORK, .v = VAL_NONE, .row_axis = AX_PAIR, .width = width, .row_bytes = row_bytes};
    s.n_dims = width > 0;
    s.dim[0] = AX_MOE_FFN;
    s.dim_n[0] = width;
    s.bytes = row_bytes * max_rows(p, AX_PAIR);
    return new_slot(p, s);
}

static struct step *expert_step(struct plan *p, int kind, int share, int32_t op, int32_t out, int32_t a,
                                int32_t b, int32_t c, int32_t d)
{
    const int32_t in[STEP_MAX_IN] = {a, b, c, d};
    struct step *s = new_step(p, kind, share, p->graph->ops[op].layer, op);
    memcpy(s->in, in, sizeof(in));
    s->out = out;
    return s;
}

/* The layer's record: its three matrices, each at a multiple of 64. */
static void add_expert_layer(struct plan *p, int layer, int32_t gate)
{
    XGROW(p->expert_layers, p->n_expert_layers, p->cap_expert_layers);
    struct expert_layer *x = &p->expert_layers[p->n_expert_layers];
    *x = (struct expert_layer){.layer = layer, .weight = gate, .stack = p->weights[gate].stack};
    for (int i = 0; i < RECORD_PARTS; i++) {
        struct wmat m;
        x->at[i] = x->bytes;
        plan_weight_mat(&p->weights[gate + i], &m);
        x->bytes += ROUND_UP(wmat_bytes(&m), 64);
        p->weights[gate + i].expert_layer = p->n_expert_layers;
    }
    x->bytes = ROUND_UP(x->bytes, RECORD_ALIGN);
    p->n_expert_layers++;
}

/* Experts as steps: tokens grouped by expert once, then each expert's matrices meet all its tokens together.
 */
static void lower_experts(struct lower *lo, int32_t op, const int32_t *in, int32_t out)
{
    struct plan *p = lo->p;
    const struct op *o = &p->graph->ops[op];
    const struct plan_weight *gate = &p->weights[p->slots[in[2]].weight],
                             *down = &p->weights[p->slots[in[4]].weight];
    int32_t k = p->graph->axis_n[AX_CHOICE] / 2, ffn = range_n(gate->row), embed = p->graph->axis_n[AX_EMBED];
    assert(down == gate + 2 && p->slots[in[3]].weight == p->slots[in[2]].weight + 1); /* made one by one */
    add_expert_layer(p, o->layer, p->slots[in[2]].weight);
    /* index: first pair of each expert, then the pairs' tokens, then each token's k places (exec/experts.c)
     */
    bool spread = plan_spreads(p);
    size_t choices = sizeof(int32_t) * (size_t)k, pairs = sizeof(int32_t) * max_rows(p, AX_PAIR);
    int32_t index = staging_slot(p, AX_TOKEN, choices);
    p->slots[index].bytes += pairs + sizeof(int32_t) * (size_t)(range_n(gate->stack) + 2);
    struct step *sort = expert_step(p, spread ? STEP_EXPERT_SPREAD : STEP_EXPERT_SORT, SHARE_ONE, op, index,
                                    in[1], in[2], -1, -1);
    if (spread) { /* the numbers of the experts that are asked for, going out and coming in */
        sort->tmp = sent_slot(p, sizeof(int32_t));
        p->slots[sort->tmp].bytes += pairs;
    }
    int32_t x = as_quantised(lo, in[0], gate, o->layer);
    if (spread) {
        int32_t here = pair_slot(p, embed, p->slots[x].row_bytes);
        p->slots[here].act = p->slots[x].act;
        int32_t out_rows = sent_slot(p, p->slots[x].row_bytes);
        expert_step(p, STEP_EXPERT_EXCHANGE, SHARE_ONE, op, here, x, index, in[2], -1)->tmp = out_rows;
        x = here;
    }
    int32_t xs = pair_slot(p, embed, p->slots[x].row_bytes);
    p->slots[xs].act = p->slots[x].act;
    expert_step(p, STEP_EXPERT_GATHER, SHARE_ROWS, op, xs, x, index, in[2], -1);
    int32_t h = pair_slot(p, ffn, sizeof(float) * (size_t)ffn),
            up = pair_slot(p, ffn, sizeof(float) * (size_t)ffn);
    expert_step(p, STEP_EXPERT_UP, SHARE_TASKS, op, h, xs, index, in[2], in[3])->tmp = up;
    int32_t hq = as_quantised(lo, h, down, o->layer);
    int32_t y = pair_slot(p, embed, sizeof(float) * (size_t)embed);
    expert_step(p, STEP_EXPERT_DOWN, SHARE_TASKS, op, y, hq, index, in[4], -1);
    if (!spread) {
        expert_step(p, STEP_EXPERT_COMBINE, SHARE_ROWS, op, out, y, index, in[1], in[2]);
        return;
    }
    int32_t back = sent_slot(p, (size_t)embed * sizeof(float));
    expert_step(p, STEP_EXPERT_RETURN, SHARE_ONE, op, back, y, index, in[2], -1)->tmp =
        pair_slot(p, embed, sizeof(float) * (size_t)embed);
    expert_step(p, STEP_EXPERT_JOIN, SHARE_ROWS, op, out, back, index, in[1], in[2]);
}

static void lower_op(struct lower *lo, int32_t i)
{
    struct plan *p = lo->p;
    const struct graph *g = p->graph;
    const struct op *o = &g->ops[i];
    struct layout have[GRAPH_MAX_IN] = {{0}}, want[GRAPH_MAX_IN] = {{0}}, out = WHOLE;
    int n_in = op_inputs(o);
    for (int k = 0; k < n_in; k++)
        have[k] = lo->native[o->in[k].id];
    split_rule_of(o->kind)(g, o, have, want, &out);
    int32_t in[GRAPH_MAX_IN] = {-1, -1, -1, -1, -1};
    for (int k = 0; k < n_in; k++)
        in[k] = as_layout(lo, o->in[k], want[k]);
    if (o->kind == OP_MATMUL)
        in[0] = as_quantised(lo, in[0], &p->weights[p->slots[in[1]].weight], o->layer);
    if (o->kind == OP_ROPE)
        in[2] = lo->rope_table[o->rope.id];
    int32_t slot;
    if (o->kind == OP_KV_APPEND) {
        struct slot kv = {.kind = SLOT_KV, .v = o->out, .layout = out, .layer = p->n_kv_layers++};
        kv.dim_n[0] = local_n(p, AX_KV_HEAD, out);
        bool latent = op_inputs(o) == 1;
        if (latent)
            kv.dim_n[0] = 1;
        kv.kv.k_dim = g->axis_n[latent ? AX_LATENT : AX_HEAD_DIM];
        kv.kv.v_dim = g->axis_n[latent ? AX_KV_LORA : AX_HEAD_DIM];
        kv.kv.k_record = kv_record_bytes(p->opt.kv, kv.kv.k_dim);
        kv.kv.v_record =
            latent && p->opt.kv != KV_I8 ? kv.kv.k_record : kv_record_bytes(p->opt.kv, kv.kv.v_dim);
        size_t records = (size_t)kv.dim_n[0] * (size_t)p->opt.page_tokens;
        if (!latent || p->opt.kv == KV_I8)
            kv.kv.v_at = records * kv.kv.k_record;
        kv.row_bytes = records * kv.kv.k_record + (kv.kv.v_at ? records * kv.kv.v_record : 0);
        kv.offset = p->kv_page_bytes;
        p->kv_page_bytes += kv.row_bytes;
        slot = new_slot(p, kv);
    } else {
        slot = act_slot(p, o->out, out);
    }
    if (o->kind == OP_EXPERTS) {
        lower_experts(lo, i, in, slot);
    } else {
        struct step *s = new_step(p, o->kind, share_of(p, o->kind, in), o->layer, i);
        memcpy(s->in, in, sizeof(s->in));
        s->out = slot;
    }
    lo->native[o->out.id] = out;
    add_form(lo, o->out, out, slot);
}

static int find_weights(struct lower *lo, struct err *e)
{
    struct plan *p = lo->p;
    const struct graph *g = p->graph;
    struct buf missing = BUF_INIT;
    int n_missing = 0;
    for (int i = 0; i < g->n_values; i++) {
        const struct value *v = &g->values[i];
        if (v->kind != VAL_WEIGHT)
            continue;
        enum dtype t = p->opt.source ? p->opt.source->dtype_of(p->opt.source, v->name) : DT_F32;
        if (t == DT_NONE)
            buf_addf(&missing, "%s%s", n_missing++ ? ", " : "", v->name);
        else if (!dtype_info(t)->weight)
            return err_set(e, ERR_UNSUPPORTED, "tensor %s is stored as %s, which cannot be used as a weight",
                           v->name, dtype_name(t));
        lo->src[i] = t;
        lo->held[i] = t == DT_NONE ? t : held_as(lo, (val){i}, t);
    }
    if (n_missing)
        err_set(e, ERR_FORMAT, "%d tensor%s missing from the checkpoint: %s", n_missing,
                n_missing > 1 ? "s are" : " is", missing.s);
    buf_release(&missing);
    return n_missing ? ERR_FORMAT : 0;
}

static void release(struct lower *lo)
{
    xfree(lo->held);
    xfree(lo->src);
    xfree(lo->native);
    xfree(lo->forms_of);
    xfree(lo->forms);
    xfree(lo->rope_table);
}

/* --- pipeline stages --- */

/* The stage that an op belongs to: its layer's; before the layers the first, after them the last. */
static int stage_of_op(const struct plan *p, int32_t op)
{
    int layer = p->graph->ops[op].layer, s = 0;
    if (layer < 0) {
        for (int32_t i = op; i < p->graph->n_ops; i++)
            if (p->graph->ops[i].layer >= 0)
                return 0;
        return p->opt.pp - 1;
    }
    while (layer >= p->stage_end[s])
        s++;
    return s;
}

/* Does value v, made in stage s or before, go on beyond it? */
static bool crosses(const struct plan *p, int32_t v, int s)
{
    const struct graph *g = p->graph;
    if (g->values[v].kind != VAL_ACT || stage_of_op(p, g->values[v].op) > s)
        return false;
    for (int i = 0; i < g->n_ops; i++)
        for (int k = 0; k < op_inputs(&g->ops[i]); k++)
            if (g->ops[i].in[k].id == v && stage_of_op(p, i) > s)
                return true;
    return false;
}

/* Both sides of a boundary walk the crossing values in the order of their ids. In a decoder there is one: the
 * residual. */
static void receive_values(struct lower *lo)
{
    struct plan *p = lo->p;
    for (int32_t v = 0; v < p->graph->n_values && p->opt.stage > 0; v++) {
        if (!crosses(p, v, p->opt.stage - 1))
            continue;
        int32_t slot = act_slot(p, (val){v}, WHOLE);
        struct step *s = new_step(p, OP_RECV, SHARE_ONE, p->graph->ops[p->graph->values[v].op].layer, -1);
        s->out = slot;
        lo->native[v] = WHOLE;
        add_form(lo, (val){v}, WHOLE, slot);
    }
}

static void send_values(struct lower *lo)
{
    struct plan *p = lo->p;
    for (int32_t v = 0; v < p->graph->n_values && p->opt.stage < p->opt.pp - 1; v++) {
        if (!crosses(p, v, p->opt.stage))
            continue;
        int32_t slot = as_layout(lo, (val){v}, WHOLE);
        struct step *s = new_step(p, OP_SEND, SHARE_ONE, p->graph->ops[p->graph->values[v].op].layer, -1);
        s->in[0] = slot;
        s->out = slot;
    }
}

/* What all ranks must see alike, whichever of it they hold. */
static void digest_weights(struct lower *lo)
{
    const struct graph *g = lo->p->graph;
    struct buf b = BUF_INIT;
    for (int i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VAL_WEIGHT)
            buf_addf(&b, "%s %d %d %d.%d\n", g->values[i].name, lo->src[i], lo->held[i], lo->native[i].kind,
                     lo->native[i].axis);
    lo->p->weights_digest = plan_digest(b.s, b.len);
    buf_release(&b);
}

int plan_lower(struct plan *p, struct err *e)
{
    const struct graph *g = p->graph;
    struct lower lo = {.p = p};
    size_t n = (size_t)g->n_values;
    XNEW_N(lo.held, n);
    XNEW_N(lo.src, n);
    XNEW_N(lo.native, n);
    XNEW_N(lo.forms_of, n);
    XNEW_N(lo.rope_table, (size_t)g->n_ropes);
    for (size_t i = 0; i < n; i++)
        lo.forms_of[i] = -1;
    int rc = find_weights(&lo, e);
    if (!rc) {
        split_granularity(p, lo.held);
        rc = split_check(p, e);
    }
    if (!rc) {
        XNEW_N(p->stage_end, (size_t)p->opt.pp);
        stages_weigh(p, lo.held);
        stages_cut(p->stage_cost, g->n_layers, p->opt.pp, p->stage_end);
        p->layers = plan_stage(p, p->opt.stage);
    }
    for (int i = 0; i < g->n_values && !rc; i++) {
        val w = {i};
        int n_in = weight_inputs(g, w);
        if (g->values[i].kind == VAL_WEIGHT && n_in)
            rc = weight_layout(&lo, w, n_in, &lo.native[i], e);
    }
    if (!rc) {
        digest_weights(&lo);
        rope_tables(&lo);
        receive_values(&lo);
        for (int i = 0; i < g->n_ops; i++)
            if (stage_of_op(p, i) == p->opt.stage)
                lower_op(&lo, i);
        send_values(&lo);
        p->logits = p->opt.stage == p->opt.pp - 1 ? as_layout(&lo, g->logits, WHOLE) : -1;
    }
    release(&lo);
    return rc;
}
