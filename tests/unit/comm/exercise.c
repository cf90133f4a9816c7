#include "tests/unit/comm/exercise.h"

#include <string.h>

#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/sum.h"

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* What rank r puts at place i of operation `key`: floats whose sums depend on their order, and bytes. */
static float value(uint64_t key, int r, size_t i)
{
    uint64_t s = key ^ (uint64_t)r << 48 ^ i;
    uint64_t x = random_next(&s);
    float f = (float)(int64_t)(x >> 32) - 0x1p31f;
    return f * (1 << (x & 15)) * 0x1p-30f;
}

static uint8_t byte(uint64_t key, int r, size_t i)
{
    return (uint8_t)((key >> 3) + (uint64_t)r * 61 + i * 7 + (i >> 8));
}

static float tree(uint64_t key, int n, size_t i)
{
    struct tree t = {0};
    for (int r = 0; r < n; r++)
        tree_push(&t, value(key, r, i));
    return tree_join(&t);
}

static int same_bits(float a, float b)
{
    return !memcmp(&a, &b, sizeof(a));
}

static size_t random_size(uint64_t *s, size_t most)
{
    switch (random_next(s) % 8) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
    case 3:
        return random_next(s) % (MIN(most, (size_t)64) + 1);
    case 4:
    case 5:
    case 6:
        return random_next(s) % (MIN(most, (size_t)2000) + 1);
    default:
        return random_next(s) % (most + 1);
    }
}

struct bench {
    struct comm *c;
    uint64_t key;
    float *in, *out;
    uint8_t *from, *to;
    size_t most; /* bytes in each of these, per rank: they have room for all ranks */
    struct err e;
};

/* Nobody leaves a barrier before the last has come (the clock is the same for all ranks of a host). */
static void do_barrier(struct bench *b, uint64_t *s)
{
    int64_t came_left[16][2], came = 0, left = INT64_MAX;
    size_t bytes[16];
    int late = (int)(random_next(s) % (4 * (uint64_t)b->c->size));
    if (late == b->c->rank)
        usleep(2000);
    came_left[15][0] = clock_ns();
    alloc_guard_begin();
    CHECK_OK(comm_barrier(b->c, &b->e), &b->e);
    alloc_guard_end();
    came_left[15][1] = clock_ns();
    for (int r = 0; r < b->c->size; r++)
        bytes[r] = sizeof(came_left[0]);
    CHECK_OK(comm_allgather(b->c, came_left[15], came_left, bytes, &b->e), &b->e);
    for (int r = 0; r < b->c->size; r++) {
        came = MAX(came, came_left[r][0]);
        left = MIN(left, came_left[r][1]);
    }
    CHECK(came <= left);
}

static void do_allreduce(struct bench *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        b->in[i] = value(b->key, b->c->rank, i);
    b->in[n] = 42;
    alloc_guard_begin();
    CHECK_OK(comm_allreduce(b->c, b->in, n, &b->e), &b->e);
    alloc_guard_end();
    for (size_t i = 0; i < n; i++)
        CHECK(same_bits(b->in[i], tree(b->key, b->c->size, i)));
    CHECK(b->in[n] == 42);
}

static void do_reduce_scatter(struct bench *b, uint64_t *s)
{
    size_t count[16], total = 0, mine = 0;
    int n = b->c->size;
    for (int r = 0; r < n; r++) {
        count[r] = random_size(s, b->most / sizeof(float) / (size_t)n);
        if (r < b->c->rank)
            mine += count[r];
        total += count[r];
    }
    for (size_t i = 0; i < total; i++)
        b->in[i] = value(b->key, b->c->rank, i);
    b->out[count[b->c->rank]] = 42;
    alloc_guard_begin();
    CHECK_OK(comm_reduce_scatter(b->c, b->in, count, b->out, &b->e), &b->e);
    alloc_guard_end();
    for (size_t i = 0; i < count[b->c->rank]; i++)
        CHECK(same_bits(b->out[i], tree(b->key, n, mine + i)));
    CHECK(b->out[count[b->c->rank]] == 42);
}

static void do_allgather(struct bench *b, uint64_t *s)
{
    size_t bytes[16], at[17] = {0};
    int n = b->c->size, me = b->c->rank, in_place = (int)(random_next(s) & 1);
    for (int r = 0; r < n; r++) {
        bytes[r] = random_size(s, b->most / (size_t)n);
        at[r + 1] = at[r] + bytes[r];
    }
    uint8_t *in = in_place ? b->to + at[me] : b->from;
    memset(b->to, 0, at[n]);
    for (size_t i = 0; i < bytes[me]; i++)
        in[i] = byte(b->key, me, i);
    b->to[at[n]] = 42;
    alloc_guard_begin();
    CHECK_OK(comm_allgather(b->c, in, b->to, bytes, &b->e), &b->e);
    alloc_guard_end();
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < bytes[r]; i++)
            CHECK(b->to[at[r] + i] == byte(b->key, r, i));
    CHECK(b->to[at[n]] == 42);
}

static void do_alltoall(struct bench *b, uint64_t *s)
{
    size_t bytes[16][16], whole = 0;
    int n = b->c->size, me = b->c->rank;
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++)
            bytes[from][to] = random_size(s, b->most / (size_t)n);
    size_t recv[16];
    for (int r = 0; r < n; r++) {
        recv[r] = bytes[r][me];
        for (size_t i = 0; i < bytes[me][r]; i++)
            b->from[whole++] = byte(b->key + (uint64_t)r * 8, me, i);
    }
    alloc_guard_begin();
    CHECK_OK(comm_alltoall(b->c, b->from, bytes[me], b->to, recv, &b->e), &b->e);
    alloc_guard_end();
    whole = 0;
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < recv[r]; i++)
            CHECK(b->to[whole++] == byte(b->key + (uint64_t)me * 8, r, i));
}

