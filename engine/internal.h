/* internal.h: the seam between the engine and what computes its ticks, so that tests can put something else
 * there. Private to engine/ and its tests. */
#ifndef YOKE_ENGINE_INTERNAL_H
#define YOKE_ENGINE_INTERNAL_H

#include "engine/engine.h"

/* What computes ticks, and how much of one it can take. */
struct backend {
    int (*tick)(void *ctx, const struct batch *b, const float **ret_logits, struct err *e); /* as team_tick */
    void *ctx;
    /* Or, in place of tick, ticks that overlap: up to `depth` posted in each of `lanes`, waited for in order
     * (as team_post and team_wait). Each lane has pages 0 .. n_pages - 1 of its own. */
    int (*post)(void *ctx, int lane, const struct batch *b, struct err *e);
    int (*wait)(void *ctx, int lane, const float **ret_logits, struct err *e);
    int lanes, depth, stages; /* stages of a lane: 0 is 1 */
    bool together;            /* lanes' ticks go together, empty ones included */
    int32_t n_vocab;
    int32_t page_tokens, n_pages;
    int32_t max_tokens, max_out, max_spans;
    int32_t fewest_rows; /* of prompts in a tick, where ticks overlap and there are so many */
};
int engine_new_on(const struct backend *b, const struct engine_options *o, struct engine **ret,
                  struct err *e);

#endif
