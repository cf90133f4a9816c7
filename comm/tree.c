#include "comm/tree.h"

#include <string.h>

/* Elements are independent, so blocks may be summed one after the other: intermediate subtrees then stay in
 * the first-level cache, and the loops below, of constant length for all but the last block, become plain
 * vector code. The order of each element's additions is the tree whatever the compiler does with the loop. */
#define BLOCK 256

static void block_sum(float *restrict acc, const float *const *part, int n, size_t at, size_t len)
{
    const float *a = part[0] + at;
    if (n == 1) {
        memcpy(acc, a, len * sizeof(float));
        return;
    }
    const float *b = part[1] + at;
    if (n == 2) {
        for (size_t i = 0; i < len; i++)
            acc[i] = a[i] + b[i];
        return;
    }
    if (n == 4) {
        const float *c = part[2] + at, *d = part[3] + at;
        for (size_t i = 0; i < len; i++)
            acc[i] = (a[i] + b[i]) + (c[i] + d[i]);
        return;
    }
    int left = 2; /* the largest power of two below n */
    while (2 * left < n)
        left *= 2;
    block_sum(acc, part, left, at, len);
    if (n - left == 1) {
        const float *last = part[left] + at;
        for (size_t i = 0; i < len; i++)
            acc[i] = acc[i] + last[i];
        return;
    }
    float right[BLOCK];
    block_sum(right, part + left, n - left, at, len);
    for (size_t i = 0; i < len; i++)
        acc[i] = acc[i] + right[i];
}

void tree_sum(float *out, const float *const *part, int n, size_t len)
{
    float acc[BLOCK]; /* out may be a part: it is written only when its block has been read */
    size_t at = 0;
    for (; at + BLOCK <= len; at += BLOCK) {
        block_sum(acc, part, n, at, BLOCK);
        memcpy(out + at, acc, sizeof(acc));
    }
    if (at < len) {
        block_sum(acc, part, n, at, len - at);
        memcpy(out + at, acc, (len - at) * sizeof(float));
    }
}
