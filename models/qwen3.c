/* qwen3.c: Qwen3 dense: each head's q and k are normalised before rotation. */
#include "models/blocks.h"
#include "models/models.h"
#include "models/registry.h"

val qwen3_attention(struct maths *m, const struct hparams *p, val x, int32_t rope_id)
{
    val h = rms_norm(m, x, W(m, "input_layernorm.weight", EMBED), p->eps);
    val q = linear(m, h, p->attention_bias, "self_attn.q_proj", AXES(HEAD, HEAD_DIM), AXES(EMBED));
    val k = linear(m, h, p->attention_bias, "self_attn.k_proj", AXES(KV_HEAD, HEAD_DIM), AXES(EMBED));
    val v = linear(m, h, p->attention_bias, "self_attn.v_proj", AXES(KV_HEAD, HEAD_DIM), AXES(EMBED));
    q = rope(m, rms_norm(m, q, W(m, "self_attn.q_norm.weight", HEAD_DIM), p->eps), rope_id);
    k = rope(m, rms_norm(m, k, W(m, "self_attn.k_norm.weight", HEAD_DIM), p->eps), rope_id);
    val kv = kv_append(m, k, v);
    val a = attend(m, q, kv, p->attention_scale, window_of(p, m->layer));
    return add(m, x, linear(m, a, p->attention_bias, "self_attn.o_proj", AXES(EMBED), AXES(HEAD, HEAD_DIM)));
}

static val block(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    x = qwen3_attention(m, p, x, ids.rope);
    val h = rms_norm(m, x, W(m, "post_attention_layernorm.weight", EMBED), p->eps);
    return add(m, x, gated_mlp(m, p, h));
}

void qwen3_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block);
}
