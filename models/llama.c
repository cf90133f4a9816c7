/* llama.c: Llama 2 and 3, SmolLM, and Mistral (the same mathematics with a sliding window). */
#include "models/blocks.h"
#include "models/models.h"
#include "models/registry.h"

static val block(struct maths *m, const struct hparams *p, val x, struct shared_ids ids)
{
    val h = rms_norm(m, x, W(m, "input_layernorm.weight", EMBED), p->eps);
    val q = linear(m, h, p->attention_bias, "self_attn.q_proj", AXES(HEAD, HEAD_DIM), AXES(EMBED));
    val k = linear(m, h, p->attention_bias, "self_attn.k_proj", AXES(KV_HEAD, HEAD_DIM), AXES(EMBED));
    val v = linear(m, h, p->attention_bias, "self_attn.v_proj", AXES(KV_HEAD, HEAD_DIM), AXES(EMBED));
    val kv = kv_append(m, rope(m, k, ids.rope), v);
    val a = attend(m, rope(m, q, ids.rope), kv, p->attention_scale, window_of(p, m->layer));
    x = add(m, x, linear(m, a, p->attention_bias, "self_attn.o_proj", AXES(EMBED), AXES(HEAD, HEAD_DIM)));

    h = rms_norm(m, x, W(m, "post_attention_layernorm.weight", EMBED), p->eps);
    return add(m, x, gated_mlp(m, p, h));
}

void llama_model(struct graph *g, const struct hparams *p)
{
    decoder(g, p, block);
}
