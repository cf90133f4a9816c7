/* The table itself: every row, from every side. */
#include "tests/unit/cli/harness.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/suggest.h"

static enum command first_command(const struct option *o)
{
    return (enum command)(o->commands & ~(o->commands - 1));
}

/* A legal value for each row that is not its default; and one in the same words for another type. */
static const char *sample_of(const struct option *o)
{
    static char text[64];
    switch (o->type) {
    case T_BOOL:
        return o->fallback && !strcmp(o->fallback, "true") ? "False" : "True";
    case T_INT:
        snprintf(text, sizeof(text), "%.0f", MIN(o->lo + 3, o->hi));
        return text;
    case T_DOUBLE:
        return o->hi <= 1 ? "0.25" : "1.75";
    case T_SIZE:
        return "58GB";
    case T_INTS:
        return "3,7";
    case T_ENUM: {
        /* the last one */
        const char *last = strrchr(o->values, '|');
        return last + 1;
    }
    default:
        return "some/text";
    }
}

static void check_sample(const struct option *o, const struct settings *s)
{
    const void *p = (const char *)s + o->offset;
    switch (o->type) {
    case T_BOOL:
        assert_int_equal(*(const bool *)p, strcmp(sample_of(o), "True") == 0);
        break;
    case T_INT:
        assert_int_equal(*(const int64_t *)p, atoll(sample_of(o)));
        break;
    case T_DOUBLE:
        assert_true(*(const double *)p == atof(sample_of(o)));
        break;
    case T_SIZE:
        assert_int_equal(*(const uint64_t *)p, 58ull << 30);
        break;
    case T_INTS:
        assert_int_equal(((const struct ints *)p)->n, 2);
        assert_int_equal(((const struct ints *)p)->v[1], 7);
        break;
    case T_STRINGS:
        assert_int_equal(((const struct strings *)p)->n, 1);
        assert_string_equal(((const struct strings *)p)->v[0], sample_of(o));
        break;
    case T_STRING:
        assert_string_equal(*(const char *const *)p, sample_of(o));
        break;
    case T_ENUM:
        assert_true(*(const int *)p > 0);
        break;
    }
}

/* option_set is what flags, YAML and JSON all go through. */
static void test_every_row_takes_a_sample_and_refuses_nonsense(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        struct settings s = {.mem = arena_new()};
        struct err e;
        struct yaml_node v = {.kind = YAML_SCALAR, .text = sample_of(o)};
        if (option_set(o, &s, &v, o->name, &e))
            fail_msg("%s", e.msg);
        check_sample(o, &s);
        v = (struct yaml_node){.kind = YAML_MAP};
        assert_int_equal(option_set(o, &s, &v, "x", &e), ERR_USAGE);
        assert_non_null(strstr(e.msg, "x should be "));
        assert_non_null(strstr(e.msg, ", but is a mapping"));
        if (o->type != T_STRING && o->type != T_STRINGS) {
            const char *const bad[] = {"",   "x", "1x", "nan", "inf", "0x10", "99999999999999999999999",
                                       " 1", "--"};
            for (size_t b = 0; b < ARRAY_LEN(bad); b++) {
                v = (struct yaml_node){.kind = YAML_SCALAR, .text = bad[b]};
                if (!option_set(o, &s, &v, "x", &e) && !(o->type == T_INTS && !bad[b][strspn(bad[b], " 1")]))
                    fail_msg("%s takes \"%s\"", o->name, bad[b]);
            }
        }
        if (o->type == T_INT || o->type == T_DOUBLE || o->type == T_INTS) {
            char beyond[2][40];
            snprintf(beyond[0], sizeof(beyond[0]), "%.0f", o->lo - 1);
            snprintf(beyond[1], sizeof(beyond[1]), "%.0f", o->hi * 2 + 1);
            for (size_t b = 0; b < 2; b++) {
                v = (struct yaml_node){.kind = YAML_SCALAR, .text = beyond[b]};
                assert_int_equal(option_set(o, &s, &v, "x", &e), ERR_USAGE);
            }
            if (o->flag & OF_ABOVE_LO) {
                v.text = "0";
                assert_int_equal(option_set(o, &s, &v, "x", &e), ERR_USAGE);
            }
        }
        arena_free(s.mem);
    }
}

