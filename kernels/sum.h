/* sum.h: the orders of summation, in plain C. Everything that adds floats in yoke adds them in one of these
 * two ways.
 *
 * 1. Lanes: a long sum within one vector uses 8 lanes; lane j takes the elements k with k % 8 == j in
 * increasing k by fmaf, starting from +0; the lanes are joined by lanes_join. One AVX register, or two NEON
 * ones, do exactly that.
 * 2. The tree: a contraction axis is cut into YOKE_CHUNKS chunks (ARCHITECTURE.md, invariant 1); each chunk
 * is summed in its kernel's order, starting from +0; chunk sums are joined by tree_push/tree_join. Ranks that
 * hold 8/n chunks each compute subtrees of the same tree, and an all-reduce joins them by its upper levels:
 * same bits at degree 1, 2, 4, 8.
 */
#ifndef YOKE_KERNELS_SUM_H
#define YOKE_KERNELS_SUM_H

#include <stdint.h>

#define YOKE_CHUNKS 8

/* Where a contraction axis (or one rank's part of it) is cut: chunk c is [at[c], at[c+1]). Chunks may be
 * empty. */
struct cuts {
    int n;                       /* 1..YOKE_CHUNKS */
    int32_t at[YOKE_CHUNKS + 1]; /* at[0] == 0, at[n] == columns, non-decreasing */
};

static inline float lanes_join(const float a[8])
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* The binary counter form of the fixed tree over n leaves: the left subtree of n > 1 leaves has the largest
 * power of two below n leaves. Push the leaves in order, then join. */
struct tree {      /* start with {0} */
    float part[4]; /* partial sums of subtrees of decreasing size */
    int size[4];
    int top;
};
static inline void tree_push(struct tree *t, float leaf)
{
    int size = 1;
    while (t->top > 0 && t->size[t->top - 1] == size) {
        leaf = t->part[--t->top] + leaf;
        size *= 2;
    }
    t->part[t->top] = leaf;
    t->size[t->top++] = size;
}
static inline float tree_join(struct tree *t)
{
    float sum = t->top ? t->part[t->top - 1] : 0.0f;
    for (int i = t->top - 2; i >= 0; i--)
        sum = t->part[i] + sum;
    return sum;
}

#endif
