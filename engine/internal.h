/* internal.h: the seam between the engine and what computes its ticks, so that tests can put something else
 * there. Private to engine/ and its tests. */
#ifndef YOKE_ENGINE_INTERNAL_H
#define YOKE_ENGINE_INTERNAL_H

#include "engine/engine.h"

/* What computes ticks, and how much of one it can take. */
struct backend {
    int (*tick)(void *ctx, const struct batch *b, const float **ret_logits, struct err *e); /* as team_tick */
    void *ctx;
    int32_t n_vocab;
    int32_t page_tokens, n_pages;
    int32_t max_tokens, max_out, max_spans;
};
int engine_new_on(const struct backend *b, const struct engine_options *o, struct engine **ret,
                  struct err *e);

#endif