static void test_every_flag_and_key_is_found_and_unique(void **state)
{
    (void)state;
    struct arena *a = arena_new();
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        assert_true(o->flags || o->yaml);
        assert_true(o->help && *o->help && o->help[strlen(o->help) - 1] != '.');
        assert_true(o->commands && !(o->commands & ~(unsigned)CMD_ANY));
        const char *at = o->flags, *w;
        size_t n;
        struct flag_hit hit;
        while ((w = next_word(&at, &n))) {
            size_t name = (size_t)(memchr(w, '=', n) ? (const char *)memchr(w, '=', n) - w : (long)n);
            assert_true(option_by_flag(w, name, o->commands, &hit));
            if (hit.option != o)
                fail_msg("%.*s is a flag of %s and of %s", (int)n, w, o->name, hit.option->name);
        }
        for (at = o->yaml; (w = next_word(&at, &n));) {
            const char *path = arena_strndup(a, w, n);
            if (option_by_path(path) != o)
                fail_msg("%s is a key of %s and of another", path, o->name);
            assert_false(is_section(path));
            assert_null(shape_by_path(path));
        }
        /* defaults are legal */
        if (o->fallback) {
            struct settings s = {.mem = a};
            struct yaml_node v = {.kind = YAML_SCALAR, .text = o->fallback};
            struct err e;
            if (option_set(o, &s, &v, o->name, &e))
                fail_msg("default: %s", e.msg);
        }
    }
    arena_free(a);
}

/* Each row from a flag and from each of its keys, through the whole parser; where a value alone is refused
 * (what is not supported, what contradicts) the reason must be its own. */
static void test_every_row_through_the_parser(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        enum command c = first_command(o);
        static const enum option_id special[] = {OPT_overrides, OPT_config};
        bool skip = false;
        for (size_t k = 0; k < ARRAY_LEN(special); k++)
            skip |= o == &option_table[special[k]];
        if (skip)
            continue;
        bool model = o == &option_table[OPT_model] || o == &option_table[OPT_load_checkpoint] ||
                     o == &option_table[OPT_pretrained_model_dir];
        char flag[64], line[256];
        struct trial t;
        if (option_flag(o, flag)) {
            snprintf(line, sizeof(line), "%s %s %s=%s", command_name(c),
                     model || c == CMD_LAUNCH ? "" : "-m M", flag, sample_of(o));
            trial_begin(&t, line, NULL);
            if (!t.err) {
                assert_int_equal(t.s.origin[i], FROM_FLAG);
                assert_string_equal(t.s.source[i], flag);
                if (!t.w.n)
                    check_sample(o, &t.s);
            } else if (!strstr(t.e.msg, flag))
                fail_msg("%s: %s", line, t.e.msg);
            trial_end(&t);
        }
        const char *at = o->yaml, *w;
        size_t n;
        while ((w = next_word(&at, &n))) {
            /* "a.b.c" as nested mappings */
            struct buf y = BUF_INIT;
            int depth = 0;
            for (size_t k = 0; k < n; k++) {
                if (w[k] == '.')
                    buf_addf(&y, ":\n%*s", 2 * ++depth, "");
                else
                    buf_addc(&y, w[k]);
            }
            buf_addf(&y, ": %s\n", o->type == T_INTS ? "[3, 7]" : sample_of(o));
            snprintf(line, sizeof(line), "%s %s", command_name(c), model ? "" : "-m M");
            trial_begin(&t, line, y.s);
            if (!t.err) {
                assert_int_equal(t.s.origin[i], FROM_YAML);
                assert_non_null(strstr(t.s.source[i], "FILE") ? "" : strstr(t.s.source[i], t.file));
                if (!t.w.n)
                    check_sample(o, &t.s);
                if (t.w.n)
                    assert_null(strstr(t.w.text.s, "unknown"));
            } else if (!strstr(t.e.msg, "FILE:"))
                fail_msg("%s: %s", y.s, t.e.msg);
            trial_end(&t);
            buf_release(&y);
        }
    }
}

