#include "graph/graph.h"

#include <string.h>
#include "base/arena.h"
#include "base/mem.h"
#include "graph/maths.h"
#include "graph/shape.h"

static const char *const axis_names[AX_COUNT] = {
    "none",     "token",   "out",    "vocab",   "embed",      "head",   "kv_head",
    "head_dim", "ffn",     "expert", "moe_ffn", "shared_ffn", "choice", "one",
    "q_lora",   "kv_lora", "latent", "qk_dim",  "nope_dim",   "v_dim",  "pair"};

static const struct {
    const char *name, *maths;
    int n_in;
    shape_rule *shape;
} rows[OP_COUNT] = {
#define OP(kind, name, n_in, shape, split, maths) [OP_##kind] = {name, maths, n_in, shape},
#include "graph/ops.def"
#undef OP
};

const char *axis_name(enum axis a)
{
    return axis_names[a];
}

const char *op_name(enum op_kind k)
{
    return rows[k].name;
}

const char *op_maths(enum op_kind k)
{
    return rows[k].maths;
}

int op_n_in(enum op_kind k)
{
    return rows[k].n_in;
}

struct graph *graph_new(void)
{
    struct graph *g;
    XNEW(g);
    g->arena = arena_new();
    g->logits = VAL_NONE;
    return g;
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    arena_free(g->arena);
    xfree(g->values);
    xfree(g->ops);
    xfree(g->ropes);
    xfree(g->routings);
    xfree(g);
}

/* Keeps the first mistake only: the later ones are usually its consequences. */
#define mistake(g, ...)                                                                                      \
    do {                                                                                                     \
        if (!(g)->first.code)                                                                                \
            err_set(&(g)->first, ERR_FAIL, __VA_ARGS__);                                                     \
    } while (0)

void graph_axis(struct graph *g, enum axis a, int64_t n)
{
    if (n < 1 || n > INT32_MAX)
        mistake(g, "axis %s has size %lld", axis_name(a), (long long)n);
    else if (g->axis_n[a] && g->axis_n[a] != n)
        mistake(g, "axis %s has two sizes, %d and %lld", axis_name(a), g->axis_n[a], (long long)n);
    else
        g->axis_n[a] = (int32_t)n;
}

static val add_value(struct graph *g, struct value v)
{
    XGROW(g->values, g->n_values, g->cap_values);
    g->values[g->n_values] = v;
    return (val){g->n_values++};
}

val graph_weight(struct graph *g, const char *name, int n_dims, const enum axis *dims)
{
    struct value v = {.kind = VAL_WEIGHT, .n_dims = (uint8_t)n_dims, .op = -1};
    for (int i = 0; i < n_dims; i++) {
        v.dim[i] = (uint8_t)dims[i];
        if (!g->axis_n[dims[i]])
            mistake(g, "weight %s: axis %s has no size", name, axis_name(dims[i]));
    }
    for (int i = 0; i < g->n_values; i++) {
        const struct value *w = &g->values[i];
        if (w->kind != VAL_WEIGHT || strcmp(w->name, name))
            continue;
        if (w->n_dims != v.n_dims || memcmp(w->dim, v.dim, v.n_dims))
            mistake(g, "weight %s is used with two different shapes", name);
        return (val){i};
    }
    v.name = arena_strdup(g->arena, name);
    return add_value(g, v);
}

val maths_weight(struct maths *m, const char *name, int n_dims, const enum axis *dims)
{
    if (m->layer < 0)
        return graph_weight(m->g, name, n_dims, dims);
    struct buf b = BUF_INIT;
    buf_addf(&b, "%s.%d.%s", m->layers_at, m->layer, name);
    val v = graph_weight(m->g, b.s, n_dims, dims);
    buf_release(&b);
    return v;
}

int op_inputs(const struct op *o)
{
    bool optional = o->kind == OP_ROUTE || o->kind == OP_KV_APPEND;
    return optional && o->in[1].id < 0 ? 1 : rows[o->kind].n_in;
}

val graph_op(struct graph *g, enum op_kind kind, int layer, struct op attr)
{
    struct op o = attr;
    o.kind = kind;
    o.layer = (int16_t)layer;
    for (int i = rows[kind].n_in; i < GRAPH_MAX_IN; i++)
        o.in[i] = VAL_NONE;
    struct value v = {.kind = kind == OP_KV_APPEND ? VAL_KV : VAL_ACT, .op = g->n_ops};
    if (layer >= g->n_layers)
        g->n_layers = layer + 1;
    for (int i = 0; i < op_inputs(&o); i++)
        if (o.in[i].id < 0 || o.in[i].id >= g->n_values) {
            mistake(g, "op %d (%s): input %d does not exist", g->n_ops, op_name(kind), i);
            return VAL_NONE;
        }
    struct err e = {0};
    if (rows[kind].shape(g, &o, &v, &e))
        mistake(g, "op %d (%s, layer %d): %s", g->n_ops, op_name(kind), layer, e.msg);
    o.out = add_value(g, v);
    XGROW(g->ops, g->n_ops, g->cap_ops);
    g->ops[g->n_ops++] = o;
    return o.out;
}

int32_t graph_add_routing(struct graph *g, const struct routing *r)
{
    int32_t n = g->axis_n[AX_EXPERT];
    if (r->k < 1 || r->k > n || r->n_group < 1 || n % r->n_group || r->topk_group < 1 ||
        r->topk_group > r->n_group || r->k > n / r->n_group * r->topk_group ||
        (r->group_top2 && n / r->n_group < 2))
        mistake(g, "routing: %d of %d experts, in the %d best of %d groups, cannot be", r->k, n,
                r->topk_group, r->n_group);
    XGROW(g->routings, g->n_routings, g->cap_routings);
    g->routings[g->n_routings] = *r;
    graph_axis(g, AX_CHOICE, 2 * (int64_t)r->k);
    return g->n_routings++;
}

