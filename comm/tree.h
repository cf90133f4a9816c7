/* tree.h: the sum over ranks. (Private to comm/.) */
#ifndef YOKE_COMM_TREE_H
#define YOKE_COMM_TREE_H

#include <stddef.h>

/* out[i] = the sum of part[0..n)[i] by the fixed tree of kernels/sum.h, for each i below len; n >= 1. out may
 * be one of the parts; other overlaps are not allowed. */
void tree_sum(float *out, const float *const *part, int n, size_t len);

#endif
