/* kv.h against a model of it: who holds which page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/mem.h"
#include "engine/kv.h"

#define N_SEQS 12

static uint32_t rnd(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

/* Every page is free or held once, the counts agree, and each sequence holds just what it asked for. */
static void check_pool(const struct kv_pool *p, int32_t n_pages, int32_t page_tokens, const struct kv_seq *s,
                       const int32_t *tokens)
{
    uint8_t *held;
    int32_t n_held = 0;
    XNEW_N(held, (size_t)n_pages);
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(s[i].n, (tokens[i] + page_tokens - 1) / page_tokens);
        assert_true(s[i].n <= s[i].cap);
        for (int32_t k = 0; k < s[i].n; k++) {
            int32_t page = s[i].pages[k];
            assert_in_range(page, 0, n_pages - 1);
            assert_false(held[page]);
            held[page] = 1;
            n_held++;
        }
    }
    assert_int_equal(kv_pool_n_free(p), n_pages - n_held);
    xfree(held);
}

static void exercise(uint32_t seed)
{
    int32_t n_pages = 1 + (int32_t)rnd(&seed, 40), page_tokens = 1 + (int32_t)rnd(&seed, 9);
    struct kv_pool *p = kv_pool_new(n_pages, page_tokens);
    struct kv_seq s[N_SEQS] = {0};
    int32_t tokens[N_SEQS] = {0};
    for (int i = 0; i < N_SEQS; i += 2)
        kv_seq_init(&s[i], n_pages);
    for (int op = 0; op < 400; op++) {
        int i = (int)rnd(&seed, N_SEQS);
        if (rnd(&seed, 4) == 0) {
            kv_seq_release(p, &s[i]);
            tokens[i] = 0;
        } else {
            int32_t want = tokens[i] + (int32_t)rnd(&seed, 30), before = kv_pool_n_free(p);
            bool fits = (want + page_tokens - 1) / page_tokens - s[i].n <= before;
            if (i % 2 == 0)
                alloc_guard_begin(); /* they have the memory already */
            assert_int_equal(kv_seq_reserve(p, &s[i], want), fits);
            if (i % 2 == 0)
                alloc_guard_end();
            if (fits)
                tokens[i] = MAX(tokens[i], want);
            else
                assert_int_equal(kv_pool_n_free(p), before);
        }
        check_pool(p, n_pages, page_tokens, s, tokens);
    }
    for (int i = 0; i < N_SEQS; i++)
        kv_seq_close(p, &s[i]);
    assert_int_equal(kv_pool_n_free(p), n_pages);
    kv_pool_free(p);
}

static void test_random(void **state)
{
    for (uint32_t seed = 1; seed <= 200; seed++)
        exercise(seed);
}

/* All pages can be had, in whatever order they came back, and the one given back last comes first. */
static void test_never_fragments(void **state)
{
    struct kv_pool *p = kv_pool_new(8, 4);
    struct kv_seq s[8] = {0}, all = {0};
    for (int i = 0; i < 8; i++)
        assert_true(kv_seq_reserve(p, &s[i], 1));
    assert_false(kv_seq_reserve(p, &all, 1));
    static const int order[] = {3, 0, 7, 5, 1, 6, 2, 4};
    for (int i = 0; i < 8; i++)
        kv_seq_release(p, &s[order[i]]);
    int32_t last = 4;
    assert_false(kv_seq_reserve(p, &all, 33));
    assert_int_equal(all.n, 0);
    assert_true(kv_seq_reserve(p, &all, 32));
    assert_int_equal(all.pages[0], last);
    int32_t before[8];
    for (int i = 0; i < 8; i++)
        before[i] = all.pages[i];
    kv_seq_release(p, &all);
    assert_true(kv_seq_reserve(p, &all, 32));
    assert_memory_equal(before, all.pages, sizeof(before)); /* the same memory again, in the same order */
    assert_true(kv_seq_reserve(p, &all, 3));                /* less than it has: nothing to do */
    assert_int_equal(all.n, 8);
    kv_seq_close(p, &all);
    for (int i = 0; i < 8; i++)
        kv_seq_close(p, &s[i]);
    kv_pool_free(p);
    kv_pool_free(NULL);
}

static void test_pages(void **state)
{
    assert_int_equal(kv_pages(0, 16), 0);
    assert_int_equal(kv_pages(1, 16), 1);
    assert_int_equal(kv_pages(16, 16), 1);
    assert_int_equal(kv_pages(17, 16), 2);
    assert_int_equal(kv_pages(INT32_MAX, 1), INT32_MAX);
    assert_int_equal(kv_pages(INT32_MAX, 16), 134217728);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_never_fragments),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
