/* weights.h: one rank's weights in memory, in the order of its plan. Filled by whoever loads, then read-only.
 *
 * exec knows nothing of files: a loader fetches the bytes of each plan_weight's slice and hands them over,
 * matrices in runs of whole panels (weights_matrix + wmat_pack), vectors as floats.
 */
#ifndef YOKE_EXEC_WEIGHTS_H
#define YOKE_EXEC_WEIGHTS_H

#include "plan/plan.h"

struct weights {
    const struct plan *plan;
    struct wmat **mat; /* [plan->n_weights]: one matrix, or this rank's stack of them; NULL for vectors */
    float **vec;       /* [plan->n_weights]; NULL for matrices */
    void *memory;
    size_t bytes;
};

int weights_new(const struct plan *p, struct weights **ret, struct err *e); /* zeroed */
void weights_free(struct weights *w);                                       /* NULL is fine */

#endif
