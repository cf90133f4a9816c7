/* registry.h: the architectures' entry points, for models.c. Private to models/. */
#ifndef YOKE_MODELS_REGISTRY_H
#define YOKE_MODELS_REGISTRY_H

#include "models/models.h"

model_fn llama_model, qwen2_model, qwen3_model;

#endif
