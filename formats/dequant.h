/* dequant.h: one row of stored weights to f32, in plain C: the definition of every weight format.
 *
 * Kernels multiply without this; it is what they are tested against, and what the slow paths use (embedding
 * rows, the reference interpreter). Products and sums are rounded to f32 one by one, in the order in which
 * GGUF's own reference does, so that results agree with it to the bit.
 */
#ifndef YOKE_FORMATS_DEQUANT_H
#define YOKE_FORMATS_DEQUANT_H

#include <stdint.h>
#include "base/dtype.h"

/* dtype: DT_F32 to DT_Q6_K, or DT_F8_E4M3 (the codes' values: scales, if any, are another tensor's); src need
 * not be aligned; n, a multiple of the block, elements of one row. */
void dequant_row(enum dtype dtype, const void *src, int64_t n, float *dst);

#endif
