/* Logits of every golden checkpoint against Hugging Face transformers (tests/golden/README.md). */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "tests/model/fixture.h"

struct deviation {
    double max, rms; /* in units of the logits' standard deviation */
};

static struct deviation compare(const char *model, const char *dir, const json_t *v, struct fixture_options o)
{
    struct fixture f;
    char path[256];
    size_t rows = (size_t)json_integer_value(json_object_get(v, "rows"));
    double scale = json_number_value(json_object_get(v, "scale"));
    snprintf(path, sizeof(path), "%s/%s", dir, json_string_value(json_object_get(v, "logits")));
    fixture_open(&f, model, o);
    size_t vocab = (size_t)f.vocab, n_seen = 0;
    float *want = golden_floats(path, rows * vocab);
    double max = 0, sum = 0;
    size_t i;
    json_t *p;
    json_array_foreach(json_object_get(v, "prompts"), i, p)
    {
        struct sequence s = {0};
        int32_t n_pos;
        int32_t *ids = golden_ids(json_object_get(p, "ids"), &s.n);
        int32_t *pos = golden_ids(json_object_get(p, "positions"), &n_pos);
        size_t row = (size_t)json_integer_value(json_object_get(p, "row"));
        s.ids = ids;
        XNEW_N(s.logits, (size_t)s.n * vocab);
        fixture_run(&f, &s, 1, 0);
        for (int32_t k = 0; k < n_pos; k++)
            for (size_t x = 0; x < vocab; x++) {
                double d = fabs((double)s.logits[(size_t)pos[k] * vocab + x] -
                                (double)want[(row + (size_t)k) * vocab + x]) /
                           scale;
                if (!(d <= max))
                    max = d;
                sum += d * d;
                n_seen++;
            }
        xfree(s.logits);
        xfree(ids);
        xfree(pos);
    }
    xfree(want);
    fixture_close(&f);
    assert_true(n_seen > 0);
    return (struct deviation){max, sqrt(sum / (double)n_seen)};
}

static char **names(const char *dir, const char *ending, size_t *ret_n)
{
    char *full = golden_path(dir), **v = NULL;
    size_t n = 0, cap = 0;
    DIR *d = opendir(full);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name), m = strlen(ending);
        if (e->d_name[0] == '.' || len < m || strcmp(e->d_name + len - m, ending))
            continue;
        XGROW(v, n, cap);
        v[n++] = xstrndup(e->d_name, len - m);
    }
    closedir(d);
    xfree(full);
    *ret_n = n;
    return v;
}

/* Every checkpoint of a folder, at the best CPU level and in portable C, and with the KV cache's other
 * formats. */
static void check_folders(const char *folder, size_t at_least, double f16_most, double i8_most)
{
    size_t n;
    char **v = names(folder, "", &n);
    assert_true(n >= at_least);
    for (size_t i = 0; i < n; i++) {
        char dir[256], path[300];
        snprintf(dir, sizeof(dir), "%s/%s", folder, v[i]);
        snprintf(path, sizeof(path), "%s/vectors.json", dir);
        json_t *j = golden_json(path);
        const enum cpu_level levels[] = {cpu_level_native(), CPU_C};
        for (size_t l = 0; l < ARRAY_LEN(levels); l++) {
            struct deviation d = compare(dir, dir, j, (struct fixture_options){.level = levels[l]});
            printf("%-24s %-8s max %.1e\n", v[i], cpu_level_name(levels[l]), d.max);
            assert_true(d.max < 1e-4);
        }
        /* close, and not by accident the same */
        struct deviation f16 =
            compare(dir, dir, j, (struct fixture_options){.level = levels[0], .kv = KV_F16});
        struct deviation i8 = compare(dir, dir, j, (struct fixture_options){.level = levels[0], .kv = KV_I8});
        printf("%-24s kv f16 rms %.1e, i8 rms %.1e\n", v[i], f16.rms, i8.rms);
        assert_true(f16.rms > 0 && f16.rms < f16_most && i8.rms > 0 && i8.rms < i8_most);
        json_decref(j);
        xfree(v[i]);
    }
    xfree(v);
}

static void test_folders(void **state)
{
    (void)state;
    check_folders("tests/golden/models", 20, 2e-3, 5e-2);
}

/* Models with experts: rounding the KV cache may also change who is chosen, so the bounds are wider. */
static void test_experts(void **state)
{
    (void)state;
    check_folders("tests/golden/moe", 10, 5e-2, 3e-1);
}

static void check_gguf(const char *folder, size_t at_least)
{
    size_t n;
    char **v = names(folder, ".json", &n);
    assert_true(n >= at_least);
    for (size_t i = 0; i < n; i++) {
        char model[256], path[256];
        snprintf(model, sizeof(model), "%s/%s.gguf", folder, v[i]);
        snprintf(path, sizeof(path), "%s/%s.json", folder, v[i]);
        json_t *j = golden_json(path);
        struct deviation d = compare(model, folder, j, (struct fixture_options){.level = cpu_level_native()});
        if (json_is_false(json_object_get(j, "exact"))) {
            /* integer kernels round activations; the oracle says how far that alone moves logits */
            double yardstick = json_number_value(json_object_get(j, "int8_rms_block32"));
            printf("%-24s rms %.1e, of an exact int8 rounding %.1e\n", v[i], d.rms, yardstick);
            assert_true(d.rms < 1.5 * yardstick);
        } else {
            printf("%-24s max %.1e\n", v[i], d.max);
            assert_true(d.max < 1e-4);
        }
        json_decref(j);
        xfree(v[i]);
    }
    xfree(v);
}

static void test_gguf(void **state)
{
    (void)state;
    check_gguf("tests/golden/gguf", 10);
    check_gguf("tests/golden/moe_gguf", 10);
}

/* --quant on a float checkpoint: int8 weights and activations stay near the float logits, 4-bit ones less so.
 */
static void test_quant(void **state)
{
    (void)state;
    const char *const models[] = {"llama-h8kv8", "qwen2-tied", "qwen3-tied", "llama-odd"};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        char dir[256], path[300];
        snprintf(dir, sizeof(dir), "tests/golden/models/%s", models[i]);
        snprintf(path, sizeof(path), "%s/vectors.json", dir);
        json_t *j = golden_json(path);
        struct fixture_options o = {.level = cpu_level_native(), .quant = QUANT_W8A8};
        struct deviation w8 = compare(dir, dir, j, o);
        o.quant = QUANT_W4;
        struct deviation w4 = compare(dir, dir, j, o);
        printf("%-24s w8a8 rms %.1e, w4 rms %.1e\n", models[i], w8.rms, w4.rms);
        assert_true(w8.rms > 0 && w8.rms < 0.05 && w4.rms > w8.rms && w4.rms < 0.5);
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_quant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
