/* records.h: what the attention files of all x86 levels do with records (kernels/attention.h). */
#ifndef YOKE_KERNELS_X86_RECORDS_H
#define YOKE_KERNELS_X86_RECORDS_H

#include <string.h>
#include "base/mem.h"
#include "kernels/attention.h"
#include "kernels/x86/vec.h"

static ALWAYS_INLINE size_t kv_elem_bytes(const enum kv_dtype t)
{
    return t == KV_F32 ? 4 : t == KV_I8 ? 1 : 2;
}

/* The scales of n i8 records of d codes; the last one is repeated until a multiple of 8 is full. */
static ALWAYS_INLINE void load_scales(const uint8_t *records, size_t stride, int32_t n, int32_t d,
                                      float scales[ATTN_BLOCK])
{
    const uint8_t *at = records + ROUND_UP((size_t)d, 4);
    for (int32_t j = 0; j < n; j++)
        memcpy(&scales[j], at + (size_t)j * stride, 4);
    for (int32_t j = n; j % 8; j++)
        scales[j] = scales[n - 1];
}

/* Asks for the first `bytes` bytes of records [from, to). In a long context K and V come from memory, in runs
 * too short for the hardware to foresee; without this it waits for them at each block (measured with one
 * query: 14 GB/s, with: 18). */
#define PREFETCH_AHEAD 16 /* records */
static ALWAYS_INLINE void prefetch_records(const uint8_t *records, size_t stride, int32_t from, int32_t to,
                                           size_t bytes)
{
    for (int32_t j = from; j < to; j++)
        for (size_t at = 0; at < bytes; at += 64)
            _mm_prefetch((const char *)records + (size_t)j * stride + at, _MM_HINT_T0);
}

#endif
