/* blocks.h: pieces of mathematics that several architectures share, word for word. Private to models/. */
#ifndef YOKE_MODELS_BLOCKS_H
#define YOKE_MODELS_BLOCKS_H

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

static inline int window_of(const struct hparams *p, int layer)
{
    return p->windowed[layer] ? p->window : 0;
}

/* embed -> block for each layer -> norm -> head. */
typedef val block_fn(struct maths *m, const struct hparams *p, val x, int32_t rope_id);
static inline void decoder(struct graph *g, const struct hparams *p, block_fn *block)
{
    struct maths m = {g, -1, "model.layers"};
    int32_t rope_id = graph_add_rope(g, &p->rope);
    val table = W(&m, "model.embed_tokens.weight", VOCAB, EMBED);
    val x = embed(&m, table);
    for (m.layer = 0; m.layer < p->layers; m.layer++)
        x = block(&m, p, x, rope_id);
    m.layer = -1;
    x = rms_norm(&m, x, W(&m, "model.norm.weight", EMBED), p->eps);
    g->logits = matmul(&m, x, p->tied ? table : W(&m, "lm_head.weight", VOCAB, EMBED));
}

#endif
