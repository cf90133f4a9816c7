/* The experts' cache: every record that is wanted is the right one when it is waited for; what is kept is
 * what a plain version of the rule keeps; hot records survive loops and floods; several members wait at once
 * (TSan); a read that fails ends in an error, never in a wait.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "exec/cache.h"

#define LAYERS  40 /* at most */
#define EXPERTS 10 /* of a layer, at most */

static uint32_t seed = 1;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

/* --- records as numbers --- */

struct world {
    struct record_reader reader; /* first */
    struct plan plan;
    struct expert_layer layer[LAYERS];
    int32_t n_records;
    _Atomic int reads;
    int bad_layer, bad_member; /* that one cannot be read */
    int delay_us;
    bool closed;
};

static int read_one(const struct record_reader *base, int32_t layer, int32_t member, void *to, struct err *e)
{
    struct world *w = (struct world *)(uintptr_t)base;
    uint32_t *x = to;
    if (w->delay_us)
        nanosleep(&(struct timespec){.tv_nsec = 1000L * w->delay_us}, NULL);
    w->reads++;
    if (layer == w->bad_layer && member == w->bad_member)
        return err_set(e, ERR_IO, "cannot read expert %d of layer %d", member, layer);
    for (size_t i = 0; i < w->layer[layer].bytes / 4; i++)
        x[i] = (uint32_t)(layer * 1000 + member);
    return 0;
}

static void close_one(struct record_reader *base)
{
    ((struct world *)base)->closed = true;
}

/* uneven: layers of several sizes, records too */
static void world_init(struct world *w, int layers, int experts, bool uneven)
{
    *w = (struct world){.reader = {read_one, close_one}, .bad_layer = -1};
    for (int i = 0; i < layers; i++) {
        int32_t n = uneven ? experts - i % 3 : experts;
        w->layer[i] = (struct expert_layer){
            .layer = i, .stack = {3, 3 + n}, .bytes = RECORD_ALIGN * (size_t)(uneven ? 1 + i % 2 : 1)};
        w->n_records += n;
    }
    w->plan.expert_layers = w->layer;
    w->plan.n_expert_layers = layers;
}

static struct expert_cache *cache_of(struct world *w, int32_t slots)
{
    struct expert_cache *c;
    struct err e;
    if (expert_cache_new(&w->plan, slots, &w->reader, &c, &e))
        fail_msg("%s", e.msg);
    return c;
}

/* A layer's step; want[i]: pairs of expert i. All that was wanted is waited for. Returns how many were here.
 */
static int step(struct expert_cache *c, const struct world *w, int32_t layer, const int32_t *want)
{
    int32_t first[EXPERTS + 1] = {0}, here, n, n_want = 0;
    for (int32_t i = 0; i < range_n(w->layer[layer].stack); i++) {
        first[i + 1] = first[i] + want[i];
        n_want += want[i] > 0;
    }
    expert_cache_want(c, layer, first);
    const int32_t *order = expert_cache_order(c, &here, &n);
    assert_int_equal(n, n_want);
    for (int32_t i = 0; i < n; i++) {
        assert_true(want[order[i]]);
        const uint32_t *x = (const uint32_t *)(const void *)expert_cache_wait(c, order[i], (int)rnd(2));
        for (size_t k = 0; k < w->layer[layer].bytes / 4; k++)
            if (x[k] != (uint32_t)(layer * 1000 + order[i]))
                fail_msg("expert %d of layer %d: found %u", order[i], layer, x[k]);
    }
    return here;
}

static int step_one(struct expert_cache *c, const struct world *w, int32_t layer, int32_t member)
{
    int32_t want[EXPERTS] = {0};
    want[member] = 1;
    return step(c, w, layer, want);
}

/* --- what is there --- */

static void test_contents(void **state)
{
    for (int round = 0; round < 40; round++) {
        struct world w;
        struct expert_cache_stats s;
        uint64_t wanted = 0, hits = 0, bytes = 0;
        world_init(&w, 6, EXPERTS, round % 2);
        int32_t slots = EXPERTS + (int32_t)rnd((uint32_t)w.n_records - EXPERTS);
        struct expert_cache *c = cache_of(&w, slots);
        for (int i = 0; i < 60 * 6; i++) {
            int32_t want[EXPERTS] = {0}, layer = i % 6, n = range_n(w.layer[layer].stack), n_want = 0;
            for (int32_t k = 0; k < n; k++)
                n_want += (want[k] = i % 50 == 7 ? 1 : rnd((uint32_t)(2 + k)) == 0) > 0;
            int here = step(c, &w, layer, want);
            wanted += (uint64_t)n_want;
            hits += (uint64_t)here;
            bytes += (uint64_t)(n_want - here) * w.layer[layer].bytes;
        }
        expert_cache_stats(c, &s);
        assert_int_equal(s.records, w.n_records);
        assert_true(s.held == slots && s.slots == slots);
        assert_int_equal(s.hits, hits);
        assert_int_equal(s.hits + s.misses, wanted);
        assert_int_equal(s.misses, (uint64_t)w.reads);
        assert_int_equal(s.read_bytes, bytes);
        assert_int_equal(expert_cache_failed(c, NULL), 0);
        expert_cache_free(c);
        assert_true(w.closed);
    }
}

