/* shape.h: the shape rules named in ops.def. Private to graph/. */
#ifndef YOKE_GRAPH_SHAPE_H
#define YOKE_GRAPH_SHAPE_H

#include "graph/graph.h"

/* Fills out->dim from the op's inputs, or says why they do not fit. */
typedef int shape_rule(const struct graph *g, const struct op *o, struct value *out, struct err *e);

shape_rule shape_embed, shape_matmul, shape_add, shape_norm, shape_first, shape_kv, shape_attend,
    shape_select, shape_route, shape_experts, shape_gate, shape_norm_part, shape_absorb, shape_expand;

#endif
