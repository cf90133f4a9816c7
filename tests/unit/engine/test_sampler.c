/* sampler.h against transformers (tests/golden/make_sampling.py), against a plain version of itself that
 * sorts, and against statistics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/sampler.h"

static uint32_t rnd(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static double rnd1(uint32_t *state)
{
    return rnd(state) / 16777216.0;
}

/* About normal. */
static double gauss(uint32_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += rnd1(state);
    return sum;
}

/* --- against transformers --- */

static char *golden_path(const char *name)
{
    const char *root = getenv("YOKE_ROOT");
    return xasprintf("%s/tests/golden/sampling/%s", root ? root : ".", name);
}

static double number(const json_t *o, const char *key, double fallback)
{
    double d = fallback;
    assert_int_equal(json_get_double(o, key, fallback, key, &d, NULL), 0);
    return d;
}

static int32_t *ids_of(const json_t *array, int32_t *ret_n)
{
    int32_t *v;
    *ret_n = (int32_t)json_array_size(array);
    XNEW_N(v, (size_t)*ret_n);
    for (int32_t i = 0; i < *ret_n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return v;
}

static void check_case(const json_t *c, const float *data, int32_t n_vocab, const float *logits)
{
    const json_t *params = json_object_get(c, "params");
    struct sampling p = {.greedy = json_is_true(json_object_get(params, "greedy")),
                         .temperature = number(params, "temperature", 1),
                         .top_k = (int32_t)number(params, "top_k", 0),
                         .top_p = number(params, "top_p", 1),
                         .min_p = number(params, "min_p", 0),
                         .repetition_penalty = number(params, "repetition_penalty", 1),
                         .presence_penalty = number(params, "presence_penalty", 0),
                         .frequency_penalty = number(params, "frequency_penalty", 0)};
    assert_int_equal(sampling_check(&p, NULL), 0);
    int32_t n_tokens, n_eos, n_prompt = (int32_t)number(c, "n_prompt", 0);
    int32_t *tokens = ids_of(json_object_get(c, "tokens"), &n_tokens);
    int32_t *eos = ids_of(json_object_get(params, "eos"), &n_eos);
    bool too_early = n_tokens - n_prompt < number(params, "min_new_tokens", 0);
    const struct sampler_input in = {
        logits, tokens, n_prompt, n_tokens - n_prompt, eos, too_early ? n_eos : 0};
    const float *want = data + (size_t)number(c, "probs", 0);

    struct sampler *s = sampler_new(n_vocab);
    int32_t *ids;
    double *probs;
    XNEW_N(ids, (size_t)n_vocab);
    XNEW_N(probs, (size_t)n_vocab);
    int32_t n = sampler_distribution(s, &p, &in, ids, probs), at = 0;
    assert_int_equal(n, (int32_t)number(c, "survivors", 0));
    for (int32_t i = 0; i < n_vocab; i++) {
        bool kept = at < n && ids[at] == i;
        assert_int_equal(kept, want[i] > 0);
        if (kept && fabs(probs[at] - (double)want[i]) > 2e-6 * (double)want[i] + 1e-9)
            fail_msg("id %d: probability %.9g, transformers says %.9g", i, probs[at], (double)want[i]);
        at += kept;
    }
    for (p.seed = 0; p.seed < 20; p.seed++) {
        int32_t id = sampler_draw(s, &p, &in);
        assert_in_range(id, 0, n_vocab - 1);
        assert_true(want[id] > 0);
    }
    sampler_free(s);
    xfree(ids);
    xfree(probs);
    xfree(tokens);
    xfree(eos);
}

static void test_transformers(void **state)
{
    char *path = golden_path("sampling.json"), *data_path = golden_path("sampling.f32");
    json_t *j = NULL, *c;
    struct buf data = BUF_INIT;
    assert_int_equal(json_parse_file(path, 1 << 20, &j, NULL), 0);
    assert_int_equal(file_slurp(data_path, 1 << 20, &data, NULL), 0);
    const float *floats = (const float *)(const void *)data.s;
    size_t i;
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const json_t *row =
            json_object_get(json_object_get(j, "rows"), json_string_value(json_object_get(c, "row")));
        check_case(c, floats, (int32_t)number(row, "vocab", 0), floats + (size_t)number(row, "at", 0));
    }
    assert_true(i > 30);
    json_decref(j);
    buf_release(&data);
    xfree(path);
    xfree(data_path);
}

/* --- against a plain version --- */