/* --- what is kept --- */

struct plain { /* the rule, word for word; one expert a layer, so that no two records are worth the same */
    double worth[LAYERS];
    bool here[LAYERS];
};

static int plain_step(struct plain *p, int32_t n, int32_t slots, int32_t record)
{
    int32_t held = 0, least = -1;
    bool was_here = p->here[record];
    for (int32_t i = 0; i < n; i++) {
        held += p->here[i];
        if (p->here[i] && (least < 0 || p->worth[i] < p->worth[least]))
            least = i;
    }
    p->worth[record] += 1;
    if (!was_here && held == slots)
        p->here[least] = false;
    p->here[record] = true;
    for (int32_t i = 0; i < n; i++)
        p->worth[i] *= exp2(-1.0 / n / CACHE_HALF_LIFE); /* n steps are a tick */
    return was_here;
}

static void test_rule(void **state)
{
    for (int round = 0; round < 10; round++) {
        struct world w;
        struct plain p = {0};
        world_init(&w, LAYERS, 1, false);
        int32_t slots = 1 + (int32_t)rnd(LAYERS - 1);
        struct expert_cache *c = cache_of(&w, slots);
        for (int i = 0; i < 8000; i++) {
            int32_t layer = (int32_t)MIN(rnd(LAYERS), rnd(LAYERS)), shift = i / 2000 * 10;
            layer = (layer + shift) % LAYERS; /* what is hot changes */
            if (step_one(c, &w, layer, 0) != plain_step(&p, LAYERS, slots, layer))
                fail_msg("round %d, %d slots: step %d differs", round, slots, i);
        }
        expert_cache_free(c);
    }
}

/* Tokens in a loop over all layers, each with two favourites and one expert that is never the same: room for
 * the favourites and a layer's others is enough to keep them, through a prompt that wants everything. */
static void test_loop_and_flood(void **state)
{
    const int layers = 20;
    struct world w;
    world_init(&w, layers, EXPERTS, false);
    struct expert_cache *c = cache_of(&w, 2 * layers + EXPERTS);
    int missed = 0;
    for (int tick = 0; tick < 200; tick++)
        for (int32_t layer = 0; layer < layers; layer++) {
            int32_t want[EXPERTS] = {0};
            bool flood = tick == 100;
            for (int i = 0; i < EXPERTS && flood; i++)
                want[i] = 1;
            want[layer % 3] = want[4] = want[5 + (tick + layer) % 5] = 1;
            int here = step(c, &w, layer, want);
            if (tick > 10 && !flood && here < 2)
                missed++;
        }
    assert_int_equal(missed, 0);
    expert_cache_free(c);
}

/* --- several members --- */

struct member {
    struct expert_cache *c;
    const struct world *w;
    int ith;
    pthread_barrier_t *meet;
};

#define MEMBERS 3

static void *walk(void *arg)
{
    const struct member *m = arg;
    uint32_t mine = 7; /* the same for all */
    for (int i = 0; i < 300; i++) {
        int32_t layer = i % m->w->plan.n_expert_layers, first[EXPERTS + 1] = {0}, here, n;
        for (int32_t k = 0; k < EXPERTS; k++) {
            mine = mine * 1664525 + 1013904223;
            first[k + 1] = first[k] + ((mine >> 20) % 3 == 0);
        }
        if (m->ith == 0)
            expert_cache_want(m->c, layer, first);
        pthread_barrier_wait(m->meet);
        const int32_t *order = expert_cache_order(m->c, &here, &n);
        for (int32_t k = 0; k < n; k++) {
            const uint32_t *x = (const uint32_t *)(const void *)expert_cache_wait(m->c, order[k], m->ith);
            if (x[m->ith] != (uint32_t)(layer * 1000 + order[k]))
                abort();
        }
        pthread_barrier_wait(m->meet);
    }
    return NULL;
}