static void do_bcast(struct bench *b, size_t bytes, int root)
{
    for (size_t i = 0; i < bytes; i++)
        b->to[i] = b->c->rank == root ? byte(b->key, root, i) : 0;
    alloc_guard_begin();
    CHECK_OK(comm_bcast(b->c, b->to, bytes, root, &b->e), &b->e);
    alloc_guard_end();
    for (size_t i = 0; i < bytes; i++)
        CHECK(b->to[i] == byte(b->key, root, i));
}

static void send_one(struct bench *b, size_t bytes, int to)
{
    for (size_t i = 0; i < bytes; i++)
        b->from[i] = byte(b->key, b->c->rank, i);
    alloc_guard_begin();
    CHECK_OK(comm_send(b->c, b->from, bytes, to, &b->e), &b->e);
    alloc_guard_end();
}

static void recv_one(struct bench *b, size_t bytes, int from)
{
    alloc_guard_begin();
    CHECK_OK(comm_recv(b->c, b->to, bytes, from, &b->e), &b->e);
    alloc_guard_end();
    for (size_t i = 0; i < bytes; i++)
        CHECK(b->to[i] == byte(b->key, from, i));
}

/* Everyone sends to everyone, or to the next, before anyone receives. */
static void do_send_first(struct bench *b, uint64_t *s)
{
    int n = b->c->size, me = b->c->rank, all = (int)(random_next(s) & 1);
    size_t bytes = random_size(s, COMM_SEND_BUFFERED);
    for (int hop = 1; hop < (all ? n : 2); hop++)
        send_one(b, bytes, (me + hop) % n);
    for (int hop = 1; hop < (all ? n : 2); hop++)
        recv_one(b, bytes, (me + n - hop) % n);
}

/* A pipeline: several messages of any size down the ranks. */
static void do_pipeline(struct bench *b, uint64_t *s)
{
    for (int i = 0; i < 3; i++) {
        size_t bytes = random_size(s, b->most);
        uint64_t key = b->key;
        b->key += (uint64_t)i * 1000;
        if (b->c->rank > 0)
            recv_one(b, bytes, b->c->rank - 1);
        if (b->c->rank + 1 < b->c->size)
            send_one(b, bytes, b->c->rank + 1);
        b->key = key;
    }
}

void exercise(struct comm *c, uint64_t seed, int rounds, size_t most_bytes)
{
    struct bench b = {.c = c, .most = most_bytes};
    size_t room = most_bytes + 4096;
    uint64_t s = seed;
    b.in = xcalloc(room, 1);
    b.out = xcalloc(room, 1);
    b.from = xcalloc(room, 1);
    b.to = xcalloc(room, 1);
    CHECK(c->size <= 15);
    for (int i = 0; i < rounds; i++) {
        int kind = (int)(random_next(&s) % 9);
        b.key = random_next(&s);
        if (kind == 0) {
            do_barrier(&b, &s);
        } else if (kind == 1) {
            size_t bytes = random_size(&s, b.most);
            do_bcast(&b, bytes, (int)(random_next(&s) % (uint64_t)c->size));
        } else if (kind == 2 || kind == 3) {
            do_allreduce(&b, random_size(&s, b.most / sizeof(float)));
        } else if (kind == 4) {
            do_reduce_scatter(&b, &s);
        } else if (kind == 5) {
            do_allgather(&b, &s);
        } else if (kind == 6) {
            do_alltoall(&b, &s);
        } else if (c->size > 1 && kind == 7) {
            do_send_first(&b, &s);
        } else if (c->size > 1) {
            do_pipeline(&b, &s);
        }
    }
    xfree(b.in);
    xfree(b.out);
    xfree(b.from);
    xfree(b.to);
}

void exercise_split(struct comm *c, uint64_t seed, int rounds, size_t most_bytes)
{
    uint64_t s = seed;
    struct err e = {0};
    for (int i = 0; i < 3; i++) {
        int colors[16] = {0}, keys[16] = {0}, me = c->rank, size = 0, rank = 0;
        for (int r = 0; r < c->size; r++) {
            colors[r] = (int)(random_next(&s) % 3) - (i == 2); /* the last time some take no part */
            keys[r] = (int)(random_next(&s) % 3);
        }
        for (int r = 0; r < c->size; r++) {
            size += colors[r] == colors[me];
            rank += colors[r] == colors[me] && (keys[r] < keys[me] || (keys[r] == keys[me] && r < me));
        }
        struct comm *sub = NULL, *halves = NULL;
        CHECK_OK(comm_split(c, colors[me], keys[me], &sub, &e), &e);
        CHECK(!sub == (colors[me] < 0));
        if (sub) {
            CHECK(sub->size == size && sub->rank == rank);
            CHECK(sub->peer[rank].rank == c->peer[me].rank);
            exercise(sub, seed + (uint64_t)colors[me], rounds, most_bytes);
            CHECK_OK(comm_split(sub, 2 * sub->rank >= sub->size, -sub->rank, &halves, &e), &e);
            exercise(halves, seed + (uint64_t)colors[me] * 2 + (2 * sub->rank >= sub->size), rounds / 2,
                     most_bytes);
        }
        exercise(c, seed * 3, rounds / 2, most_bytes);
        comm_close(halves);
        if (sub)
            exercise(sub, seed + (uint64_t)colors[me], rounds / 4, most_bytes);
        comm_close(sub);
    }
}
