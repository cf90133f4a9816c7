/* models.h: from a configuration to a graph. One file an architecture, one row in models.c each.
 *
 * To add one: write models/<arch>.c with a model_fn that reads as the paper does, and add its row to the
 * registry in models.c (CONTRIBUTING.md has the recipe, with the tests to extend).
 */
#ifndef YOKE_MODELS_MODELS_H
#define YOKE_MODELS_MODELS_H

#include <jansson.h>
#include "base/buf.h"
#include "base/err.h"
#include "graph/graph.h"
#include "models/hparams.h"

/* Adds the whole model to the graph and sets g->logits; axes are already stated. */
typedef void model_fn(struct graph *g, const struct hparams *p);

/* Builds and finishes the graph of the architecture that config names ("architectures", else "model_type").
 * An unknown one is ERR_UNSUPPORTED with the list of those known. ret_p may be NULL; hparams_release it
 * otherwise. */
int model_build(const json_t *config, struct warn_sink *warn, struct graph **ret, struct hparams *ret_p,
                struct err *e);

/* "LlamaForCausalLM, MistralForCausalLM, ...", for help and errors. */
void model_list(struct buf *out);

#endif
