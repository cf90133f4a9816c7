#include "comm/comm.h"

#include <assert.h>

#include "base/clock.h"
#include "comm/peer.h"

const char *comm_describe(const struct comm *c, int rank, char *buf, size_t n)
{
    assert(rank >= 0 && rank < c->size);
    return peer_describe(&c->peer[rank], buf, n);
}

/* Counts one call: `bytes` only when it succeeded, the time in any case. */
static int count(struct comm *c, enum comm_kind kind, size_t bytes, int64_t since, int rc)
{
    c->stats.calls[kind]++;
    c->stats.ns[kind] += (uint64_t)(clock_ns() - since);
    if (!rc)
        c->stats.bytes[kind] += bytes;
    return rc;
}

static size_t sum(const size_t *v, int n)
{
    size_t s = 0;
    for (int i = 0; i < n; i++)
        s += v[i];
    return s;
}

int comm_barrier(struct comm *c, struct err *e)
{
    int64_t since = clock_ns();
    return count(c, COMM_BARRIER, 0, since, c->ops->barrier(c, e));
}

int comm_bcast(struct comm *c, void *data, size_t bytes, int root, struct err *e)
{
    assert(root >= 0 && root < c->size);
    int64_t since = clock_ns();
    return count(c, COMM_BCAST, root == c->rank ? bytes : 0, since, c->ops->bcast(c, data, bytes, root, e));
}

int comm_allreduce(struct comm *c, float *x, size_t n, struct err *e)
{
    int64_t since = clock_ns();
    return count(c, COMM_ALLREDUCE, n * sizeof(float), since, c->ops->allreduce(c, x, n, e));
}

int comm_reduce_scatter(struct comm *c, const float *in, const size_t *floats, float *out, struct err *e)
{
    int64_t since = clock_ns();
    return count(c, COMM_REDUCE_SCATTER, sum(floats, c->size) * sizeof(float), since,
                 c->ops->reduce_scatter(c, in, floats, out, e));
}

int comm_allgather(struct comm *c, const void *in, void *out, const size_t *bytes, struct err *e)
{
    int64_t since = clock_ns();
    return count(c, COMM_ALLGATHER, bytes[c->rank], since, c->ops->allgather(c, in, out, bytes, e));
}

int comm_alltoall(struct comm *c, const void *in, const size_t *send_bytes, void *out,
                  const size_t *recv_bytes, struct err *e)
{
    int64_t since = clock_ns();
    return count(c, COMM_ALLTOALL, sum(send_bytes, c->size), since,
                 c->ops->alltoall(c, in, send_bytes, out, recv_bytes, e));
}

int comm_send(struct comm *c, const void *data, size_t bytes, int to, struct err *e)
{
    assert(to >= 0 && to < c->size && to != c->rank);
    int64_t since = clock_ns();
    return count(c, COMM_SEND, bytes, since, c->ops->send(c, data, bytes, to, e));
}

int comm_recv(struct comm *c, void *data, size_t bytes, int from, struct err *e)
{
    assert(from >= 0 && from < c->size && from != c->rank);
    int64_t since = clock_ns();
    return count(c, COMM_RECV, bytes, since, c->ops->recv(c, data, bytes, from, e));
}

int comm_split(struct comm *c, int color, int key, struct comm **ret, struct err *e)
{
    return c->ops->split(c, color, key, ret, e);
}

void comm_abort(struct comm *c, const char *why)
{
    c->ops->abort(c, why);
}

void comm_close(struct comm *c)
{
    if (c)
        c->ops->close(c);
}
