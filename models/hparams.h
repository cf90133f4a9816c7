/* hparams.h: what config.json says about a decoder, read once, checked once.
 *
 * Reads both the form of transformers 5 (rope_parameters, layer_types) and the older one (rope_theta,
 * rope_scaling, sliding_window flags), and the configuration that formats/ makes from a GGUF's metadata. A
 * model file uses only this.
 */
#ifndef YOKE_MODELS_HPARAMS_H
#define YOKE_MODELS_HPARAMS_H

#include <jansson.h>
#include "base/err.h"
#include "graph/graph.h"

#define HPARAMS_MAX_LAYERS 1024

struct hparams {
    int32_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
    char type[32]; /* the architecture's model_type */
    float eps;
    int glu;             /* enum glu_kind of hidden_act */
    bool tied;           /* lm_head is the embedding table */
    bool attention_bias; /* on q, k, v and, where the architecture says so, o */
    bool mlp_bias;
    int32_t window; /* sliding window of the layers that have one; 0: none has */
    bool windowed[HPARAMS_MAX_LAYERS];
    int32_t max_position; /* tokens that the position embedding covers, scaling included */
    struct rope rope;

    /* experts; 0 where the model has none */
    int32_t experts, moe_ffn, shared_ffn;
    bool moe[HPARAMS_MAX_LAYERS]; /* layers whose feed-forward part is experts */
    bool shared_gate;             /* shared experts pass a sigmoid gate (Qwen2-MoE) */
    bool router_bias;             /* a correction bias decides with the scores (DeepSeek V3) */
    struct routing routing;

    /* latent attention (DeepSeek); kv_lora 0: none */
    int32_t q_lora, kv_lora, nope_dim, rope_dim, v_dim;
    float attention_scale; /* 1 / sqrt(head width), times YaRN's square where the architecture says so */

    float *freq_factors; /* owned; rope.freq_factors points here */
};

/* type: the architecture's model_type, as in models.c's registry. */
int hparams_read(const json_t *config, const char *type, struct warn_sink *warn, struct hparams *ret,
                 struct err *e);
void hparams_release(struct hparams *p);

#endif
