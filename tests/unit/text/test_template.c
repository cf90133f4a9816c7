/* Chat templates against jinja2's own output (tests/golden/templates, made by make_templates.py), and the
 * limits, positions of errors and differences that jinja2 cannot tell us about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/template.h"

static json_t *load(const char *name)
{
    const char *golden = getenv("YOKE_GOLDEN");
    assert_non_null(golden);
    char *path = xasprintf("%s/templates/%s", golden, name);
    struct err e = {0};
    json_t *j = NULL;
    if (json_parse_file(path, 4 << 20, &j, &e))
        fail_msg("%s", e.msg);
    xfree(path);
    return j;
}

static int render(const char *source, size_t n, const json_t *vars, struct template_limits limits,
                  struct buf *out, struct err *e)
{
    struct template *t = NULL;
    memset(e, 0, sizeof(*e));
    int code = template_parse(source, n, &t, e);
    if (!code)
        code = template_render(t, vars, limits, out, e);
    template_free(t);
    if (code) {
        assert_int_equal(out->len, 0);
        assert_int_equal(e->code, code);
        assert_true(e->msg[0] != 0);
    }
    return code;
}

/* want: a JSON string, or null where an error is expected; message: the error's sentence, or "" for any. */
static void check(const char *what, const char *source, size_t n, const json_t *vars,
                  struct template_limits limits, const json_t *want, const json_t *message)
{
    struct buf out = BUF_INIT;
    struct err e;
    int code = render(source, n, vars, limits, &out, &e);
    if (json_is_null(want)) {
        if (!code)
            fail_msg("%s: an error was expected, not '%s'\n%.*s", what, out.s, (int)MIN(n, 300u), source);
        if (json_string_length(message) && strcmp(e.msg, json_string_value(message)) != 0)
            fail_msg("%s: the error is '%s', not '%s'", what, e.msg, json_string_value(message));
    } else {
        if (code)
            fail_msg("%s: %s\n%.*s", what, e.msg, (int)MIN(n, 300u), source);
        if (out.len != json_string_length(want) || memcmp(out.s, json_string_value(want), out.len) != 0)
            fail_msg("%s:\n%.*s\nmade\n%s\nnot\n%s", what, (int)MIN(n, 300u), source, out.s,
                     json_string_value(want));
    }
    buf_release(&out);
}

static void test_snippets(void **state)
{
    json_t *j = load("snippets.json"), *cases = json_object_get(j, "cases"), *c;
    struct template_limits limits = {.now = json_integer_value(json_object_get(j, "now"))};
    size_t i;
    assert_true(json_array_size(cases) > 1000);
    json_array_foreach(cases, i, c)
    {
        const json_t *source = json_array_get(c, 0);
        check("snippet", json_string_value(source), json_string_length(source), json_object_get(j, "vars"),
              limits, json_array_get(c, 1), json_array_get(c, 2));
    }
    json_decref(j);
}

static void test_chats(void **state)
{
    json_t *j = load("chat.json"), *cases, *c;
    struct template_limits limits = {.now = json_integer_value(json_object_get(j, "now"))};
    const char *name;
    size_t n_cases = 0, i;
    json_object_foreach(json_object_get(j, "templates"), name, cases)
    {
        struct buf source = BUF_INIT;
        struct err e = {0};
        char *path = xasprintf("%s/templates/%s", getenv("YOKE_GOLDEN"), name);
        if (file_slurp(path, 1 << 20, &source, &e))
            fail_msg("%s", e.msg);
        json_array_foreach(cases, i, c)
        {
            const char *conversation = json_string_value(json_array_get(c, 0));
            const char *option = json_string_value(json_array_get(c, 1));
            json_t *vars = json_copy(json_object_get(j, "common"));
            json_object_update(vars, json_object_get(json_object_get(j, "options"), option));
            json_object_set(vars, "messages",
                            json_object_get(json_object_get(j, "conversations"), conversation));
            char *what = xasprintf("%s, %s, %s", name, conversation, option);
            check(what, source.s, source.len, vars, limits, json_array_get(c, 2), json_array_get(c, 3));
            xfree(what);
            json_decref(vars);
            n_cases++;
        }
        xfree(path);
        buf_release(&source);
    }
    assert_true(n_cases > 500);
    json_decref(j);
}

