/* A shard set's manifest of any bytes, and behind a 0 byte a rank's header of any bytes: what is opened has
 * parts that lie in their rank's payload, one after the other, and in their tensor, and are as large as their
 * shape says. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "base/mem.h"
#include "formats/shardset.h"

static void check_part(const struct shard_tensor *t, const struct shard_part *p)
{
    assert(p->stack[0] >= 0 && p->stack[0] <= p->stack[1] && p->stack[1] <= t->experts);
    assert(p->row[0] >= 0 && p->row[0] <= p->row[1] && p->row[1] <= t->rows);
    assert(p->col[0] >= 0 && p->col[0] <= p->col[1] && p->col[1] <= t->cols);
    if (!t->matrix) {
        assert(p->bytes == 4 * (uint64_t)(p->col[1] - p->col[0]));
        return;
    }
    struct wmat m;
    size_t bytes;
    shard_part_matrix(t, p, &m, &bytes); /* asserts what wmat_init wants of cuts */
    assert(p->bytes == bytes * (size_t)(p->stack[1] - p->stack[0]));
}

static void check_rank(const struct shardset *s, int rank, const uint8_t *head, size_t n_head)
{
    int32_t n;
    uint64_t at = 0, in = 0; /* the end so far; in the first of the records that are being walked through */
    const struct shard_part *const *part = shardset_parts(s, rank, &n);
    for (int32_t i = 0; i < n; i++) {
        const struct shard_part *p = part[i];
        uint64_t members = (uint64_t)(p->stack[1] - p->stack[0]);
        check_part(shardset_tensor(s, p->tensor), p);
        assert(p->rank == rank);
        if (p->record && members) {
            if (!in || p->offset != in) { /* others begin */
                assert(p->offset == ROUND_UP(at, 4096));
                at = p->offset + p->stride * members;
            }
            in = p->offset + p->bytes / members;
            assert(p->stride % 4096 == 0 && in <= at - p->stride * (members - 1));
            continue;
        }
        assert(p->offset == at);
        at = ROUND_UP(at + p->bytes, 64);
        in = 0;
    }
    assert(at == shardset_rank_bytes(s, rank));
    size_t payload_at;
    struct err e = {0};
    uint64_t file = (64 + 32 * (uint64_t)n + 4095) / 4096 * 4096 + at;
    if (shardset_check_header(s, rank, head, n_head, file, "fuzz", &payload_at, &e))
        assert(e.code < 0 && e.msg[0]);
    else
        assert(payload_at <= n_head && payload_at + at == file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shardset *s;
    struct err e = {0};
    const uint8_t *zero = memchr(data, 0, size);
    size_t n = zero ? (size_t)(zero - data) : size;
    if (shardset_open_bytes(data, n, "fuzz", &s, &e)) {
        assert(e.code < 0 && e.msg[0]);
        return 0;
    }
    const struct shardset_info *i = shardset_info(s);
    assert(i->ranks >= 1 && i->tp >= 1 && i->ep >= 1 && i->pp >= 1 && i->quant && i->yoke && i->graph);
    for (int r = 0; r < i->ranks; r++)
        check_rank(s, r, zero ? zero + 1 : data + n, zero ? size - n - 1 : 0);
    for (int32_t k = 0; k < shardset_n_tensors(s); k++)
        assert(shardset_tensor(s, k)->n_parts > 0 && shardset_tensor(s, k)->name[0]);
    shardset_close(s);
    return 0;
}