static void test_bool_flags(void **state)
{
    (void)state;
    struct flag_hit hit;
    assert_true(option_by_flag("--no-skip_prompt", 16, CMD_ANY, &hit));
    assert_string_equal(hit.fixed, "false");
    assert_true(option_by_flag("--greedy", 8, CMD_ANY, &hit));
    assert_int_equal(hit.fixed_len, 5);
    assert_false(option_by_flag("--no-temperature", 16, CMD_ANY, &hit));
    assert_false(option_by_flag("--no-greedy", 11, CMD_ANY, &hit));
    assert_false(option_by_flag("--", 2, CMD_ANY, &hit));
    assert_false(option_by_flag("", 0, CMD_ANY, &hit));
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: refused */
    } cases[] = {{"58GB", 58ull << 30},
                 {"58gb", 58ull << 30},
                 {"58 GiB", 58ull << 30},
                 {"1.5g", 3ull << 29},
                 {"512m", 512ull << 20},
                 {"1024", 1024},
                 {"7B", 7},
                 {"2TB", 2ull << 40},
                 {"0", 0},
                 {"GB", 0},
                 {"-1GB", 0},
                 {"1XB", 0},
                 {"1GBB", 0},
                 {"1e3", 0},
                 {"9999999999PB", 0},
                 {"1..2G", 0},
                 {"", 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct settings s = {0};
        struct err e;
        struct yaml_node v = {.kind = YAML_SCALAR, .text = cases[i].text, .quoted = true};
        int err = option_set(&option_table[OPT_memory], &s, &v, "x", &e);
        if ((err == 0) != (cases[i].bytes != 0) || s.memory != cases[i].bytes)
            fail_msg("%s: %d, %llu", cases[i].text, err, (unsigned long long)s.memory);
    }
}