struct ranked {
    double logit, p;
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* The definition in sampler.h, word by word, in double. *ret_near: how near the closest token is to a
 * threshold. */
static int32_t plainly(const struct sampling *p, const float *logits, int32_t n, struct ranked *r,
                       double *ret_near)
{
    int32_t m = 0;
    double near = 1;
    for (int32_t i = 0; i < n; i++)
        if (isfinite(logits[i]))
            r[m++] = (struct ranked){(double)logits[i], 0, i};
    qsort(r, (size_t)m, sizeof(*r), by_rank);
    if (p->top_k && p->top_k < m) {
        int32_t k = p->top_k;
        while (k < m && r[k].logit == r[p->top_k - 1].logit)
            k++;
        m = k;
    }
    double total = 0, above = 0;
    for (int32_t i = 0; i < m; i++)
        total += r[i].p = exp((r[i].logit - r[0].logit) / p->temperature);
    int32_t k = 0;
    for (; k < m && (k == 0 || p->top_p == 1 || above < p->top_p * total); k++) {
        above += r[k].p;
        near = fmin(near, fabs(above / total - p->top_p));
    }
    near = p->top_p == 1 ? 1 : near;
    m = k;
    for (k = 0; k < m && r[k].p >= p->min_p; k++)
        near = fmin(near, k ? fabs(r[k].p - p->min_p) : 1);
    if (k < m)
        near = fmin(near, fabs(r[k].p - p->min_p));
    m = k;
    total = 0;
    for (int32_t i = 0; i < m; i++)
        total += r[i].p;
    for (int32_t i = 0; i < m; i++)
        r[i].p /= total;
    *ret_near = near;
    return m;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct ranked *)a)->id - ((const struct ranked *)b)->id;
}

static void random_row(uint32_t *state, float *x, int32_t n)
{
    double spread = exp(rnd1(state) * 5 - 2), grain = rnd(state) % 2 ? 0 : spread / 4;
    for (int32_t i = 0; i < n; i++) {
        double v = gauss(state) * spread;
        x[i] = (float)(grain > 0 ? grain * floor(v / grain) : v);
    }
    for (int32_t i = 0; i < n && rnd(state) % 3 == 0; i += 1 + (int32_t)(rnd(state) % 5))
        x[i] = rnd(state) % 2 ? -INFINITY : rnd(state) % 2 ? NAN : INFINITY;
    x[rnd(state) % (uint32_t)n] = 1; /* something is finite */
}

static void test_plain_version(void **state)
{
    uint32_t seed = 5;
    int n_compared = 0;
    for (int round = 0; round < 1500; round++) {
        int32_t n = 1 + (int32_t)(rnd(&seed) % (round % 10 ? 80u : 6000u));
        float *x;
        int32_t *ids;
        double *probs, near;
        struct ranked *want;
        XNEW_N(x, (size_t)n);
        XNEW_N(ids, (size_t)n);
        XNEW_N(probs, (size_t)n);
        XNEW_N(want, (size_t)n);
        random_row(&seed, x, n);
        struct sampling p = SAMPLING_INIT;
        p.greedy = false;
        p.temperature = exp(rnd1(&seed) * 4 - 2);
        if (rnd(&seed) % 2)
            p.top_k = (int32_t)(rnd(&seed) % (uint32_t)(n + 2));
        if (rnd(&seed) % 2)
            p.top_p = rnd1(&seed);
        if (rnd(&seed) % 3 == 0)
            p.min_p = rnd1(&seed) * rnd1(&seed);
        struct sampler *s = sampler_new(n);
        const struct sampler_input in = {.logits = x};
        int32_t m = plainly(&p, x, n, want, &near);
        int32_t got = sampler_distribution(s, &p, &in, ids, probs);
        while (m && want[m - 1].p < 1e-37) /* what float weights cannot hold is never drawn */
            m--;
        if (near > 1e-5) {
            assert_int_equal(got, m);
            qsort(want, (size_t)m, sizeof(*want), by_id);
            for (int32_t i = 0; i < m; i++) {
                assert_int_equal(ids[i], want[i].id);
                assert_true(fabs(probs[i] - want[i].p) <= 2e-5 * want[i].p);
            }
            n_compared++;
        }
        sampler_free(s);
        xfree(x);
        xfree(ids);
        xfree(probs);
        xfree(want);
    }
    assert_true(n_compared > 1000);
}

/* --- greedy, and rows that are not as they should be --- */

