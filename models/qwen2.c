/* qwen2.c: Qwen2 and Qwen2.5: biases on q, k and v, never on o. */
#include "models/blocks.h"
#include "models/models.h"
#include "models/registry.h"

val qwen2_attention(struct maths *m, const struct hparams *p, val x, int32_t rope_id)
{
    val h = rms_norm(m, x, W(m, "input_layernorm.weight", EMBED), p->eps);
    val q = linear(m, h, true, "self_attn.q_proj", AXES(HEAD, HEAD_DIM), AXES(EMBED));
    val k = linear(m, h, true, "self_attn.k_proj", AXES(KV_HEAD, HEAD_DIM), AXES(EMBED));
    val v = linear(m, h, true, "self_attn.v_proj", AXES(KV_HEAD, HEAD_DIM), AXES(EMBED));
    val kv = kv_append(m, rope(m, k, rope_id), v);
    val a = attend(m, rope(m, q, rope_id), kv, p->attention_scale, window_of(p, m->layer));
    return add(m, x, linear(m, a, false, "self_attn.o_proj", AXES(EMBED), AXES(HEAD, HEAD_DIM)));
}

static val block(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    x = qwen2_attention(m, p, x, ids.rope);
    val h = rms_norm(m, x, W(m, "post_attention_layernorm.weight", EMBED), p->eps);
    return add(m, x, gated_mlp(m, p, h));
}

void qwen2_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block);
}
