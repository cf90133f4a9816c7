/* blocks.h: pieces of mathematics that several architectures share, word for word. Private to models/. */
#ifndef YOKE_MODELS_BLOCKS_H
#define YOKE_MODELS_BLOCKS_H

#include <stdio.h>
#include "graph/maths.h"
#include "models/hparams.h"

/* x . w (+ b): a linear layer `name` with output axes out[] and input axes in[], bias where the model has
 * one. */
static inline val linear(struct maths *m, val x, bool bias, const char *name, int n_out, const enum axis *out,
                         int n_in, const enum axis *in)
{
    enum axis dims[GRAPH_MAX_DIMS];
    char full[128];
    for (int i = 0; i < n_out; i++)
        dims[i] = out[i];
    for (int i = 0; i < n_in; i++)
        dims[n_out + i] = in[i];
    snprintf(full, sizeof(full), "%s.weight", name);
    val y = matmul(m, x, maths_weight(m, full, n_out + n_in, dims));
    snprintf(full, sizeof(full), "%s.bias", name);
    return bias ? add(m, y, maths_weight(m, full, n_out, dims)) : y;
}
#define AXES(...)                                                                                            \
    (int)(sizeof((enum axis[]){__VA_ARGS__}) / sizeof(enum axis)), (const enum axis[])                       \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

/* down(act(gate(h)) * up(h)) */
static inline val gated_mlp(struct maths *m, const struct hparams *p, val h)
{
    val gate = linear(m, h, p->mlp_bias, "mlp.gate_proj", AXES(FFN), AXES(EMBED));
    val up = linear(m, h, p->mlp_bias, "mlp.up_proj", AXES(FFN), AXES(EMBED));
    return linear(m, glu(m, p->glu, gate, up), p->mlp_bias, "mlp.down_proj", AXES(EMBED), AXES(FFN));
}

static inline val shared_mlp(struct maths *m, const struct hparams *p, const char *name, val h)
{
    char part[96];
    val w[3];
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        snprintf(part, sizeof(part), "%s.%s.weight", name, names[i]);
        w[i] = i < 2 ? W(m, part, SHARED_FFN, EMBED) : W(m, part, EMBED, SHARED_FFN);
    }
    return matmul(m, glu(m, p->glu, matmul(m, h, w[0]), matmul(m, h, w[1])), w[2]);
}

/* The names that architectures give to the same parts. */
struct moe_names {
    const char *router, *bias, *gate, *up, *down; /* a * stands for the expert's number */
    const char *shared, *shared_gate;
};

/* Routed experts, and those that every token passes. */
static inline val moe_mlp(struct maths *m, const struct hparams *p, const struct moe_names *n,
                          int32_t routing, val h)
{
    val bias = p->router_bias ? W(m, n->bias, EXPERT) : VAL_NONE;
    val choice = route(m, matmul(m, h, W(m, n->router, EXPERT, EMBED)), bias, routing);
    val y = experts(m, h, choice, p->glu, W(m, n->gate, EXPERT, MOE_FFN, EMBED),
                    W(m, n->up, EXPERT, MOE_FFN, EMBED), W(m, n->down, EXPERT, EMBED, MOE_FFN));
    if (!p->shared_ffn || !n->shared)
        return y;
    val s = shared_mlp(m, p, n->shared, h);
    if (p->shared_gate)
        s = gate_by(m, s, matmul(m, h, W(m, n->shared_gate, ONE, EMBED)));
    return add(m, y, s);
}

static inline int window_of(const struct hparams *p, int layer)
{
    return p->windowed[layer] ? p->window : 0;
}

/* embed -> block for each layer -> norm -> head. */
struct shared_ids { /* of what all layers share in the graph */
    int32_t rope, routing;
};
typedef val block_fn(struct maths *m, const struct hparams *p, val x, struct shared_ids ids);
static inline void decoder(struct graph *g, const struct hparams *p, block_fn *block)
{
    struct maths m = {g, -1, "model.layers"};
    struct shared_ids ids = {graph_add_rope(g, &p->rope),
                             p->experts ? graph_add_routing(g, &p->routing) : -1};
    val table = W(&m, "model.embed_tokens.weight", VOCAB, EMBED);
    val x = embed(&m, table);
    for (m.layer = 0; m.layer < p->layers; m.layer++)
        x = block(&m, p, x, ids);
    m.layer = -1;
    x = rms_norm(&m, x, W(&m, "model.norm.weight", EMBED), p->eps);
    g->logits = matmul(&m, x, p->tied ? table : W(&m, "lm_head.weight", VOCAB, EMBED));
}

#endif
