/* shardset_impl.h: what reading and writing a shard set share. Private to formats/. */
#ifndef YOKE_FORMATS_SHARDSET_IMPL_H
#define YOKE_FORMATS_SHARDSET_IMPL_H

#include "formats/shardset.h"

#define SHARD_FORMAT   "yoke shard set"
#define SHARD_MAGIC    "YOKESHRD"
#define SHARD_ORDER    0x01020304u
#define SHARD_ALIGN    4096u /* of the payload, and of records in it */
#define SHARD_MANIFEST "manifest.json"

struct shard_head { /* the first 64 bytes */
    char magic[8];
    uint32_t order, version, header_bytes, packing;
    uint32_t rank, ranks, tensors, zero;
    uint64_t payload_bytes;
    uint8_t sum[SHARD_SUM];
};
struct shard_entry {
    uint64_t offset, bytes;
    uint8_t sum[SHARD_SUM];
};
_Static_assert(sizeof(struct shard_head) == 64 && sizeof(struct shard_entry) == 32, "as in the file");

static inline size_t shard_header_bytes(uint32_t tensors)
{
    return (sizeof(struct shard_head) + sizeof(struct shard_entry) * (size_t)tensors + SHARD_ALIGN - 1) /
           SHARD_ALIGN * SHARD_ALIGN;
}

/* "rank_0003_of_0004.yoke"; xfree() it */
char *shard_rank_name(int rank, int ranks);
void shard_sum_of(const void *p, size_t n, uint8_t ret[SHARD_SUM]);
/* Of a header; its own sum counts as zeros. */
void shard_sum_of_header(const void *head, size_t n, uint8_t ret[SHARD_SUM]);

#endif
