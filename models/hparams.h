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
    float eps;
    int glu;             /* enum glu_kind of hidden_act */
    bool tied;           /* lm_head is the embedding table */
    bool attention_bias; /* on q, k, v and, where the architecture says so, o */
    bool mlp_bias;
    int32_t window; /* sliding window of the layers that have one; 0: none has */
    bool windowed[HPARAMS_MAX_LAYERS];
    int32_t max_position; /* tokens that the position embedding covers, scaling included */
    struct rope rope;
    float *freq_factors; /* owned; rope.freq_factors points here */
};

int hparams_read(const json_t *config, struct warn_sink *warn, struct hparams *ret, struct err *e);
void hparams_release(struct hparams *p);

#endif