static int32_t draw(const float *x, int32_t n, struct sampling p)
{
    struct sampler *s = sampler_new(n);
    int32_t id = sampler_draw(s, &p, &(struct sampler_input){.logits = x});
    sampler_free(s);
    return id;
}

static void test_greedy(void **state)
{
    const struct sampling p = SAMPLING_INIT;
    uint32_t seed = 9;
    for (int round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)(rnd(&seed) % 3000), best = -1;
        float *x;
        XNEW_N(x, (size_t)n);
        random_row(&seed, x, n);
        for (int32_t i = 0; i < n; i++)
            if (isfinite(x[i]) && (best < 0 || x[i] > x[best]))
                best = i;
        assert_int_equal(draw(x, n, p), best);
        struct sampling cold = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
        assert_int_equal(draw(x, n, cold), best);
        struct sampling one = {.temperature = 1, .top_k = 1, .top_p = 0, .repetition_penalty = 1};
        assert_int_equal(draw(x, n, one), best);
        xfree(x);
    }
}

static void test_not_finite(void **state)
{
    struct sampling greedy = SAMPLING_INIT, warm = SAMPLING_INIT;
    warm.greedy = false;
    float x[100];
    for (int i = 0; i < 100; i++)
        x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
    assert_int_equal(draw(x, 100, greedy), -1);
    assert_int_equal(draw(x, 100, warm), -1);
    x[70] = -5;
    assert_int_equal(draw(x, 100, greedy), 70);
    assert_int_equal(draw(x, 100, warm), 70);
    x[70] = -3.4e38f; /* the temperature cannot overflow, whatever the logits */
    x[71] = 3.4e38f;
    warm.temperature = 1e-300;
    assert_int_equal(draw(x, 100, warm), 71);
    warm.top_p = 0.5;
    warm.min_p = 0.5;
    warm.top_k = 2;
    assert_int_equal(draw(x, 100, warm), 71);
}

static void test_banned(void **state)
{
    const float x[4] = {1, 3, 2, 3};
    const int32_t banned[] = {1, 3, -7, 4, 2147483647};
    struct sampler *s = sampler_new(4);
    struct sampling p = SAMPLING_INIT;
    const struct sampler_input in = {.logits = x, .banned = banned, .n_banned = 5};
    assert_int_equal(sampler_draw(s, &p, &in), 2);
    p.greedy = false;
    for (p.seed = 0; p.seed < 50; p.seed++)
        assert_int_equal(sampler_draw(s, &p, &in) % 2, 0);
    sampler_free(s);
    sampler_free(NULL);
}

/* --- the draw --- */

static void test_draws_follow_distribution(void **state)
{
    enum { N = 50, DRAWS = 200000 };
    float x[N];
    int32_t tokens[8] = {3, 3, 9, 40, 3, 9, 1, 3}, ids[N], count[N] = {0};
    double probs[N], chi2 = 0;
    uint32_t seed = 77;
    for (int i = 0; i < N; i++)
        x[i] = (float)gauss(&seed);
    struct sampling p = {.temperature = 0.9,
                         .top_k = 30,
                         .top_p = 0.97,
                         .min_p = 0.01,
                         .repetition_penalty = 1.1,
                         .presence_penalty = 0.1};
    struct sampler *s = sampler_new(N);
    const struct sampler_input in = {x, tokens, 4, 4, NULL, 0};
    int32_t n = sampler_distribution(s, &p, &in, ids, probs);
    assert_true(n > 10 && n < N);
    alloc_guard_begin();
    for (p.seed = 0; p.seed < DRAWS; p.seed++)
        count[sampler_draw(s, &p, &in)]++;
    alloc_guard_end();
    int32_t seen = 0;
    for (int32_t i = 0; i < n; i++) {
        double expected = probs[i] * DRAWS, d = count[ids[i]] - expected;
        chi2 += d * d / expected;
        seen += count[ids[i]];
    }
    assert_int_equal(seen, DRAWS);
    double df = n - 1;
    assert_true(fabs(chi2 - df) < 4 * sqrt(2 * df)); /* fixed seeds: passes always or never */
    sampler_free(s);
}

