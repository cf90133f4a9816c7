#include "kernels/kernels.h"

#include <string.h>

void kernels_init(struct kernels *k, enum cpu_level level)
{
    memset(k, 0, sizeof(*k));
    k->level = level;
    matmul_kernels_init(&k->matmul, level);
    rows_kernels_init(&k->rows, level);
    attention_kernels_init(&k->attention, level);
}
