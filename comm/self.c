/* self.c: a group of one. */
#include "comm/comm.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "comm/peer.h"

struct self {
    struct comm c;
    struct comm_peer peer;
};

static int self_barrier(struct comm *c, struct err *e)
{
    return 0;
}

static int self_bcast(struct comm *c, void *data, size_t bytes, int root, struct err *e)
{
    return 0;
}

static int self_allreduce(struct comm *c, float *x, size_t n, struct err *e)
{
    return 0;
}

static int self_reduce_scatter(struct comm *c, const float *in, const size_t *count, float *out,
                               struct err *e)
{
    if (count[0])
        memmove(out, in, count[0] * sizeof(float));
    return 0;
}

static int self_allgather(struct comm *c, const void *in, void *out, const size_t *bytes, struct err *e)
{
    if (bytes[0])
        memmove(out, in, bytes[0]);
    return 0;
}

static int self_alltoall(struct comm *c, const void *in, const size_t *send_bytes, void *out,
                         const size_t *recv_bytes, struct err *e)
{
    if (send_bytes[0] != recv_bytes[0])
        return err_set(e, ERR_SPLIT, "a rank sends itself %zu bytes but expects %zu", send_bytes[0],
                       recv_bytes[0]);
    if (send_bytes[0])
        memmove(out, in, send_bytes[0]);
    return 0;
}

static int self_send(struct comm *c, const void *data, size_t bytes, int to, struct err *e)
{
    assert(!"a group of one has nobody to send to"); /* comm_send has checked */
    return ERR_FAIL;
}

static int self_recv(struct comm *c, void *data, size_t bytes, int from, struct err *e)
{
    assert(!"a group of one has nobody to receive from");
    return ERR_FAIL;
}

static struct comm *self_of(const struct comm_peer *peer);

static int self_split(struct comm *c, int color, int key, struct comm **ret, struct err *e)
{
    *ret = color < 0 ? NULL : self_of(c->peer);
    return 0;
}

static void self_abort(struct comm *c, const char *why)
{
}

static void self_close(struct comm *c)
{
    xfree(c);
}

static const struct comm_ops self_ops = {
    "self",        self_barrier, self_bcast, self_allreduce, self_reduce_scatter, self_allgather,
    self_alltoall, self_send,    self_recv,  self_split,     self_abort,          self_close};

static struct comm *self_of(const struct comm_peer *peer)
{
    struct self *s;
    XNEW(s);
    s->peer = *peer;
    s->c.ops = &self_ops;
    s->c.size = 1;
    s->c.peer = &s->peer;
    s->c.threads = 1;
    return &s->c;
}

struct comm *comm_self_new(void)
{
    struct comm_peer me;
    peer_self(&me, 0);
    return self_of(&me);
}