/* The draw depends on seed and position, not on how the sequence divides into prompt and output. */
static void test_position(void **state)
{
    float x[64] = {0};
    int32_t tokens[40] = {0}, differ = 0;
    struct sampler *s = sampler_new(64);
    struct sampling p = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 42};
    for (int32_t n = 1; n < 40; n++) {
        int32_t a = sampler_draw(s, &p, &(struct sampler_input){x, tokens, 1, n - 1, NULL, 0});
        int32_t b = sampler_draw(s, &p, &(struct sampler_input){x, tokens, n, 0, NULL, 0});
        int32_t c = sampler_draw(s, &p, &(struct sampler_input){x, tokens, n, 1, NULL, 0});
        assert_int_equal(a, b);
        assert_int_equal(a, (int32_t)(sampler_uniform(42, (uint64_t)n) * 64));
        differ += a != c;
    }
    assert_true(differ > 30);
    sampler_free(s);
}

/* --- random numbers --- */

static void test_philox(void **state)
{
    /* Random123's known answers (kat_vectors, philox4x32 with 10 rounds) */
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        uint32_t got[4];
        philox4x32(known[i].counter, known[i].key, got);
        assert_memory_equal(got, known[i].want, sizeof(got));
    }
    /* key and counter words in the order that sampler.h states */
    uint32_t r[4];
    philox4x32((const uint32_t[4]){0x9abcdef0, 0x12345678, 0, 0}, (const uint32_t[2]){0x55667788, 0x11223344},
               r);
    double want = (double)(((uint64_t)r[1] << 32 | r[0]) >> 11) / 9007199254740992.0;
    assert_true(sampler_uniform(0x1122334455667788, 0x123456789abcdef0) == want);
}

static void check_uniform(uint64_t seed0, uint64_t dseed, uint64_t pos0, uint64_t dpos)
{
    enum { N = 100000, BINS = 100 };
    int32_t count[BINS] = {0};
    double sum = 0, chi2 = 0, serial = 0, last = 0.5;
    for (uint64_t i = 0; i < N; i++) {
        double u = sampler_uniform(seed0 + i * dseed, pos0 + i * dpos);
        assert_true(u >= 0 && u < 1);
        count[(int)(u * BINS)]++;
        sum += u;
        serial += (u - 0.5) * (last - 0.5);
        last = u;
    }
    for (int i = 0; i < BINS; i++)
        chi2 += (count[i] - N / BINS) * (double)(count[i] - N / BINS) / (N / BINS);
    assert_true(fabs(sum / N - 0.5) < 4 * sqrt(1.0 / 12 / N));
    assert_true(fabs(serial / N) < 4.0 / 12 / sqrt(N));
    assert_true(fabs(chi2 - (BINS - 1)) < 4 * sqrt(2.0 * (BINS - 1)));
}

static void test_uniform(void **state)
{
    check_uniform(0, 0, 0, 1);                   /* one request */
    check_uniform(0, 1, 17, 0);                  /* neighbouring seeds at one position */
    check_uniform(1ull << 40, 1ull << 32, 5, 0); /* seeds that differ in their high words only */
    check_uniform(3, 1, 1000, UINT64_MAX);       /* seed up, position down */
}

/* --- parameters --- */

static void test_check(void **state)
{
    const struct sampling good = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    struct sampling bad[] = {good, good, good, good, good, good, good, good, good, good, good, good};
    bad[0].temperature = -0.1;
    bad[1].temperature = NAN;
    bad[2].top_k = -1;
    bad[3].top_p = 1.01;
    bad[4].top_p = NAN;
    bad[5].min_p = -1;
    bad[6].min_p = 1.5;
    bad[7].repetition_penalty = 0;
    bad[8].repetition_penalty = INFINITY;
    bad[9].presence_penalty = NAN;
    bad[10].frequency_penalty = -INFINITY;
    bad[11].temperature = INFINITY;
    static const char *const named[] = {"temperature",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "top_p",
                                        "min_p",
                                        "min_p",
                                        "repetition_penalty",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "temperature"};
    assert_int_equal(sampling_check(&good, NULL), 0);
    assert_int_equal(sampling_check(&(struct sampling)SAMPLING_INIT, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = {0};
        assert_int_equal(sampling_check(&bad[i], &e), ERR_USAGE);
        assert_non_null(strstr(e.msg, named[i]));
        assert_non_null(strstr(e.msg, "legal"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transformers), cmocka_unit_test(test_plain_version),
        cmocka_unit_test(test_greedy),       cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_banned),       cmocka_unit_test(test_draws_follow_distribution),
        cmocka_unit_test(test_position),     cmocka_unit_test(test_philox),
        cmocka_unit_test(test_uniform),      cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
