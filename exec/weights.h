/* weights.h: one rank's weights in memory, in the order of its plan. Filled by whoever loads, then read-only.
 *
 * exec knows nothing of files: a loader fetches the bytes of each plan_weight's slice and hands them over,
 * matrices in runs of whole panels (mat + wmat_pack), vectors as floats (vec).
 *
 * The memory is one image: weights in the plan's order, all at multiples of 64, gaps zero. A stack's matrices
 * follow each other, but for experts: what belongs to one expert of a layer, gate, up and down, lies together
 * in a record, and records follow each other at multiples of RECORD_ALIGN. So an expert is one read
 * (cache.h); for a product it makes no difference, as a matrix is read as a whole either way. A shard set
 * holds the same image in a file, and weights_map uses it in place.
 */
#ifndef YOKE_EXEC_WEIGHTS_H
#define YOKE_EXEC_WEIGHTS_H

#include "exec/cache.h"
#include "plan/plan.h"

/* A part of a rank's weights: weights [first, first + n) of its plan, and of each layer's experts those at
 * [begin, end) of its local stack. */
struct weights_part {
    int32_t first, n;
    struct range experts;
};
static inline struct weights_part weights_all(const struct plan *p)
{
    return (struct weights_part){0, p->n_weights, {0, INT32_MAX}};
}

struct weights {
    const struct plan *plan;
    struct weights_part part; /* what is here */
    struct wmat **mat; /* [plan->n_weights]: one matrix, or this rank's stack of them (data NULL: not here);
                          NULL for vectors */
    float **vec;       /* [plan->n_weights]; NULL for matrices */
    void *memory;      /* the image of the part */
    size_t bytes;
    void *map; /* what `memory` lies in, if it is a file's; else NULL */
    size_t map_bytes;
    struct expert_cache *cache; /* where experts come from, if they are not in `memory`; owned. Else NULL */
};

int weights_new(const struct plan *p, struct weights **ret, struct err *e); /* zeroed */
/* For who writes an image piece by piece, or keeps experts elsewhere: what is not in the part takes no place.
 * A part begins and ends with whole layers of experts. */
int weights_new_part(const struct plan *p, const struct weights_part *part, struct weights **ret,
                     struct err *e);
/* Over an image at `payload_at` (a multiple of 64) in mapped memory, which must be as long as the plan's
 * image from there. Takes the mapping over: weights_free unmaps it. Never written to. */
void weights_map(const struct plan *p, void *map, size_t map_bytes, size_t payload_at, struct weights **ret);
void weights_free(struct weights *w); /* NULL is fine */

/* Those of a weight's stack that are here, as positions in it. */
struct range weights_members(const struct weights *w, int32_t i);
/* Bytes of what is here as the plan counts them: without the gaps. */
size_t weights_net_bytes(const struct weights *w);
/* Where weight i starts in the whole image; i == n_weights: the image's size. */
size_t weights_offset(const struct plan *p, int32_t i);
/* From one matrix of a stack to the next. */
size_t weights_stride(const struct plan *p, int32_t i);

#endif
