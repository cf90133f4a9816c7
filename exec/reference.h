/* reference.h: the scalar interpreter: a graph, unsplit, on one sequence, in plain loops. The oracle of the
 * tests.
 *
 * Every sum is in double and in the obvious order, every step as the op's mathematics in graph/ops.def says;
 * weights are floats, already dequantised. No kernel, plan or thread of the product is used, so that they can
 * be checked against it.
 */
#ifndef YOKE_EXEC_REFERENCE_H
#define YOKE_EXEC_REFERENCE_H

#include "graph/graph.h"

/* The weight's elements as stored in the checkpoint, [all of its axes]; lives until the call returns. */
typedef const float *reference_weight_fn(void *ctx, const struct graph *g, val weight);

/* Runs tokens 0..n-1 at positions 0..n-1; every row's logits: [n, vocab]. */
void reference_run(const struct graph *g, reference_weight_fn *weight, void *ctx, const int32_t *token,
                   int32_t n, float *logits);

#endif
