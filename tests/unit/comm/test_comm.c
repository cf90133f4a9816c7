#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/unit/comm/exercise.h"
#include "comm/tree.h"
#include "kernels/sum.h"

/* ---- running one function on all ranks ---- */

struct job {
    struct comm *c;
    void (*run)(struct comm *c, uint64_t arg);
    uint64_t arg;
};

static void *job_main(void *p)
{
    struct job *j = p;
    j->run(j->c, j->arg);
    return NULL;
}

/* Each rank runs `run` on its endpoint in its own thread, and closes it. */
static void on_all(int n, size_t max_bytes, void (*run)(struct comm *, uint64_t), uint64_t arg)
{
    struct comm *c[16];
    struct job job[16];
    pthread_t thread[16];
    struct err e = {0};
    CHECK_OK(comm_threads_new(n, max_bytes, c, &e), &e);
    for (int r = 0; r < n; r++) {
        assert_int_equal(c[r]->rank, r);
        assert_int_equal(c[r]->size, n);
        job[r] = (struct job){c[r], run, arg};
        assert_int_equal(pthread_create(&thread[r], NULL, job_main, &job[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
}

static void run_exercise(struct comm *c, uint64_t seed)
{
    exercise(c, seed, 300, 40000);
    comm_close(c);
}

static void test_threads(void **state)
{
    for (int n = 1; n <= 8; n++)
        on_all(n, 40000, run_exercise, (uint64_t)n);
    on_all(13, 20000, run_exercise, 13);
}

/* Messages larger than what the group was made for, and than a slot can be. */
static void run_large(struct comm *c, uint64_t seed)
{
    exercise(c, seed, 40, 1200000);
    comm_close(c);
}

static void test_larger_than_promised(void **state)
{
    for (int n = 2; n <= 5; n++)
        on_all(n, 1000, run_large, (uint64_t)n);
    on_all(3, (size_t)1 << 20, run_large, 7);
}

static void run_split(struct comm *c, uint64_t seed)
{
    exercise_split(c, seed, 60, 20000);
    comm_close(c);
}

static void test_split(void **state)
{
    for (int n = 1; n <= 8; n++)
        on_all(n, 20000, run_split, (uint64_t)n + 100);
}

static void test_self(void **state)
{
    struct comm *c = comm_self_new();
    exercise(c, 5, 300, 10000);
    exercise_split(c, 6, 30, 1000);
    char who[128];
    assert_non_null(strstr(comm_describe(c, 0, who, sizeof(who)), "rank 0 on host "));
    assert_string_equal(c->ops->name, "self");
    comm_close(c);
    comm_close(NULL);
}

/* ---- the sum itself ---- */

static void test_tree_sum(void **state)
{
    enum { LEN = 700 };
    static float part[15][LEN], out[LEN];
    const float *p[15];
    uint64_t s = 1;
    for (int n = 1; n <= 15; n++) {
        for (int r = 0; r < n; r++) {
            p[r] = part[r];
            for (int i = 0; i < LEN; i++)
                part[r][i] = (float)(int32_t)random_next(&s) * 0x1p-20f;
        }
        for (size_t len = 0; len <= LEN; len += len < 5 ? 1 : 139) {
            out[len < LEN ? len : 0] = -1;
            tree_sum(out, p, n, len);
            for (size_t i = 0; i < len; i++) {
                struct tree t = {0};
                for (int r = 0; r < n; r++)
                    tree_push(&t, part[r][i]);
                float want = tree_join(&t);
                assert_memory_equal(&out[i], &want, sizeof(want));
            }
            if (len < LEN)
                assert_true(out[len] == -1);
        }
        /* in place */
        tree_sum(out, p, n, LEN);
        tree_sum(part[n / 2], p, n, LEN);
        assert_memory_equal(out, part[n / 2], sizeof(out));
    }
}

/* ---- failing ---- */

static void run_abort(struct comm *c, uint64_t how)
{
    struct err e = {0};
    struct comm *sub = NULL;
    float x[10] = {0};
    uint8_t big[100000];
    int64_t since;
    CHECK_OK(comm_split(c, c->rank % 2, 0, &sub, &e), &e);
    since = clock_ns();
    if (c->rank == 1) {
        usleep(how & 1 ? 0 : 20000); /* the others spin, or sleep */
        comm_abort(how & 2 ? sub : c, "the model file is gone");
    }
    int rc = 0;
    if (c->rank == 2) /* waits in a sub-group that the lost rank is no member of */
        rc = comm_recv(sub, big, sizeof(big), 0, &e);
    else if (c->rank == 0)
        while (!rc)
            rc = comm_send(c, big, sizeof(big), 3, &e);
    else
        rc = comm_allreduce(c, x, 10, &e);
    CHECK(rc == ERR_RANK_LOST && e.code == rc);
    CHECK(strstr(e.msg, "rank 1 on host ") && strstr(e.msg, "gave up: the model file is gone"));
    CHECK(clock_ns() - since < 2000000000);
    /* ... and so do later calls, of every kind, at once. */
    size_t size[4] = {4, 4, 4, 4};
    struct comm *none;
    CHECK(comm_barrier(c, &e) == ERR_RANK_LOST);
    CHECK(comm_bcast(c, big, 5, 0, NULL) == ERR_RANK_LOST);
    CHECK(comm_reduce_scatter(c, x, size, x, NULL) == ERR_RANK_LOST);
    CHECK(comm_allgather(sub, x, big, size, NULL) == ERR_RANK_LOST);
    CHECK(comm_alltoall(c, big, size, big + 100, size, NULL) == ERR_RANK_LOST);
    CHECK(comm_send(c, big, 1, (c->rank + 1) % 4, NULL) == ERR_RANK_LOST);
    CHECK(comm_recv(c, big, 1, (c->rank + 1) % 4, NULL) == ERR_RANK_LOST);
    CHECK(comm_split(c, 0, 0, &none, NULL) == ERR_RANK_LOST);
    comm_close(sub);
    comm_close(c);
}

static void test_abort(void **state)
{
    for (uint64_t how = 0; how < 4; how++)
        on_all(4, 1000, run_abort, how);
}

/* A rank that closes while others count on it. */
static void run_leave(struct comm *c, uint64_t arg)
{
    struct err e = {0};
    float x[10] = {0};
    if (c->rank == 2) {
        usleep(20000);
    } else {
        CHECK(comm_allreduce(c, x, 10, &e) == ERR_RANK_LOST);
        CHECK(strstr(e.msg, "rank 2 on host ") && strstr(e.msg, "has closed the group"));
    }
    comm_close(c);
}

/* ... but it may leave first, once it has done its part. */
static void run_leave_late(struct comm *c, uint64_t arg)
{
    struct err e = {0};
    uint8_t x[10] = {0};
    if (c->rank == 0) {
        CHECK_OK(comm_bcast(c, x, sizeof(x), 0, &e), &e);
        for (int r = 1; r < c->size; r++)
            CHECK_OK(comm_send(c, x, sizeof(x), r, &e), &e);
    } else {
        usleep(10000);
        CHECK_OK(comm_bcast(c, x, sizeof(x), 0, &e), &e);
        CHECK_OK(comm_recv(c, x, sizeof(x), 0, &e), &e);
    }
    comm_close(c);
}

static void test_leave(void **state)
{
    on_all(4, 1000, run_leave, 0);
    for (int i = 0; i < 20; i++)
        on_all(4, 1000, run_leave_late, 0);
}

/* Ranks that call different things learn so, and which. */
static void run_disagree(struct comm *c, uint64_t how)
{
    struct err e = {0};
    float x[64] = {0};
    size_t two[2] = {8, 8}, odd[2] = {4, 8};
    int rc;
    if (how == 0)
        rc = c->rank ? comm_barrier(c, &e) : comm_allreduce(c, x, 10, &e);
    else if (how == 1)
        rc = comm_allreduce(c, x, c->rank ? 10 : 11, &e);
    else if (how == 2)
        rc = comm_alltoall(c, x, two, x + 8, c->rank ? odd : two, &e);
    else
        rc = c->rank ? comm_recv(c, x, 5, 0, &e) : comm_send(c, x, 6, 1, &e);
    if (!rc)
        rc = comm_barrier(c, &e);
    CHECK(rc == ERR_SPLIT || rc == ERR_RANK_LOST);
    CHECK(strstr(e.msg, "the ranks disagree: ") && strstr(e.msg, "rank 0 on ") &&
          strstr(e.msg, "rank 1 on "));
    if (how == 0)
        CHECK(strstr(e.msg, "calls barrier") && strstr(e.msg, "calls allreduce of 40 bytes"));
    if (how == 3)
        CHECK(strstr(e.msg, "sends 6 bytes") && strstr(e.msg, "expects 5"));
    comm_close(c);
}

static void test_disagree(void **state)
{
    for (uint64_t how = 0; how < 4; how++)
        on_all(2, 1000, run_disagree, how);
}

/* ---- bookkeeping ---- */

static void run_stats(struct comm *c, uint64_t arg)
{
    struct err e = {0};
    float x[64] = {0}, y[64];
    size_t count[3] = {1, 2, 3}, bytes[3] = {4, 5, 6};
    CHECK_OK(comm_barrier(c, &e), &e);
    CHECK_OK(comm_bcast(c, x, 100, 1, &e), &e);
    CHECK_OK(comm_allreduce(c, x, 7, &e), &e);
    CHECK_OK(comm_allreduce(c, x, 8, &e), &e);
    CHECK_OK(comm_reduce_scatter(c, x, count, y, &e), &e);
    CHECK_OK(comm_allgather(c, x, y, bytes, &e), &e);
    size_t four[3] = {4, 4, 4};
    CHECK_OK(comm_alltoall(c, x, four, y, four, &e), &e);
    if (c->rank == 0)
        CHECK_OK(comm_send(c, x, 77, 2, &e), &e);
    if (c->rank == 2)
        CHECK_OK(comm_recv(c, x, 77, 0, &e), &e);
    const struct comm_stats *s = &c->stats;
    CHECK(s->calls[COMM_BARRIER] == 1 && s->bytes[COMM_BARRIER] == 0 && s->ns[COMM_BARRIER] > 0);
    CHECK(s->calls[COMM_BCAST] == 1 && s->bytes[COMM_BCAST] == (c->rank == 1 ? 100 : 0));
    CHECK(s->calls[COMM_ALLREDUCE] == 2 && s->bytes[COMM_ALLREDUCE] == 60 && s->ns[COMM_ALLREDUCE] > 0);
    CHECK(s->calls[COMM_REDUCE_SCATTER] == 1 && s->bytes[COMM_REDUCE_SCATTER] == 24);
    CHECK(s->calls[COMM_ALLGATHER] == 1 && s->bytes[COMM_ALLGATHER] == bytes[c->rank]);
    CHECK(s->calls[COMM_ALLTOALL] == 1 && s->bytes[COMM_ALLTOALL] == 12);
    CHECK(s->calls[COMM_SEND] == (c->rank == 0) && s->bytes[COMM_SEND] == (c->rank == 0 ? 77 : 0));
    CHECK(s->calls[COMM_RECV] == (c->rank == 2) && s->bytes[COMM_RECV] == (c->rank == 2 ? 77 : 0));
    CHECK(!strcmp(c->ops->name, "threads"));
    comm_close(c);
}

static void test_stats(void **state)
{
    on_all(3, 1000, run_stats, 0);
}

/* Ranks that wait for minutes must not burn a core: 7 ranks wait for one that sleeps. */
static void run_idle(struct comm *c, uint64_t arg)
{
    struct err e = {0};
    int x = 0;
    if (c->rank == 0)
        usleep(600000);
    CHECK_OK(comm_bcast(c, &x, sizeof(x), 0, &e), &e);
    comm_close(c);
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_idle(void **state)
{
    double before = cpu_s();
    on_all(8, 1000, run_idle, 0);
    assert_true(cpu_s() - before < 0.1); /* of 4.2 s of waiting */
}

static void test_bounds(void **state)
{
    struct comm *c[1];
    struct err e = {0};
    assert_int_equal(comm_threads_new(0, 1, c, &e), ERR_LIMIT);
    assert_int_equal(comm_threads_new(100000, 1, c, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "100000"));
}

static void test_launcher(void **state)
{
    assert_false(comm_mpi_launched());
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    assert_false(comm_mpi_launched());
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_true(comm_mpi_launched());
    unsetenv("OMPI_COMM_WORLD_SIZE");

    struct comm *c = NULL;
    struct err e = {0};
#ifdef YOKE_MPI
    setenv("YOKE_COMM", "pigeons", 1);
    assert_int_equal(comm_mpi_open(1, &c, &e), ERR_USAGE);
    assert_non_null(strstr(e.msg, "YOKE_COMM is \"pigeons\""));
    unsetenv("YOKE_COMM");
#else
    assert_int_equal(comm_mpi_open(1, &c, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "without MPI"));
#endif
    assert_null(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_sum), cmocka_unit_test(test_self),
        cmocka_unit_test(test_threads),  cmocka_unit_test(test_larger_than_promised),
        cmocka_unit_test(test_split),    cmocka_unit_test(test_abort),
        cmocka_unit_test(test_leave),    cmocka_unit_test(test_disagree),
        cmocka_unit_test(test_stats),    cmocka_unit_test(test_idle),
        cmocka_unit_test(test_bounds),   cmocka_unit_test(test_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
