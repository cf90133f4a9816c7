/* comm.h: a group of ranks that talk, behind one small table.
 *
 * Three makers: `self` (one rank), `threads` (ranks are threads of one process) and `mpi` (ranks are
 * processes; on one host they meet in shared memory, between hosts over MPI). A comm belongs to one rank and
 * is used by one thread at a time; all ranks of the group call the same collectives, with sizes that fit, in
 * the same order. Ranks that disagree get ERR_SPLIT with both sides named, as far as the transport can tell.
 *
 * Every float sum joins ranks by the fixed tree of kernels/sum.h (over rank numbers: (0+1)+(2+3) ...; for
 * other sizes the left subtree has the largest power of two below n), elementwise, so that all ranks hold the
 * same bits and they do not depend on the transport. comm knows nothing of tensors: buffers are contiguous,
 * callers pack.
 *
 * A rank that waits spins briefly, then yields its core, then sleeps until it is woken (an idle server burns
 * nothing). A rank that dies, or calls comm_abort, makes every other rank's pending and future calls fail
 * with ERR_RANK_LOST, naming it (rank, host, process), within about two seconds; a lost host, or the link to
 * it, within five. This holds for a whole family: a group, the groups split from it, and theirs. After any
 * error but ERR_USAGE a family is of no further use except to be closed.
 *
 * comm never allocates inside a collective as long as messages stay within the size given at creation.
 */
#ifndef YOKE_COMM_COMM_H
#define YOKE_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum comm_kind {
    COMM_BARRIER,
    COMM_BCAST,
    COMM_ALLREDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALLGATHER,
    COMM_ALLTOALL,
    COMM_SEND,
    COMM_RECV,
    COMM_KINDS
};

struct comm_stats { /* by enum comm_kind; waiting is part of the time */
    /* bytes: payload this rank put in (COMM_RECV: took out) */
    uint64_t calls[COMM_KINDS], bytes[COMM_KINDS], ns[COMM_KINDS];
};

struct comm_peer {    /* who a rank is */
    int rank;         /* in the group that everything was split from: what a user calls it */
    int pid;          /* on its host */
    uint64_t started; /* of the process, in the kernel's ticks since boot: tells a reused pid; 0: unknown */
    char host[64];
};

struct comm {
    const struct comm_ops *ops;
    int rank, size;
    const struct comm_peer *peer; /* [size] */
    int threads; /* how many threads each rank keeps busy; 1 until the caller says otherwise. Waiting spins
                  * only where cores are left over. */
    struct comm_stats stats;
};

struct comm_ops {
    const char *name; /* "self", "threads", "mpi/shm", "mpi/net" */
    int (*barrier)(struct comm *c, struct err *e);
    int (*bcast)(struct comm *c, void *data, size_t bytes, int root, struct err *e);
    int (*allreduce)(struct comm *c, float *x, size_t n, struct err *e);
    int (*reduce_scatter)(struct comm *c, const float *in, const size_t *count, float *out, struct err *e);
    int (*allgather)(struct comm *c, const void *in, void *out, const size_t *bytes, struct err *e);
    int (*alltoall)(struct comm *c, const void *in, const size_t *send_bytes, void *out,
                    const size_t *recv_bytes, struct err *e);
    int (*send)(struct comm *c, const void *data, size_t bytes, int to, struct err *e);
    int (*recv)(struct comm *c, void *data, size_t bytes, int from, struct err *e);
    int (*split)(struct comm *c, int color, int key, struct comm **ret, struct err *e);
    void (*abort)(struct comm *c, const char *why);
    void (*close)(struct comm *c);
};

/* max_bytes: the largest message (allreduce: n * 4; the others: the sum over ranks) that should go in one
 * piece and must not allocate; it sizes the buffers, within bounds (README.md). Larger ones work, in pieces.
 */
struct comm *comm_self_new(void);
/* Fills ret[0..n) with the n endpoints of one group; each goes to its own thread. Closing all of them frees
 * the group. */
int comm_threads_new(int n, size_t max_bytes, struct comm **ret, struct err *e);
/* How many ranks, if an MPI launcher started this process with more than one; else 0. */
int comm_mpi_launched(void);
/* What the launcher says before anything is opened: this process's rank, and how many ranks it started on
 * this host, this one included. 0 and 1 without a launcher. */
int comm_mpi_rank(void);
int comm_mpi_local_size(void);
/* Joins the world that the launcher made. Without MPI in the build: ERR_UNSUPPORTED. One call a process. The
 * environment variable YOKE_COMM=net keeps ranks of one host out of shared memory (for tests and for
 * sandboxes that forbid it). Close all groups split from the world, then the world: that waits for the other
 * ranks to do so and ends MPI. If a rank was lost or gave up, MPI ends with the process instead, and takes
 * all other ranks with it; the exit code is that of the process. So report the error, then exit soon: where
 * there are several hosts, a process that takes more than seconds to do so ends by itself, with code 9 and a
 * line on standard error.
 */
int comm_mpi_open(size_t max_bytes, struct comm **ret, struct err *e);
/* What its bytes travel over, for reports: "shared memory", "TCP", ... */
const char *comm_carrier(const struct comm *c);
/* "rank 2 on host n1 (pid 4242)": for messages. buf is the caller's. */
const char *comm_describe(const struct comm *c, int rank, char *buf, size_t n);

/* The calls: they time, count and forward. In place: x, data. Parts are in rank order, concatenated without
 * gaps. */
int comm_barrier(struct comm *c, struct err *e);
int comm_bcast(struct comm *c, void *data, size_t bytes, int root, struct err *e);
int comm_allreduce(struct comm *c, float *x, size_t n, struct err *e);
/* in: size parts of count[r] floats each; out: this rank's part, summed. */
int comm_reduce_scatter(struct comm *c, const float *in, const size_t *count, float *out, struct err *e);
/* in: bytes[rank] bytes, which may already lie in their place in out; out: all parts. */
int comm_allgather(struct comm *c, const void *in, void *out, const size_t *bytes, struct err *e);
int comm_alltoall(struct comm *c, const void *in, const size_t *send_bytes, void *out,
                  const size_t *recv_bytes, struct err *e);
/* First in, first out for each pair of ranks; independent of the collectives. Up to COMM_SEND_BUFFERED bytes
 * to a rank that has received all before do not wait for it, so two ranks may send each other such messages
 * and then receive; larger ones may wait until the receiver takes them. */
#define COMM_SEND_BUFFERED 4000
int comm_send(struct comm *c, const void *data, size_t bytes, int to, struct err *e);
int comm_recv(struct comm *c, void *data, size_t bytes, int from, struct err *e);
/* The ranks that pass the same color (>= 0) form a new group, ordered by key, then by rank. A negative color
 * joins none: *ret is NULL. Collective over c. */
int comm_split(struct comm *c, int color, int key, struct comm **ret, struct err *e);
/* Tells all others that this rank gives up, and why. Callable at any time, from any thread, also while others
 * wait. */
void comm_abort(struct comm *c, const char *why);
void comm_close(struct comm *c); /* NULL is fine */

#endif
