/* registry.h: the architectures' entry points, for models.c. Private to models/. */
#ifndef YOKE_MODELS_REGISTRY_H
#define YOKE_MODELS_REGISTRY_H

#include "graph/maths.h"
#include "models/models.h"

model_fn llama_model, qwen2_model, qwen3_model, mixtral_model, qwen2_moe_model, qwen3_moe_model,
    deepseek_model;

/* x + attention(norm(x)), for the models with experts that share it. */
val qwen2_attention(struct maths *m, const struct hparams *p, val x, int32_t rope_id);
val qwen3_attention(struct maths *m, const struct hparams *p, val x, int32_t rope_id);

#endif
