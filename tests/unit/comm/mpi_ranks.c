/* mpi_ranks.c: one rank of a world that mpi_run.sh starts.
 *   mpi_ranks check shm|net|mixed   everything a group must do; exits 0
 *   mpi_ranks kill            rank 1 kills itself amid collectives; the others ignore the launcher's SIGTERM
 *                             for a moment, so as to show that they find out by themselves, and say so
 *   mpi_ranks die             the same, but the launcher may end the others before they can say anything
 *   mpi_ranks abort           rank 1 gives up
 *   mpi_ranks busy            the last rank computes for longer than silence may last: no harm; exits 0
 *   mpi_ranks stop            the last rank stops (SIGSTOP), as if its host was gone; rank 0 computes on
 * mixed: as if each two ranks were a host: messages between, groups of one host in shared memory.
 */
#include <mpi.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/beat.h"
#include "comm/net.h"
#include "tests/unit/comm/exercise.h"

static void check(struct comm *c, const char *kind)
{
    char who[128];
    CHECK(!strcmp(c->ops->name, !strcmp(kind, "shm") ? "mpi/shm" : "mpi/net"));
    snprintf(who, sizeof(who), "(pid %d)", getpid());
    char text[128];
    CHECK(strstr(comm_describe(c, c->rank, text, sizeof(text)), who));
    exercise(c, 11, 150, 30000);
    exercise(c, 12, 20, 3000000);
    exercise_split(c, 13, 40, 20000);
    struct comm *again = NULL;
    struct err e = {0};
    if (!strcmp(kind, "mixed"))
        return;
    CHECK(comm_mpi_open(1000, &again, &e) == ERR_USAGE && strstr(e.msg, "opened before"));
}

static struct comm *open_mixed(void)
{
    struct err e = {0};
    struct comm *c, *pair;
    MPI_Comm all;
    int rank, level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
    CHECK_OK(net_new(all, rank / 2, 1, 30000, &c, &e), &e);
    CHECK_OK(net_watch(c, true, &e), &e);
    CHECK_OK(comm_split(c, rank / 2, 0, &pair, &e), &e);
    CHECK(!strcmp(pair->ops->name, "mpi/shm") && pair->size == 2);
    comm_close(pair);
    return c;
}

static void compute(double seconds)
{
    volatile double x = 1;
    for (int64_t end = clock_ns() + (int64_t)(seconds * 1e9); clock_ns() < end;)
        for (int i = 0; i < 1000000; i++)
            x = x * 1.0000001;
}

static void busy(struct comm *c)
{
    struct err e = {0};
    if (c->rank == c->size - 1)
        compute(BEAT_SILENCE_MS * 1e-3 + 2);
    CHECK_OK(comm_barrier(c, &e), &e);
}

/* Rank 0 is not listening, so its own thread must end it. It is the first to end, and with it the job: the
 * others have noticed, closed the group, and are given longer to leave. */
static void stop(struct comm *c)
{
    struct err e = {0};
    CHECK_OK(comm_barrier(c, &e), &e);
    signal(SIGTERM, SIG_IGN);
    if (c->rank == c->size - 1) {
        fprintf(stderr, "rank 1: the end comes at %lld s\n", (long long)time(NULL));
        raise(SIGSTOP);
    }
    if (c->rank == 0)
        compute(30);
    CHECK(comm_barrier(c, &e) == ERR_RANK_LOST);
    fprintf(stderr, "rank %d: %s\n", c->rank, e.msg);
    comm_close(c);
    sleep(10); /* as if on the way out it hung */
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct comm *c, *pair = NULL;
    const char *how = argc > 1 ? argv[1] : "check", *kind = argc > 2 ? argv[2] : "shm";
    int mixed = !strcmp(kind, "mixed");
    CHECK(comm_mpi_launched());
    if (mixed)
        c = open_mixed();
    else
        CHECK_OK(comm_mpi_open(30000, &c, &e), &e);
    if (!strcmp(how, "stop"))
        stop(c);
    if (!strcmp(how, "check") || !strcmp(how, "busy")) {
        if (!strcmp(how, "busy"))
            busy(c);
        else
            check(c, kind);
        comm_barrier(c, NULL); /* as the world's close does */
        comm_close(c);
        if (mixed)
            MPI_Finalize();
        return 0;
    }

    int dies = !strcmp(how, "die"), kills = !strcmp(how, "kill");
    if (kills)
        signal(SIGTERM, SIG_IGN);
    float x[1000] = {0};
    CHECK_OK(comm_split(c, c->rank / 2, 0, &pair, &e), &e);
    int64_t since = 0;
    int rc = 0;
    for (int i = 0; !rc; i++) {
        if (i == 50 && c->rank == 1) {
            usleep(300000); /* the others have gone to sleep */
            fprintf(stderr, "rank 1: the end comes at %lld s\n", (long long)time(NULL));
            if (kills || dies)
                raise(SIGKILL);
            comm_abort(c, "the model file is gone");
        }
        if (i == 50)
            since = clock_ns();
        /* Ranks 0 and 1 go on alone: the other pair waits, in its own group, for one that waits for them. */
        rc = comm_allreduce(i < 50 || c->rank == 2 ? c : pair, x, 1000, &e);
    }
    CHECK(rc == ERR_RANK_LOST && e.code == rc);
    fprintf(stderr, "rank %d: after %.2f s: %s\n", c->rank, (double)(clock_ns() - since) * 1e-9, e.msg);
    comm_close(pair);
    comm_close(c);
    if (mixed)
        MPI_Abort(MPI_COMM_WORLD, -rc);
    return 2; /* and the others end with it */
}