/* ---- what jinja2 cannot say ---- */

static json_t *vars_of(const char *text)
{
    json_t *j = NULL;
    struct err e = {0};
    if (json_parse(text, strlen(text), "test", &j, &e))
        fail_msg("%s", e.msg);
    return j;
}

static void expect_error(const char *source, struct template_limits limits, int code, const char *part)
{
    json_t *vars = vars_of("{\"l\": [1, 2, 3], \"s\": \"text\", \"d\": {\"a\": 1}}");
    struct buf out = BUF_INIT;
    struct err e;
    int got = render(source, strlen(source), vars, limits, &out, &e);
    if (got != code || !strstr(e.msg, part))
        fail_msg("%.200s: code %d and '%s', not code %d and '%s'", source, got, e.msg, code, part);
    buf_release(&out);
    json_decref(vars);
}

static void expect_text(const char *source, const char *want)
{
    json_t *vars = vars_of("{\"l\": [1, 2, 3], \"s\": \"text\", \"d\": {\"a\": 1}}");
    struct buf out = BUF_INIT;
    struct err e;
    if (render(source, strlen(source), vars, (struct template_limits){.now = 1}, &out, &e))
        fail_msg("%.200s: %s", source, e.msg);
    assert_string_equal(out.s, want);
    buf_release(&out);
    json_decref(vars);
}

static void test_positions(void **state)
{
    static const struct template_limits none = {0};
    expect_error("a\n  {% if x %}\n", none, ERR_FORMAT,
                 "line 2, column 13: the template ends, but 'if' of line 2");
    expect_error("é {{ 1 + }}", none, ERR_FORMAT, "line 1, column 10: found '}}' where an expression");
    expect_error("\n\n{{ 'abc }}", none, ERR_FORMAT, "line 3, column 4: this string is not closed");
    expect_error(
        "{% if 1 %}\n{% endfor %}", none, ERR_FORMAT,
        "line 2, column 4: unknown or misplaced statement 'endfor'; 'if' of line 1 is waiting for 'elif'");
    expect_error("{% frob %}", none, ERR_FORMAT, "unknown statement 'frob'");
    expect_error("{{ 1|frob }}", none, ERR_FORMAT,
                 "line 1, column 6: there is no filter or test named 'frob'");
    expect_error("a\r\nb\r{{ l.nope.x }}", none, ERR_FAIL,
                 "line 3, column 10: 'list object' has no attribute 'nope'");
    expect_error("{{ nope.x }}", none, ERR_FAIL, "line 1, column 8: 'nope' is undefined");
    expect_error("{{ l[7].x }}", none, ERR_FAIL, "list object has no element 7");
    expect_error("{{ none.x.y }}", none, ERR_FAIL, "'None' has no attribute 'x'");
    expect_error("{% for x in l %}\n{{ x + s }}{% endfor %}", none, ERR_FAIL,
                 "line 2, column 6: unsupported operand type(s) for +: 'int' and 'str'");
    expect_error("{{ l.append(4) }}", none, ERR_FAIL,
                 "access to attribute 'append' of 'list' object is unsafe.");
    expect_error("{% include 'x' %}", none, ERR_UNSUPPORTED, "'include' is not supported");
    expect_error("{{ s|pprint }}", none, ERR_UNSUPPORTED, "the filter 'pprint' is not supported");
    expect_error("{{ '\\N{BULLET}' }}", none, ERR_UNSUPPORTED, "\\N{...}");
    expect_error("{% autoescape true %}{% endautoescape %}", none, ERR_UNSUPPORTED, "autoescape");
}

/* raise_exception's message, and nothing else, is what a client gets to read. */
static void test_raise(void **state)
{
    json_t *vars = vars_of("{}");
    struct buf out = BUF_INIT;
    struct err e;
    const char *source = "text{{ raise_exception('Rôles must alternate: 100% ' ~ 'sure') }}";
    assert_int_equal(render(source, strlen(source), vars, (struct template_limits){0}, &out, &e), ERR_FAIL);
    assert_string_equal(e.msg, "Rôles must alternate: 100% sure");
    buf_release(&out);
    json_decref(vars);
}

