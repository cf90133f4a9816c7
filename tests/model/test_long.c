/* Long contexts: a prompt of 32768 tokens has the same bits in chunks of 512 and of 4096, split or not; the
 * work memory is what the plan says, and follows the chunk, not the context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "tests/model/fixture.h"

/* Returns the work memory of a rank. */
static size_t run(const char *path, struct fixture_options o, int32_t n_tokens, int32_t chunk, float *logits)
{
    struct fixture f;
    struct rank_report report[8];
    struct err e = {0};
    int32_t *ids;
    o.max_tokens = chunk;
    o.page_tokens = 64;
    o.kv_tokens = n_tokens;
    o.level = cpu_level_native();
    fixture_open(&f, path, o);
    XNEW_N(ids, (size_t)n_tokens);
    for (int32_t i = 0; i < n_tokens; i++)
        ids[i] = (int32_t)(((unsigned)i * 2654435761u) >> 11) % f.vocab;
    struct sequence s = {ids, n_tokens, logits};
    fixture_run(&f, &s, 1, chunk);
    assert_int_equal(team_report(f.team, report, NULL, &e), 0);
    size_t work = report[0].run.work_bytes;
    assert_int_equal(work, team_plan(f.team)->work_bytes);
    xfree(ids);
    fixture_close(&f);
    return work;
}

static void test_32k(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        struct fixture_options o;
        int32_t n_tokens;
    } cases[] = {
        {"tests/golden/models/llama-h8kv8", {.kv = KV_I8, .quant = QUANT_W8A8, .threads = 2}, 32768},
        {"tests/golden/models/qwen2-yarn-old", {.kv = KV_F16, .tp = 2}, 8192},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture f;
        fixture_open(&f, cases[i].path, (struct fixture_options){0});
        size_t vocab = (size_t)f.vocab, n = (size_t)cases[i].n_tokens * vocab;
        fixture_close(&f);
        float *small, *large;
        XNEW_N(small, n);
        XNEW_N(large, n);
        size_t work_small = run(cases[i].path, cases[i].o, cases[i].n_tokens, 512, small);
        size_t work_large = run(cases[i].path, cases[i].o, cases[i].n_tokens, 4096, large);
        assert_memory_equal(small, large, n * sizeof(float));
        printf("%s: work memory %zu bytes in chunks of 512, %zu of 4096\n", cases[i].path, work_small,
               work_large);
        assert_true(work_small * 7 < work_large);
        xfree(small);
        xfree(large);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_32k)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