static void test_members(void **state)
{
    struct world w;
    struct expert_cache_stats s;
    pthread_t t[MEMBERS];
    struct member m[MEMBERS];
    pthread_barrier_t meet;
    world_init(&w, 6, EXPERTS, false);
    w.delay_us = 50;
    struct expert_cache *c = cache_of(&w, EXPERTS);
    pthread_barrier_init(&meet, NULL, MEMBERS);
    for (int i = 0; i < MEMBERS; i++) {
        m[i] = (struct member){c, &w, i, &meet};
        assert_int_equal(pthread_create(&t[i], NULL, walk, &m[i]), 0);
    }
    for (int i = 0; i < MEMBERS; i++)
        pthread_join(t[i], NULL);
    expert_cache_stats(c, &s);
    assert_true(s.misses > 0 && s.wait_ns > 0);
    expert_cache_free(c);
    pthread_barrier_destroy(&meet);
}

/* --- what goes wrong --- */

static void test_failed_read(void **state)
{
    struct world w;
    struct err e = {0};
    struct expert_cache_stats s;
    int32_t first[EXPERTS + 1], here, n;
    for (int32_t i = 0; i <= EXPERTS; i++)
        first[i] = i;
    world_init(&w, 3, EXPERTS, false);
    w.bad_layer = 1;
    w.bad_member = 4;
    struct expert_cache *c = cache_of(&w, 2 * EXPERTS);
    for (int round = 0; round < 3; round++) {
        expert_cache_want(c, 0, first);
        expert_cache_order(c, &here, &n);
        assert_int_equal(here, round ? EXPERTS : 0);
        for (int32_t i = 0; i < n; i++)
            expert_cache_wait(c, i, 0);
        assert_int_equal(expert_cache_failed(c, &e), round ? ERR_IO : 0);
        expert_cache_want(c, 1, first);
        expert_cache_order(c, &here, &n);
        assert_int_equal(here, round ? EXPERTS - 1 : 0); /* the bad one is never here */
        for (int32_t i = 0; i < n; i++)
            assert_non_null(expert_cache_wait(c, i, 0)); /* ends all the same */
        assert_int_equal(expert_cache_failed(c, &e), ERR_IO);
        assert_string_equal(e.msg, "cannot read expert 4 of layer 1");
    }
    expert_cache_stats(c, &s);
    assert_int_equal(s.read_bytes, (2 * EXPERTS - 1) * RECORD_ALIGN);
    expert_cache_free(c);
}

/* Ended while reads are under way and others have not begun. */
static void test_free_early(void **state)
{
    for (int i = 0; i < 20; i++) {
        struct world w;
        int32_t first[EXPERTS + 1];
        for (int32_t k = 0; k <= EXPERTS; k++)
            first[k] = k;
        world_init(&w, 2, EXPERTS, false);
        w.delay_us = 200;
        struct expert_cache *c = cache_of(&w, EXPERTS);
        expert_cache_want(c, 0, first);
        if (i % 2)
            usleep((useconds_t)(i * 10));
        expert_cache_free(c);
        assert_true(w.closed);
    }
}

/* --- how much it holds --- */

static void test_sizes(void **state)
{
    struct world w;
    struct plan_cache c;
    world_init(&w, 4, 8, true); /* 8, 7, 6, 8 experts; 1, 2, 1, 2 pages each */
    const uint64_t all = RECORD_ALIGN * (8 + 14 + 6 + 16), slot = 2 * RECORD_ALIGN;
    plan_cache(&w.plan, all, &c);
    assert_true(c.slots == c.records && c.records == 29 && c.bytes == all);
    plan_cache(&w.plan, UINT64_MAX, &c);
    assert_true(c.slots == 29 && c.bytes == all);
    plan_cache(&w.plan, all - 1, &c);
    assert_true(c.slots == 21 && c.least == 8 && c.slot_bytes == slot && c.bytes == 21 * slot);
    plan_cache(&w.plan, 0, &c);
    assert_true(c.slots == 0 && c.least == 8 && c.bytes == 0);
    w.plan.n_expert_layers = 0; /* a stage without experts */
    plan_cache(&w.plan, 1, &c);
    assert_true(c.slots == 0 && c.records == 0 && c.least == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),       cmocka_unit_test(test_rule),
        cmocka_unit_test(test_loop_and_flood), cmocka_unit_test(test_members),
        cmocka_unit_test(test_failed_read),    cmocka_unit_test(test_free_early),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
