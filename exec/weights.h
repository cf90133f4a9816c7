/* weights.h: one rank's weights in memory, in the order of its plan. Filled by whoever loads, then read-only.
 *
 * exec knows nothing of files: a loader fetches the bytes of each plan_weight's slice and hands them over,
 * matrices in runs of whole panels (mat + wmat_pack), vectors as floats (vec).
 *
 * The memory is one image: each weight at weights_offset, a stack's matrices one after the other, all at
 * multiples of 64, gaps zero. A shard set holds the same image in a file, and weights_map uses it in place.
 */
#ifndef YOKE_EXEC_WEIGHTS_H
#define YOKE_EXEC_WEIGHTS_H

#include "plan/plan.h"

struct weights {
    const struct plan *plan;
    int32_t first, n;  /* the plan's weights that are here: all of them, but for weights_new_part */
    struct wmat **mat; /* [plan->n_weights]: one matrix, or this rank's stack of them; NULL for vectors */
    float **vec;       /* [plan->n_weights]; NULL for matrices */
    void *memory;      /* the image from weight `first` on */
    size_t bytes;
    void *map; /* what `memory` lies in, if it is a file's; else NULL */
    size_t map_bytes;
};

int weights_new(const struct plan *p, struct weights **ret, struct err *e); /* zeroed */
/* Only weights [first, first + n): for who writes an image piece by piece. */
int weights_new_part(const struct plan *p, int32_t first, int32_t n, struct weights **ret, struct err *e);
/* Over an image at `payload_at` (a multiple of 64) in mapped memory, which must be as long as the plan's
 * image from there. Takes the mapping over: weights_free unmaps it. Never written to. */
void weights_map(const struct plan *p, void *map, size_t map_bytes, size_t payload_at, struct weights **ret);
void weights_free(struct weights *w); /* NULL is fine */

/* Where weight i starts in the image; i == n_weights: the image's size. */
size_t weights_offset(const struct plan *p, int32_t i);

#endif
