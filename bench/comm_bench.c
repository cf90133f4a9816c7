/* comm_bench.c: what an all-reduce costs, beside MPI's own.
 *
 *     mpirun -n 4 build/bench/comm_bench [most-bytes]
 *
 * Per size, blocks of calls back to back: yoke between processes, MPI_Allreduce between the same processes,
 * yoke between as many threads of rank 0 (the other processes sleep); alternating, so that whatever else the
 * machine does hits all alike. Printed, of the mean time of a call on rank 0 within a block: the best block,
 * and the median one. On a machine that others use the best is the one to compare. YOKE_COMM=net benches MPI
 * messages instead of shared memory.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm.h"

#define BLOCKS 11

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "comm_bench: %s: %s\n", what, e->msg);
    exit(1);
}

/* calls all-reduces of n floats back to back: seconds a call */
static double block(struct comm *c, float *x, size_t n, int calls)
{
    struct err e = {0};
    if (comm_barrier(c, &e))
        die("barrier", &e);
    double since = clock_s();
    for (int i = 0; i < calls; i++)
        if (comm_allreduce(c, x, n, &e))
            die("allreduce", &e);
    return (clock_s() - since) / calls;
}

static double block_mpi(struct comm *c, float *x, size_t n, int calls)
{
    struct err e = {0};
    if (comm_barrier(c, &e))
        die("barrier", &e);
    double since = clock_s();
    for (int i = 0; i < calls; i++)
        MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (clock_s() - since) / calls;
}

struct thread {
    struct comm *c;
    size_t n;
    int calls;
    float *x;
    double s;
};

static void *thread_main(void *p)
{
    struct thread *t = p;
    block(t->c, t->x, t->n, 3);
    t->s = block(t->c, t->x, t->n, t->calls);
    return NULL;
}

/* Rank 0's threads; all other processes wait asleep. */
static double block_threads(struct comm *c, struct thread *t, size_t n, int calls)
{
    struct err e = {0};
    pthread_t id[64];
    for (int r = 0; c->rank == 0 && r < c->size; r++) {
        t[r].n = n;
        t[r].calls = calls;
        if (pthread_create(&id[r], NULL, thread_main, &t[r]))
            abort();
    }
    for (int r = 0; c->rank == 0 && r < c->size; r++)
        pthread_join(id[r], NULL);
    if (comm_barrier(c, &e))
        die("barrier", &e);
    return t[0].s;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *v)
{
    qsort(v, BLOCKS, sizeof(*v), by_value);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct comm *c, *threads[64];
    struct thread t[64] = {0};
    size_t most = argc > 1 ? strtoull(argv[1], NULL, 0) : (size_t)8 << 20;
    if (comm_mpi_open(most, &c, &e))
        die("open", &e);
    if (c->size > 64 || (c->rank == 0 && comm_threads_new(c->size, most, threads, &e)))
        die("threads", &e);
    float *x = xcalloc(most, 1);
    for (int r = 0; c->rank == 0 && r < c->size; r++) {
        t[r].c = threads[r];
        t[r].x = xcalloc(most, 1);
    }
    if (c->rank == 0)
        printf("%d ranks, all-reduce of f32, us a call: best (median)\n%10s %19s %19s %19s %8s %8s\n",
               c->size, "bytes", c->ops->name, "MPI", "threads", c->ops->name, "threads");
    for (size_t bytes = 4096; bytes <= most; bytes *= bytes < 1 << 20 ? 4 : 8) {
        size_t n = bytes / sizeof(float);
        double own[BLOCKS], mpi[BLOCKS], thr[BLOCKS];
        int calls = (int)MIN((size_t)1000, ((size_t)16 << 20) / bytes / (size_t)c->size);
        calls = MAX(calls, 2);
        block(c, x, n, 3);
        block_mpi(c, x, n, 3);
        for (int i = 0; i < BLOCKS; i++) {
            own[i] = block(c, x, n, calls);
            mpi[i] = block_mpi(c, x, n, calls);
            thr[i] = block_threads(c, t, n, calls);
        }
        sort(own);
        sort(mpi);
        sort(thr);
        if (c->rank == 0)
            printf("%10zu %8.1f (%8.1f) %8.1f (%8.1f) %8.1f (%8.1f) %7.1fx %7.1fx\n", bytes, own[0] * 1e6,
                   own[BLOCKS / 2] * 1e6, mpi[0] * 1e6, mpi[BLOCKS / 2] * 1e6, thr[0] * 1e6,
                   thr[BLOCKS / 2] * 1e6, mpi[0] / own[0], mpi[0] / thr[0]);
        fflush(stdout);
    }
    for (int r = 0; c->rank == 0 && r < c->size; r++) {
        comm_close(threads[r]);
        xfree(t[r].x);
    }
    xfree(x);
    comm_close(c);
    return 0;
}
