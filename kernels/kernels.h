/* kernels.h: the table of inner loops in use, one function pointer a kernel.
 *
 * Three families, each with its own header that defines the arithmetic to the bit: matmul.h (weights meet
 * activations), rows.h (norms, rotary embedding, gates), attention.h. The portable C version in this folder
 * is the definition; x86/ holds faster versions with the same bits (checkasm proves it). kernels_init
 * fills every slot with C, then climbs the ladder of CPU levels.
 *
 * Kernels know nothing of threads, graphs or ranks: a caller hands each thread its own share of rows, tokens
 * or heads. No sum ever crosses such a share, so neither the number of threads nor the batch can change a
 * bit.
 */
#ifndef YOKE_KERNELS_KERNELS_H
#define YOKE_KERNELS_KERNELS_H

#include "base/cpu.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rows.h"

struct kernels {
    enum cpu_level level; /* what was asked for; a slot may hold a lower level's version */
    struct matmul_kernels matmul;
    struct rows_kernels rows;
    struct attention_kernels attention;
};

void kernels_init(struct kernels *k, enum cpu_level level);

#endif
