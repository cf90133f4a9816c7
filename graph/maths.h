/* maths.h: the words in which model files are written. Included by models/ (and tests) only.
 *
 *     struct maths m = {g, layer};
 *     val q = matmul(&m, h, W(&m, "self_attn.q_proj.weight", HEAD, HEAD_DIM, EMBED));
 *
 * W names a weight within the current layer (or outside the layers when layer is -1) and its axes as the
 * checkpoint stores them, outermost first: output axes, then input axes.
 */
#ifndef YOKE_GRAPH_MATHS_H
#define YOKE_GRAPH_MATHS_H

#include "graph/graph.h"

struct maths {
    struct graph *g;
    int layer;             /* current layer, or -1 */
    const char *layers_at; /* "model.layers" */
};

val maths_weight(struct maths *m, const char *name, int n_dims, const enum axis *dims);
#define TOKEN      AX_TOKEN
#define VOCAB      AX_VOCAB
#define EMBED      AX_EMBED
#define HEAD       AX_HEAD
#define KV_HEAD    AX_KV_HEAD
#define HEAD_DIM   AX_HEAD_DIM
#define FFN        AX_FFN
#define EXPERT     AX_EXPERT
#define MOE_FFN    AX_MOE_FFN
#define SHARED_FFN AX_SHARED_FFN
#define ONE        AX_ONE
#define Q_LORA     AX_Q_LORA
#define KV_LORA    AX_KV_LORA
#define LATENT     AX_LATENT
#define QK_DIM     AX_QK_DIM
#define NOPE_DIM   AX_NOPE_DIM
#define V_DIM      AX_V_DIM
#define W(m, name, ...)                                                                                      \
    maths_weight((m), (name), (int)(sizeof((enum axis[]){__VA_ARGS__}) / sizeof(enum axis)),                 \
                 (const enum axis[]){__VA_ARGS__})

static inline val embed(struct maths *m, val table)
{
    return graph_op(m->g, OP_EMBED, m->layer, (struct op){.in = {table}});
}
static inline val matmul(struct maths *m, val x, val w)
{
    return graph_op(m->g, OP_MATMUL, m->layer, (struct op){.in = {x, w}});
}
static inline val add(struct maths *m, val a, val b)
{
    return graph_op(m->g, OP_ADD, m->layer, (struct op){.in = {a, b}});
}
static inline val rms_norm(struct maths *m, val x, val w, float eps)
{
    return graph_op(m->g, OP_RMS_NORM, m->layer, (struct op){.in = {x, w}, .eps = eps});
}
/* the last elements of each head are rotated; `offset` before them are not */
static inline val rope_at(struct maths *m, val x, int32_t rope_id, int offset)
{
    return graph_op(m->g, OP_ROPE, m->layer, (struct op){.in = {x}, .rope = {rope_id, offset}});
}
static inline val rope(struct maths *m, val x, int32_t rope_id)
{
    return graph_op(m->g, OP_ROPE, m->layer, (struct op){.in = {x}, .rope = {rope_id, 0}});
}
static inline val kv_append(struct maths *m, val k, val v)
{
    return graph_op(m->g, OP_KV_APPEND, m->layer, (struct op){.in = {k, v}});
}
static inline val attend(struct maths *m, val q, val kv, float scale, int window)
{
    return graph_op(m->g, OP_ATTEND, m->layer, (struct op){.in = {q, kv}, .attend = {scale, window}});
}
static inline val glu(struct maths *m, int kind, val gate, val up)
{
    return graph_op(m->g, OP_GLU, m->layer, (struct op){.in = {gate, up}, .glu = kind});
}

/* Latent attention. v of kv_append is VAL_NONE there. */
static inline val norm_part(struct maths *m, val x, val w, float eps)
{
    return graph_op(m->g, OP_NORM_PART, m->layer, (struct op){.in = {x, w}, .eps = eps});
}
static inline val absorb(struct maths *m, val q, val w)
{
    return graph_op(m->g, OP_ABSORB, m->layer, (struct op){.in = {q, w}});
}
static inline val expand(struct maths *m, val x, val w)
{
    return graph_op(m->g, OP_EXPAND, m->layer, (struct op){.in = {x, w}});
}
/* bias may be VAL_NONE */
static inline val route(struct maths *m, val logits, val bias, int32_t routing_id)
{
    return graph_op(m->g, OP_ROUTE, m->layer, (struct op){.in = {logits, bias}, .routing = routing_id});
}
/* The weights of all experts of a layer: names with a * where the expert's number stands. */
static inline val experts(struct maths *m, val x, val choice, int kind, val gate, val up, val down)
{
    return graph_op(m->g, OP_EXPERTS, m->layer, (struct op){.in = {x, choice, gate, up, down}, .glu = kind});
}
static inline val gate_by(struct maths *m, val x, val g)
{
    return graph_op(m->g, OP_GATE, m->layer, (struct op){.in = {x, g}});
}

#endif