static bool same_rope(const struct rope *a, const struct rope *b, int32_t n_factors)
{
    if (!a->freq_factors != !b->freq_factors ||
        (a->freq_factors && memcmp(a->freq_factors, b->freq_factors, sizeof(float) * (size_t)n_factors)))
        return false;
    return a->interleaved == b->interleaved && a->rot == b->rot && a->theta == b->theta &&
           a->scaling == b->scaling && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original_max == b->original_max &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor && a->truncate == b->truncate;
}

int32_t graph_add_rope(struct graph *g, const struct rope *r)
{
    if (r->rot < 2 || r->rot % 2)
        mistake(g, "rotary embedding over %d elements; it takes an even number", r->rot);
    for (int i = 0; i < g->n_ropes; i++)
        if (same_rope(&g->ropes[i], r, r->rot / 2))
            return i;
    XGROW(g->ropes, g->n_ropes, g->cap_ropes);
    struct rope *mine = &g->ropes[g->n_ropes];
    *mine = *r;
    if (r->freq_factors) {
        size_t n = sizeof(float) * (size_t)(r->rot / 2);
        mine->freq_factors = memcpy(arena_alloc(g->arena, n), r->freq_factors, n);
    }
    return g->n_ropes++;
}

int weight_inputs(const struct graph *g, val w)
{
    for (int i = 0; i < g->n_ops; i++) {
        const struct op *o = &g->ops[i];
        if (o->kind == OP_MATMUL && o->in[1].id == w.id)
            return graph_value(g, o->in[0])->n_dims - 1;
        if (o->kind == OP_EMBED && o->in[0].id == w.id)
            return 1;
        for (int k = 2; o->kind == OP_EXPERTS && k < 5; k++)
            if (o->in[k].id == w.id)
                return 1;
        if ((o->kind == OP_ABSORB || o->kind == OP_EXPAND) && o->in[1].id == w.id)
            return 1;
    }
    return 0;
}

int64_t value_width(const struct graph *g, const struct value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n_dims; i++)
        if (v->dim[i] != AX_TOKEN && v->dim[i] != AX_OUT)
            n *= g->axis_n[v->dim[i]];
    return n;
}

int value_dim_of(const struct value *v, enum axis a)
{
    for (int i = 0; i < v->n_dims; i++)
        if (v->dim[i] == a)
            return i;
    return -1;
}

bool value_has(const struct value *v, enum axis a)
{
    return value_dim_of(v, a) >= 0;
}

/* The last norm that works on token rows is the final one: everything after it needs only the wanted rows.
 * The op is inserted in the array (ops run in array order), values keep their ids, and the shapes downstream
 * change axis. */
void graph_select_rows(struct graph *g)
{
    int at = -1;
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == OP_RMS_NORM && g->ops[i].layer < 0)
            at = i;
    if (at < 0 || g->first.code) {
        mistake(g, "there is no final norm to select rows for");
        return;
    }
    val x = g->ops[at].in[0];
    struct op sel = {.kind = OP_SELECT, .layer = -1, .in = {x, VAL_NONE, VAL_NONE, VAL_NONE, VAL_NONE}};
    struct value v = *graph_value(g, x);
    v.name = NULL;
    v.op = at;
    v.dim[0] = AX_OUT;
    sel.out = add_value(g, v);
    XGROW(g->ops, g->n_ops, g->cap_ops);
    memmove(&g->ops[at + 1], &g->ops[at], sizeof(*g->ops) * (size_t)(g->n_ops - at));
    g->ops[at] = sel;
    g->n_ops++;
    g->ops[at + 1].in[0] = sel.out;
    for (int i = at + 1; i < g->n_ops; i++) {
        struct value *out = &g->values[g->ops[i].out.id];
        out->op = i;
        if (out->n_dims && out->dim[0] == AX_TOKEN)
            out->dim[0] = AX_OUT;
    }
}

int graph_finish(struct graph *g, struct err *e)
{
    if (!g->first.code && (g->logits.id < 0 || g->logits.id >= g->n_values))
        mistake(g, "the graph yields no logits");
    int32_t n_made = 0;
    for (int i = 0; i < g->n_ops && !g->first.code; i++) {
        const struct op *o = &g->ops[i];
        struct value again = {.kind = g->values[o->out.id].kind, .op = i};
        struct err why = {0};
        if (g->values[o->out.id].op != i)
            mistake(g, "op %d (%s): its output names another producer", i, op_name(o->kind));
        for (int k = 0; k < op_inputs(o); k++)
            if (g->values[o->in[k].id].op >= i)
                mistake(g, "op %d (%s): input %d is computed later", i, op_name(o->kind), k);
        if (rows[o->kind].shape(g, o, &again, &why))
            mistake(g, "op %d (%s): %s", i, op_name(o->kind), why.msg);
        else if (again.n_dims != g->values[o->out.id].n_dims ||
                 memcmp(again.dim, g->values[o->out.id].dim, again.n_dims))
            mistake(g, "op %d (%s): its output has another shape than the rule gives", i, op_name(o->kind));
        n_made++;
    }
    if (!g->first.code) {
        const struct value *v = graph_value(g, g->logits);
        if (v->n_dims != 2 || v->dim[0] != AX_OUT || v->dim[1] != AX_VOCAB)
            mistake(g, "logits should be [out, vocab]");
    }
    if (g->first.code) {
        if (e)
            *e = g->first;
        return g->first.code;
    }
    return 0;
}