static void test_limits(void **state)
{
    static const struct template_limits none = {0}, small = {.max_steps = 10000, .max_output = 1000};
    expect_error("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", none,
                 ERR_LIMIT, "steps");
    expect_error("{% for a in range(20000) %}{% endfor %}", small, ERR_LIMIT, "steps");
    expect_error("{% for a in range(1001) %}x{% endfor %}", small, ERR_LIMIT, "writes more than 1000 bytes");
    expect_error("{{ 'x' * 1001 }}", small, ERR_LIMIT, "writes more than 1000 bytes");
    expect_error("{{ 'a' * 10**9 }}", none, ERR_LIMIT, "memory");
    expect_error("{{ 'ab' * 9223372036854775807 }}", none, ERR_LIMIT, "memory");
    expect_error("{{ [1] * 10**10 }}", none, ERR_LIMIT, "memory");
    expect_error("{{ (1, 2) * 9223372036854775807 }}", none, ERR_LIMIT, "memory");
    expect_error("{{ range(10**12) }}", none, ERR_LIMIT, "Range too big");
    expect_error("{{ range(-9223372036854775807, 9223372036854775807) }}", none, ERR_LIMIT, "Range too big");
    expect_error(
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", none,
        ERR_LIMIT, "memory");
    expect_error(
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", none,
        ERR_LIMIT, "memory");
    expect_error("{% set n = namespace(x=[1]) %}{% for i in range(9999) %}{% set n.x = [n.x, n.x] %}{% "
                 "endfor %}{{ n.x }}",
                 none, ERR_LIMIT, "nested");
    expect_error("{% set n = namespace(x=[1]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor "
                 "%}{{ n.x|tojson }}",
                 none, ERR_LIMIT, "nested");
    expect_error("{% set n = namespace(x=(1,)) %}{% for i in range(9999) %}{% set n.x = (n.x,) %}{% endfor "
                 "%}{{ {n.x: 1} }}",
                 none, ERR_LIMIT, "nested");
    expect_error("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor "
                 "%}{{ n.x }}",
                 none, ERR_LIMIT, "chat template");
    expect_error("{% set n = namespace(x=[1]) %}{% set m = namespace(x=[1]) %}{% for i in range(60) %}{% set "
                 "n.x = [n.x, n.x] %}{% set m.x = [m.x, m.x] %}{% endfor %}{{ n.x == m.x }}",
                 none, ERR_LIMIT, "steps");
    expect_error("{% set n = namespace() %}{% set n.n = n %}{{ n }}", none, ERR_LIMIT, "nested");
    expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", none, ERR_LIMIT, "deep");
    expect_error("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}", none,
                 ERR_LIMIT, "deep");
    expect_error("{% for x in l recursive %}{{ loop(l) }}{% endfor %}", none, ERR_LIMIT, "deep");
    expect_error("{% set n = namespace(x=[1]|map('string')) %}{% for i in range(9999) %}{% set n.x = "
                 "n.x|map('string') %}"
                 "{% endfor %}{{ n.x|list }}",
                 none, ERR_LIMIT, "deep");
    expect_error("{{ '%999999999d' % 1 }}", none, ERR_LIMIT, "");
    expect_error("{{ '%.999999999f' % 1 }}", none, ERR_LIMIT, "");
    expect_error("{{ '{:999999999}'.format('x') }}", none, ERR_LIMIT, "");
    expect_error("{{ 'x'.center(999999999) }}", none, ERR_LIMIT, "");
    expect_error("{{ 'x'.zfill(999999999) }}", none, ERR_LIMIT, "");
    expect_error("{{ '\t'.expandtabs(999999999) }}", none, ERR_LIMIT, "memory");
    expect_error("{{ [1]|batch(999999999, 'x')|list }}", none, ERR_LIMIT, "");
    expect_error("{{ []|slice(999999999)|list }}", none, ERR_LIMIT, "");
    expect_error("{{ 'a\nb'|indent(999999999) }}", none, ERR_LIMIT, "memory");
    expect_error("{{ [1]|tojson(indent=999999999) }}", none, ERR_LIMIT, "memory");
    expect_error("{% set x = 'a' * 5000000 %}{{ x.replace('', x) }}", none, ERR_LIMIT, "memory");
    expect_error("{% set x = 'a' * 5000000 %}{{ x.replace('a', x) }}", none, ERR_LIMIT, "memory");
    expect_error("{% set x = 'a' * 8000000 %}{{ x.rfind(x[:4000000] ~ 'b') }}", none, ERR_LIMIT, "steps");
    expect_error(
        "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
        none, ERR_LIMIT, "steps");
    expect_error("{% set x = 'é' * 4000000 %}{% for i in range(99999) %}{{ x[-1] }}{% endfor %}", none,
                 ERR_LIMIT, "steps");
}

