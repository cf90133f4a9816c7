/* mpi.c: ranks are processes that an MPI launcher started. Finds out how they can meet. */
#include "comm/comm.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef YOKE_MPI
#include "base/clock.h"
#include "base/mem.h"
#include "comm/beat.h"
#include "comm/net.h"
#include "comm/peer.h"
#include "comm/shm.h"
#endif

static int env_int(const char *name)
{
    const char *s = getenv(name);
    return s ? atoi(s) : 0;
}

int comm_mpi_launched(void)
{
    /* mpirun of Open MPI; process managers that speak PMI; srun --mpi=pmix */
    int n = env_int("OMPI_COMM_WORLD_SIZE");
    if (n < 2)
        n = env_int("PMI_SIZE");
    if (n < 2 && getenv("PMIX_NAMESPACE"))
        n = env_int("SLURM_NTASKS");
    return n > 1 ? n : 0;
}

int comm_mpi_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && comm_mpi_launched(); i++)
        if (getenv(names[i]))
            return env_int(names[i]);
    return 0;
}

int comm_mpi_local_size(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_NTASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && comm_mpi_launched(); i++)
        if (env_int(names[i]) > 0)
            return env_int(names[i]);
    return 1;
}

#ifndef YOKE_MPI

int comm_mpi_open(size_t max_bytes, struct comm **ret, struct err *e)
{
    return err_set(
        e, ERR_UNSUPPORTED,
        "this yoke was built without MPI, so it cannot run as several processes; build it with Open "
        "MPI's headers installed (libopenmpi-dev), or run one process");
}

#else

static struct {
    struct comm_ops ops; /* those of the world comm, but for close */
    void (*close)(struct comm *c);
    struct family *(*family)(struct comm *c);
    int opened, finalize, watched, lost; /* lost: 1: a rank, 2: a host */
    int64_t closed;
} world;

/* At exit, after main has said what happened; MPI_Finalize would wait for the lost. Who ends now makes the
 * launcher end all others, and they, too, should have noticed and said what they know. If a host is lost,
 * mpirun itself should notice first: it ends its job well then, but were it told to end it because a rank has
 * failed, it would wait for the lost host. */
static void leave(int status, void *ctx)
{
    (void)ctx;
    fflush(NULL); /* what follows may not */
    const int64_t wait_ms = world.lost > 1 ? BEAT_GRACE_MS : world.watched ? 500 : 0;
    while (clock_ns() < world.closed + wait_ms * 1000000)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (world.lost == 1)
        MPI_Abort(MPI_COMM_WORLD, status ? status : -ERR_RANK_LOST);
    if (!status)
        _exit(-ERR_RANK_LOST); /* whatever main thinks, this was not a success */
}

static void world_close(struct comm *c)
{
    /* Who is done first waits here rather than in MPI_Finalize, which would not notice that a host goes. */
    if (world.watched)
        c->ops->barrier(c, NULL);
    if (atomic_load(&world.family(c)->fault->state) != FAULT_NONE)
        world.lost = world.family(c)->far ? 2 : 1;
    world.closed = clock_ns();
    world.close(c);
    if (!world.finalize)
        return; /* who embeds yoke has started MPI, and ends it */
    if (world.lost)
        on_exit(leave, NULL);
    else
        MPI_Finalize();
}

/* Which host am I on? The lowest rank there names it. MPI goes by the daemon that started a process; where
 * one daemon started processes in several containers, their host names tell them apart. */
static int host_of(MPI_Comm comm, int *ret, int *ret_hosts)
{
    MPI_Comm near;
    int rank, n, rc;
    MPI_Comm_rank(comm, &rank);
    if ((rc = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &near)))
        return rc;
    struct comm_peer mine, *all;
    peer_self(&mine, rank);
    MPI_Comm_size(near, &n);
    XNEW_N(all, (size_t)n);
    rc = MPI_Allgather(&mine, (int)sizeof(mine), MPI_BYTE, all, (int)sizeof(mine), MPI_BYTE, near);
    int host = rank;
    for (int r = n - 1; r >= 0 && !rc; r--)
        if (!strcmp(all[r].host, mine.host))
            host = all[r].rank;
    xfree(all);
    if (rc || (rc = MPI_Comm_free(&near)))
        return rc;
    int leads = host == rank, hosts = 0;
    if ((rc = MPI_Allreduce(&leads, &hosts, 1, MPI_INT, MPI_SUM, comm)))
        return rc;
    *ret = host;
    *ret_hosts = hosts;
    return 0;
}

int comm_mpi_open(size_t max_bytes, struct comm **ret, struct err *e)
{
    const char *how = getenv("YOKE_COMM");
    if (how && strcmp(how, "net") && strcmp(how, "shm"))
        return err_set(
            e, ERR_USAGE,
            "YOKE_COMM is \"%s\"; it may be \"shm\" (shared memory, one host), \"net\" (MPI messages "
            "only), or unset (whichever fits)",
            how);
    if (world.opened)
        return err_set(e, ERR_USAGE, "the MPI world was opened before; a process can join it once");
    world.opened = 1;

    int rc, begun = 0, level = MPI_THREAD_SINGLE, host = 0, hosts = 0;
    MPI_Initialized(&begun);
    if (begun)
        rc = MPI_Query_thread(&level);
    else
        rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (rc)
        return err_set(e, ERR_FAIL, "MPI does not start (error %d)", rc);
    world.finalize = !begun;
    /* MPI writes to sockets whose other end may be dead. That is an error to be named, not a signal that
     * makes the survivor look like the one that failed. */
    if (!begun)
        signal(SIGPIPE, SIG_IGN);
    if (level < MPI_THREAD_SERIALIZED)
        return err_set(e, ERR_UNSUPPORTED,
                       "this MPI library was built without threads: it offers thread level %d, yoke needs "
                       "MPI_THREAD_SERIALIZED (%d)",
                       level, MPI_THREAD_SERIALIZED);

    MPI_Comm all;
    if ((rc = MPI_Comm_dup(MPI_COMM_WORLD, &all)))
        return net_error(e, "MPI_Comm_dup", rc);
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN); /* inherited by what is made from it */
    if ((rc = host_of(all, &host, &hosts)))
        return net_error(e, "MPI_Comm_split_type", rc);
    int near = hosts == 1 && !(how && !strcmp(how, "net"));
    if (how && !strcmp(how, "shm") && hosts > 1)
        return err_set(e, ERR_USAGE, "YOKE_COMM=shm, but the ranks are on %d hosts", hosts);

    struct comm *net, *c;
    if ((rc = net_new(all, host, !how || strcmp(how, "net"), near ? 0 : max_bytes, &net, e)) ||
        (hosts > 1 && (rc = net_watch(net, world.finalize, e))))
        return rc;
    world.watched = hosts > 1;
    c = net;
    if (near) { /* messages only serve to meet */
        rc = shm_processes_split(net, 0, net->rank, max_bytes, NULL, &c, e);
        net->ops->close(net);
        if (rc)
            return rc;
    }
    world.ops = *c->ops;
    world.close = c->ops->close;
    world.family = near ? shm_family : net_family;
    world.ops.close = world_close;
    c->ops = &world.ops;
    *ret = c;
    return 0;
}

#endif
