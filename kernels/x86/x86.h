/* x86.h: what the x86 files offer to the families' init functions. Each overwrites the slots that its level
 * does better and leaves the others alone; call them in the order of the levels. */
#ifndef YOKE_KERNELS_X86_X86_H
#define YOKE_KERNELS_X86_X86_H

struct attention_kernels;
struct matmul_kernels;
struct rows_kernels;

void rows_init_avx2(struct rows_kernels *k);
void rows_init_avx512(struct rows_kernels *k);
void matmul_init_avx2(struct matmul_kernels *k);
void matmul_init_avx512(struct matmul_kernels *k);
void attention_init_avx2(struct attention_kernels *k);
void attention_init_avx512(struct attention_kernels *k);

#endif