/* Python counts on; here 64 bits are the end, and said so. */
static void test_big_integers(void **state)
{
    static const struct template_limits none = {0};
    expect_error("{{ 9223372036854775807 + 1 }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ -9223372036854775807 - 2 }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ 9223372036854775807 * 2 }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ 2 ** 64 }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ (-9223372036854775807 - 1) // -1 }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ -(-9223372036854775807 - 1) }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ (-9223372036854775807 - 1)|abs }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ 99999999999999999999 }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ '99999999999999999999'|int }}", none, ERR_LIMIT, "64-bit");
    expect_error("{{ 1e30|int }}", none, ERR_LIMIT, "64-bit");
    expect_text(
        "{{ (-9223372036854775807 - 1) % -1 }} {{ 2 ** 62 * 2 - 1 + 2 ** 62 - 2 ** 62 if 0 else 2 ** 62 }}",
        "0 4611686018427387904");
}

static char *repeated(const char *open, const char *mid, const char *close, size_t n)
{
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < n; i++)
        buf_adds(&b, open);
    buf_adds(&b, mid);
    for (size_t i = 0; i < n; i++)
        buf_adds(&b, close);
    return buf_detach(&b);
}

/* Nesting in the source is refused before the stack is in danger; rows of operators likewise. */
static void test_nesting(void **state)
{
    static const struct template_limits none = {0};
    static const struct {
        const char *open, *mid, *close;
    } kinds[] = {
        {"{{ ", "1", " }}"},
        {"{% if 1 %}", "x", "{% endif %}"},
        {"{% for x in l %}", "x", "{% endfor %}"},
        {"{% set x %}", "x", "{% endset %}"},
        {"{% macro m() %}", "x", "{% endmacro %}"},
        {"{% filter upper %}", "x", "{% endfilter %}"},
    };
    for (size_t i = 1; i < ARRAY_LEN(kinds); i++) {
        char *s = repeated(kinds[i].open, kinds[i].mid, kinds[i].close, 100000);
        expect_error(s, none, ERR_LIMIT, "nested");
        xfree(s);
    }
    static const char *const inside[][2] = {{"(", ")"},        {"[", "]"},           {"{1: ", "}"},
                                            {"-", ""},         {"not ", ""},         {"l[", "]"},
                                            {"s.upper(", ")"}, {"1 if 1 else ", ""}, {"(1 + ", ")"}};
    for (size_t i = 0; i < ARRAY_LEN(inside); i++) {
        char *mid = repeated(inside[i][0], "1", inside[i][1], 100000);
        char *s = xasprintf("{{ %s }}", mid);
        struct template *t = NULL;
        struct err e = {0};
        assert_int_not_equal(template_parse(s, strlen(s), &t, &e), 0);
        assert_null(t);
        xfree(s);
        xfree(mid);
    }
    static const char *const rows[] = {" + 1", "|abs", ".x",   " or 0", " if 1 else 2 if 1",
                                       "[0]",  "()",   " ** 1"};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *mid = repeated(rows[i], "", "", 100000), *s = xasprintf("{{ 1%s }}", mid);
        struct template *t = NULL;
        struct err e = {0};
        assert_int_not_equal(template_parse(s, strlen(s), &t, &e), 0);
        xfree(s);
        xfree(mid);
    }
    char *elifs = repeated("{% elif 0 %}", "", "", 200),
         *s = xasprintf("{%% if 0 %%}%s{%% else %%}x{%% endif %%}", elifs);
    expect_text(s, "x");
    xfree(s);
    xfree(elifs);
    /* The deepest that is accepted also runs. */
    char *parens = repeated("(", "1", ")", 95), *deep = xasprintf("{{ %s }}", parens);
    expect_text(deep, "1");
    xfree(deep);
    xfree(parens);
}