static void test_suggestions(void **state)
{
    (void)state;
    assert_int_equal(edit_distance("abc", 3, "abc", 3), 0);
    assert_int_equal(edit_distance("abc", 3, "acb", 3), 1);
    assert_int_equal(edit_distance("kitten", 6, "sitting", 7), 3);
    assert_int_equal(edit_distance("", 0, "abc", 3), 3);
    assert_int_equal(edit_distance("a_b", 3, "A-B", 3), 0);
    struct arena *a = arena_new();
    static const struct {
        const char *typed, *meant;
    } paths[] = {{"model.model_config.topk", "model.model_config.top_k"},
                 {"generation_config.temprature", "generation_config.temperature"},
                 {"model_parallel", "parallel_config.model_parallel"},
                 {"paralel_config", "parallel_config"},
                 {"generation", "generation_config"},
                 {"context.max_device_memroy", "context.max_device_memory"},
                 {"model.model_config.num_layer", "model.model_config.num_layers"},
                 {"load_chekpoint", "load_checkpoint"},
                 {"xyzzy", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        const char *near = nearest_path(paths[i].typed, a);
        if (!near != !paths[i].meant || (near && strcmp(near, paths[i].meant)))
            fail_msg("%s: %s", paths[i].typed, near ? near : "nothing");
    }
    assert_string_equal(nearest_flag("--top_n", CMD_RUN, a), "--top-k");
    assert_string_equal(nearest_flag("--promt", CMD_RUN, a), "--prompt");
    assert_null(nearest_flag("--temperatur", CMD_TEMPLATE, a));
    arena_free(a);
}

/* A key is known in one way only, and each pattern says something that no earlier row says. */
static void test_ignored_patterns(void **state)
{
    (void)state;
    struct arena *a = arena_new();
    for (size_t i = 0; i < n_ignored; i++) {
        const char *at = ignored_table[i].patterns, *w;
        size_t n;
        while ((w = next_word(&at, &n))) {
            const char *path = arena_strndup(a, w, n);
            if (option_by_path(path) || shape_by_path(path))
                fail_msg("%s is an option and ignored", path);
            if (ignored_reason(path, a, NULL) != ignored_table[i].reason)
                fail_msg("%s is ignored for two reasons", path);
        }
    }
    const char *shown;
    assert_non_null(ignored_reason("context.ascend_config.precision_mode", a, &shown));
    assert_string_equal(shown, "context.*");
    assert_non_null(ignored_reason("runner_config", a, &shown));
    assert_string_equal(shown, "runner_config.*");
    assert_non_null(ignored_reason("model.model_config.rotary_dtype", a, &shown));
    assert_string_equal(shown, "model.model_config.rotary_dtype");
    assert_null(ignored_reason("contexts", a, &shown));
    assert_null(ignored_reason("model.model_config.top_q", a, &shown));
    arena_free(a);
}

static void test_reference_page_is_in_step(void **state)
{
    (void)state;
    struct buf want = BUF_INIT, have = BUF_INIT;
    struct err e;
    help_markdown(&want);
    if (file_slurp(SOURCE_DIR "/docs/options.md", 1 << 20, &have, &e))
        fail_msg("%s", e.msg);
    if (strcmp(want.s, have.s))
        fail_msg("docs/options.md is not what the table says: yoke options > docs/options.md");
    buf_release(&want);
    buf_release(&have);
}

static void test_help_fits_and_is_complete(void **state)
{
    (void)state;
    for (unsigned c = 0; c == 0 || command_name(c); c = c ? c << 1 : 1) {
        struct buf b = BUF_INIT;
        if (c)
            help_command(c, &b);
        else
            help_overview(&b);
        for (char *l = b.s; *l;) {
            size_t n = strcspn(l, "\n");
            if (n > HELP_COLUMNS)
                fail_msg("too wide: %.*s", (int)n, l);
            assert_true(!n || l[n - 1] != ' ');
            l += n + (l[n] == '\n');
        }
        for (size_t i = 0; i < OPT_COUNT && c; i++) {
            char flag[64];
            if (option_flag(&option_table[i], flag) && (option_table[i].commands & c))
                assert_non_null(strstr(b.s, flag));
        }
        buf_release(&b);
    }
}

static void test_help_on_topics(void **state)
{
    (void)state;
    static const struct {
        const char *topic, *part;
    } cases[] = {{"top_k", "flags:    --top-k"},
                 {"--top-k", "generation_config.top_k"},
                 {"-m", "model\n"},
                 {"--greedy", "do_sample\n"},
                 {"model_parallel", "tp\n"},
                 {"parallel_config.pipeline_stage", "pp\n"},
                 {"device_target", "tunes another device"},
                 {"optimizer", "training only"},
                 {"optimizer.beta1", "training only"},
                 {"vocab_emb_dp", "no counterpart"},
                 {"num_layers", "num_hidden_layers"},
                 {"rotary_dtype", "float32"},
                 {"compute_dtype", "float32"},
                 {"run", "yoke run -m MODEL"},
                 {"version", "print the version"}};
    struct err e;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf b = BUF_INIT;
        if (help_topic(cases[i].topic, &b, &e))
            fail_msg("%s", e.msg);
        if (!strstr(b.s, cases[i].part))
            fail_msg("%s: %s", cases[i].topic, b.s);
        buf_release(&b);
    }
    struct buf b = BUF_INIT;
    assert_int_equal(help_topic("temprature", &b, &e), ERR_USAGE);
    assert_string_equal(e.msg, "there is no option or key \"temprature\"; did you mean temperature?");
    assert_int_equal(help_topic("xyzzy", &b, &e), ERR_USAGE);
    assert_int_equal(help_topic("", &b, &e), ERR_USAGE);
    buf_release(&b);
}

static void test_exit_codes(void **state)
{
    (void)state;
    static const int want[][2] = {{0, 0},         {ERR_FAIL, 1},          {ERR_USAGE, 2},
                                  {ERR_IO, 3},    {ERR_FORMAT, 3},        {ERR_UNSUPPORTED, 3},
                                  {ERR_SPLIT, 4}, {ERR_MEMORY, 5},        {ERR_RANK_LOST, 6},
                                  {ERR_LIMIT, 7}, {ERR_INTERRUPTED, 130}, {-99, 1}};
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        assert_int_equal(exit_code_of(want[i][0]), want[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_takes_a_sample_and_refuses_nonsense),
        cmocka_unit_test(test_every_flag_and_key_is_found_and_unique),
        cmocka_unit_test(test_every_row_through_the_parser),
        cmocka_unit_test(test_bool_flags),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_ignored_patterns),
        cmocka_unit_test(test_reference_page_is_in_step),
        cmocka_unit_test(test_help_fits_and_is_complete),
        cmocka_unit_test(test_help_on_topics),
        cmocka_unit_test(test_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
