/* qwen_moe.c: Qwen2-MoE and Qwen3-MoE: the dense models' attention, experts in most layers. */
#include "models/blocks.h"
#include "models/models.h"
#include "models/registry.h"

static const struct moe_names names = {
    .router = "mlp.gate.weight",
    .gate = "mlp.experts.*.gate_proj.weight",
    .up = "mlp.experts.*.up_proj.weight",
    .down = "mlp.experts.*.down_proj.weight",
    .shared = "mlp.shared_expert",
    .shared_gate = "mlp.shared_expert_gate.weight",
};

static val feed_forward(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    val h = rms_norm(m, x, W(m, "post_attention_layernorm.weight", EMBED), p->eps);
    return add(m, x, p->moe[m->layer] ? moe_mlp(m, p, &names, ids.routing, h) : gated_mlp(m, p, h));
}

static val block2(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    return feed_forward(m, p, qwen2_attention(m, p, x, ids.rope), ids);
}

static val block3(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    return feed_forward(m, p, qwen3_attention(m, p, x, ids.rope), ids);
}

void qwen2_moe_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block2);
}

void qwen3_moe_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block3);
}
