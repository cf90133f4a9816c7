/* mixtral.c: Mistral's attention, experts in every layer. */
#include "models/blocks.h"
#include "models/models.h"
#include "models/registry.h"

static const struct moe_names names = {
    .router = "mlp.gate.weight",
    .gate = "mlp.experts.*.gate_proj.weight",
    .up = "mlp.experts.*.up_proj.weight",
    .down = "mlp.experts.*.down_proj.weight",
};

static val block(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    val h = rms_norm(m, x, W(m, "input_layernorm.weight", EMBED), p->eps);
    val q = matmul(m, h, W(m, "self_attn.q_proj.weight", HEAD, HEAD_DIM, EMBED));
    val k = matmul(m, h, W(m, "self_attn.k_proj.weight", KV_HEAD, HEAD_DIM, EMBED));
    val v = matmul(m, h, W(m, "self_attn.v_proj.weight", KV_HEAD, HEAD_DIM, EMBED));
    val kv = kv_append(m, rope(m, k, ids.rope), v);
    val a = attend(m, rope(m, q, ids.rope), kv, p->attention_scale, window_of(p, m->layer));
    x = add(m, x, matmul(m, a, W(m, "self_attn.o_proj.weight", EMBED, HEAD, HEAD_DIM)));

    h = rms_norm(m, x, W(m, "post_attention_layernorm.weight", EMBED), p->eps);
    return add(m, x, moe_mlp(m, p, &names, ids.routing, h));
}

void mixtral_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block);
}