/* Building text and lists step by step costs linear time and memory: this one would need 40 GB otherwise. */
static void test_linear_appends(void **state)
{
    struct buf out = BUF_INIT;
    struct err e;
    json_t *vars = vars_of("{}");
    const char *s =
        "{% set n = namespace(t='', l=[]) %}{% for i in range(90000) %}{% set n.t = n.t ~ 'ten bytes.' %}"
        "{% set n.l = n.l + [i] %}{% endfor %}{{ n.t|length }} {{ n.l|length }} {{ n.l[-1] }}";
    if (render(s, strlen(s), vars, (struct template_limits){0}, &out, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(out.s, "900000 90000 89999");
    buf_release(&out);
    json_decref(vars);
}

static void test_appends_to_out(void **state)
{
    struct buf out = BUF_INIT;
    struct err e = {0};
    struct template *t = NULL;
    json_t *vars = vars_of("{\"x\": 1}");
    buf_adds(&out, "before:");
    assert_int_equal(template_parse("{{ x }}{{ y.z if x == 2 }}", 26, &t, &e), 0);
    assert_int_equal(template_render(t, vars, (struct template_limits){0}, &out, &e), 0);
    assert_string_equal(out.s, "before:1");
    json_object_set_new(vars, "x", json_integer(2));
    assert_int_equal(template_render(t, vars, (struct template_limits){0}, &out, &e), ERR_FAIL);
    assert_string_equal(out.s, "before:1"); /* what a failed rendering wrote is taken back */
    assert_int_equal(template_render(t, json_object_get(vars, "x"), (struct template_limits){0}, &out, NULL),
                     ERR_USAGE);
    buf_release(&out);
    json_decref(vars);
    template_free(t);
    template_free(NULL);
}

static void test_not_utf8(void **state)
{
    struct template *t = NULL;
    struct err e = {0};
    assert_int_equal(template_parse("ab\xff", 3, &t, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "byte 2"));
    assert_int_equal(template_parse("\xed\xa0\x80", 3, &t, &e), ERR_FORMAT);
    assert_int_equal(template_parse("{{ '\\ud83d' }}", 14, &t, &e), ERR_FORMAT);
}

/* Without a nailed clock strftime_now tells the present. */
static void test_clock(void **state)
{
    expect_text("{{ strftime_now('%Y-%m-%d %H:%M:%S %f') }}", "1970-01-01 00:00:01 000000");
    struct buf out = BUF_INIT;
    struct err e;
    json_t *vars = vars_of("{}");
    const char *s = "{{ strftime_now('%Y')|int > 2023 }}";
    assert_int_equal(render(s, strlen(s), vars, (struct template_limits){0}, &out, &e), 0);
    assert_string_equal(out.s, "True");
    buf_release(&out);
    json_decref(vars);
}

struct worker {
    const struct template *t;
    const json_t *vars;
    struct buf out;
    int code;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < 200 && !w->code; i++) {
        buf_clear(&w->out);
        w->code = template_render(w->t, w->vars, (struct template_limits){.now = 1}, &w->out, NULL);
    }
    return NULL;
}

static void test_threads(void **state)
{
    const char *s = "{% macro m(x) %}<{{ x|upper }}>{% endmacro %}{% for x in l %}{{ m('é' ~ x) }}{{ "
                    "'äöü'[::-1] }}{{ loop.last }}{% endfor %}";
    struct template *t = NULL;
    struct err e = {0};
    json_t *vars = vars_of("{\"l\": [1, \"b\"]}");
    struct worker w[4];
    pthread_t id[4];
    assert_int_equal(template_parse(s, strlen(s), &t, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(w); i++) {
        w[i] = (struct worker){.t = t, .vars = vars, .out = BUF_INIT};
        assert_int_equal(pthread_create(&id[i], NULL, work, &w[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(w); i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(w[i].code, 0);
        assert_string_equal(w[i].out.s, "<É1>üöäFalse<ÉB>üöäTrue");
        buf_release(&w[i].out);
    }
    template_free(t);
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snippets),       cmocka_unit_test(test_chats),
        cmocka_unit_test(test_positions),      cmocka_unit_test(test_raise),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_big_integers),
        cmocka_unit_test(test_nesting),        cmocka_unit_test(test_linear_appends),
        cmocka_unit_test(test_appends_to_out), cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_clock),          cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
