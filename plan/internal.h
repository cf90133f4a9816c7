/* internal.h: what the planner's files share. Private to plan/. */
#ifndef YOKE_PLAN_INTERNAL_H
#define YOKE_PLAN_INTERNAL_H

#include "plan/plan.h"

static const struct layout WHOLE = {LAY_WHOLE, 0}, PARTIAL = {LAY_PARTIAL, 0};
static inline struct layout split_on(enum axis a)
{
    return (struct layout){LAY_SPLIT, (uint8_t)a};
}

/* rules.c: given the layouts that an op's inputs have, which it wants, and what it yields then. Weights'
 * layouts are given, not wanted, for matmul and embed; vector weights (norms, biases) come in whatever layout
 * is wanted. */
typedef void split_rule(const struct graph *g, const struct op *o, const struct layout *have,
                        struct layout *want, struct layout *out);
split_rule *split_rule_of(enum op_kind k);

/* split.c */
void split_granularity(struct plan *p, const enum dtype *held /* by value id */);
int split_check(struct plan *p, struct err *e);
/* This rank's place in the group that splits an axis: experts go to ep groups, their inner axis to the ranks
 * within one. */
void split_place(const struct plan *p, enum axis a, int *ret_rank, int *ret_n);
struct range split_mine(const struct plan *p, enum axis a);
struct cuts split_cuts(const struct plan *p, const struct value *w, int n_in, struct layout l);

/* stages.c: fills plan.stage_cost; cuts n stages: ret_end[i] is the first layer that is not in stage i. */
void stages_weigh(struct plan *p, const enum dtype *held);
void stages_cut(const struct stage_cost *c, int layers, int n, int32_t *ret_end);

uint64_t plan_digest(const void *bytes, size_t n);

/* lower.c, memory.c, barrier.c: the passes of plan_make, in order */
int plan_lower(struct plan *p, struct err *e);
void plan_place(struct plan *p);
void plan_barriers(struct plan *p);

#endif
