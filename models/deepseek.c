/* deepseek.c: DeepSeek V2, V3 and R1: latent attention, experts after a few dense layers.
 *
 * What is cached of a token is one latent row, KV_LORA wide, and one rotated key that all heads share.
 * Instead of expanding it to keys and values of each head, the matrices that would expand it are absorbed:
 * each head's query is taken into the latent space, attends there, and what it finds is expanded to the
 * head's value (arXiv 2405.04434, section 2.1.2).
 */
#include "models/blocks.h"
#include "models/models.h"
#include "models/registry.h"

static const struct moe_names names = {
    .router = "mlp.gate.weight",
    .bias = "mlp.gate.e_score_correction_bias",
    .gate = "mlp.experts.*.gate_proj.weight",
    .up = "mlp.experts.*.up_proj.weight",
    .down = "mlp.experts.*.down_proj.weight",
    .shared = "mlp.shared_experts",
};

/* The inner norms' epsilon is not rms_norm_eps but their class's default, in transformers as in DeepSeek's
 * own code. */
static const float inner_eps = 1e-6f;

static val queries(struct maths *m, const struct hparams *p, val h)
{
    if (!p->q_lora)
        return matmul(m, h, W(m, "self_attn.q_proj.weight", HEAD, QK_DIM, EMBED));
    val a = linear(m, h, p->attention_bias, "self_attn.q_a_proj", AXES(Q_LORA), AXES(EMBED));
    a = rms_norm(m, a, W(m, "self_attn.q_a_layernorm.weight", Q_LORA), inner_eps);
    return matmul(m, a, W(m, "self_attn.q_b_proj.weight", HEAD, QK_DIM, Q_LORA));
}

static val block(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    val h = rms_norm(m, x, W(m, "input_layernorm.weight", EMBED), p->eps);
    val q = rope_at(m, queries(m, p, h), ids.rope, p->nope_dim);
    val c = linear(m, h, p->attention_bias, "self_attn.kv_a_proj_with_mqa", AXES(LATENT), AXES(EMBED));
    c = norm_part(m, c, W(m, "self_attn.kv_a_layernorm.weight", KV_LORA), inner_eps);
    val kv = kv_append(m, rope_at(m, c, ids.rope, p->kv_lora), VAL_NONE);
    q = absorb(m, q, W(m, "self_attn.k_b_proj.*.weight", HEAD, KV_LORA, NOPE_DIM));
    val a = attend(m, q, kv, p->attention_scale, 0);
    a = expand(m, a, W(m, "self_attn.v_b_proj.*.weight", HEAD, V_DIM, KV_LORA));
    x = add(m, x, linear(m, a, p->attention_bias, "self_attn.o_proj", AXES(EMBED), AXES(HEAD, V_DIM)));

    h = rms_norm(m, x, W(m, "post_attention_layernorm.weight", EMBED), p->eps);
    return add(m, x, p->moe[m->layer] ? moe_mlp(m, p, &names, ids.routing, h) : gated_mlp(m, p, h));
}

void deepseek_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block);
}
