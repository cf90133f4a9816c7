#include "tests/unit/cli/harness.h"

#include "cli/yaml.h"

struct doc {
    struct arena *a;
    struct yaml_node *root;
    struct err e;
    int err;
};

static struct doc parse_n(const char *text, size_t n)
{
    struct doc d = {.a = arena_new()};
    d.err = yaml_parse(text, n, "t.yaml", d.a, &d.root, &d.e);
    return d;
}

static struct doc parse(const char *text)
{
    struct doc d = parse_n(text, strlen(text));
    if (d.err)
        fail_msg("%s", d.e.msg);
    return d;
}

static void refuse_n(const char *text, size_t n, const char *sentence)
{
    struct doc d = parse_n(text, n);
    assert_int_equal(d.err, ERR_USAGE);
    assert_string_equal(d.e.msg, sentence);
    arena_free(d.a);
}

static void refuse_yaml(const char *text, const char *sentence)
{
    refuse_n(text, strlen(text), sentence);
}

static const char *at(const struct doc *d, const char *path)
{
    const struct yaml_node *n = yaml_find(d->root, path);
    return n && n->kind == YAML_SCALAR ? n->text : NULL;
}

static void test_positions(void **state)
{
    (void)state;
    struct doc d = parse("a: 1\nb:\n  c: [x, 'y z']\n  \"d\": \"7\"\n");
    struct yaml_node *c = yaml_find(d.root, "b.c"), *q = yaml_find(d.root, "b.d");
    assert_int_equal(yaml_find(d.root, "a")->line, 1);
    assert_int_equal(yaml_find(d.root, "a")->column, 4);
    assert_int_equal(c->kind, YAML_SEQ);
    assert_int_equal(c->n, 2);
    assert_int_equal(c->value[1]->line, 3);
    assert_int_equal(c->value[1]->column, 10);
    assert_true(c->value[1]->quoted);
    assert_false(c->value[0]->quoted);
    assert_string_equal(q->text, "7");
    assert_true(q->quoted);
    assert_null(yaml_find(d.root, "b.c.x"));
    assert_null(yaml_find(d.root, "b.x"));
    assert_ptr_equal(yaml_find(d.root, ""), d.root);
    arena_free(d.a);
}

static void test_anchors_and_merges(void **state)
{
    (void)state;
    struct doc d = parse("base: &b {x: 1, y: 2}\n"
                         "more: &m {y: 3, z: 4}\n"
                         "one:\n  y: 9\n  <<: *b\n"
                         "two:\n  <<: [*b, *m]\n  w: 0\n"
                         "quoted: {\"<<\": 5}\n"
                         "again: &b 6\n"
                         "six: *b\n");
    assert_string_equal(at(&d, "one.y"), "9");
    assert_string_equal(at(&d, "one.x"), "1");
    assert_int_equal(yaml_find(d.root, "one")->n, 2);
    assert_string_equal(at(&d, "two.y"), "2");
    assert_string_equal(at(&d, "two.z"), "4");
    assert_int_equal(yaml_find(d.root, "two")->n, 4);
    assert_string_equal(at(&d, "quoted.<<"), "5");
    assert_string_equal(at(&d, "six"), "6");
    assert_true(yaml_find(d.root, "base")->aliased);
    assert_false(yaml_find(d.root, "two")->aliased);
    arena_free(d.a);
    refuse_yaml("a: *nope\n", "t.yaml:1:4: *nope names no anchor before it");
    refuse_yaml("a: &x [1, *x]\n", "t.yaml:1:11: *x stands inside the value that it names");
    refuse_yaml("a: {<<: 3}\n",
                "t.yaml:1:9: the value of a merge key (<<) must be a mapping or a list of mappings");
}

static void test_alias_bomb_is_bounded(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_adds(&b, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 9; i++) {
        buf_addf(&b, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++)
            buf_addf(&b, "%s*a%d", j ? ", " : "", i - 1);
        buf_adds(&b, "]\n");
    }
    refuse_yaml(b.s, "t.yaml:5:10: more than 20000 values, every alias counted in full");
    buf_clear(&b);
    /* the same by merge keys */
    buf_adds(&b, "m: &m {");
    for (int i = 0; i < 3000; i++)
        buf_addf(&b, "k%d: 1, ", i);
    buf_adds(&b, "z: 1}\n");
    for (int i = 0; i < 8; i++)
        buf_addf(&b, "n%d: {<<: *m}\n", i);
    struct doc d = parse_n(b.s, b.len);
    assert_int_equal(d.err, ERR_USAGE);
    assert_non_null(strstr(d.e.msg, "more than 20000 values"));
    arena_free(d.a);
    buf_release(&b);
}

static void test_limits(void **state)
{
    (void)state;
    struct doc d = parse("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n");
    assert_string_equal(at(&d, "a.b.c.d.e.f.g.h.i"), "1");
    arena_free(d.a);
    d = parse("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}\n");
    assert_int_equal(d.root->height, 10);
    arena_free(d.a);
    refuse_yaml("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: {k: 1}}}}}}}}}}\n",
                "t.yaml:1:40: nested deeper than 10 levels");
    /* deep by alias: each is shallow where it stands */
    refuse_yaml("a: &a {b: {c: {d: {e: {f: 1}}}}}\ng: {h: {i: {j: {k: {l: *a}}}}}\n",
                "t.yaml:2:24: nested deeper than 10 levels");
    char *big = xmalloc(YAML_MAX_BYTES + 2);
    memset(big, '#', YAML_MAX_BYTES + 1);
    refuse_n(big, YAML_MAX_BYTES + 1, "t.yaml: 1048577 bytes, but a configuration has at most 1048576");
    memset(big, '[', YAML_MAX_BYTES);
    d = parse_n(big, YAML_MAX_BYTES);
    assert_int_equal(d.err, ERR_USAGE);
    arena_free(d.a);
    xfree(big);
}

static void test_encodings(void **state)
{
    (void)state;
    struct doc d = parse("\xEF\xBB\xBF"
                         "a: 1\r\nb:\r\n  c: \xC3\xA4\r\n");
    assert_string_equal(at(&d, "a"), "1");
    assert_string_equal(at(&d, "b.c"), "\xC3\xA4");
    arena_free(d.a);
    refuse_yaml("a: 1\nb: \xFF\n", "t.yaml:2:4: the byte 0xff is not UTF-8 text");
    refuse_yaml("a: \xED\xA0\x80\n", "t.yaml:1:4: the byte 0xed is not UTF-8 text");
    refuse_n("a: 1\0b", 6, "t.yaml:1:5: a NUL character is not text");
    refuse_n("\xFF\xFE"
             "a\0:\0",
             6, "t.yaml:1:1: the byte 0xff is not UTF-8 text");
    refuse_yaml("a: \"x\\0y\"\n", "t.yaml:1:4: a value holds a NUL character");
}

static void test_shape_of_a_document(void **state)
{
    (void)state;
    const char *const empty[] = {"", "# nothing\n", "---\n", "---\n...\n", "~\n", "{}\n", "\n\n"};
    for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
        struct doc d = parse(empty[i]);
        assert_int_equal(d.root->kind, YAML_MAP);
        assert_int_equal(d.root->n, 0);
        arena_free(d.a);
    }
    refuse_yaml("a: 1\n---\nb: 2\n",
                "t.yaml:2:1: a second document begins here; a configuration is one document");
    refuse_yaml("- 1\n", "t.yaml:1:1: the outermost level must be a mapping (key: value)");
    refuse_yaml("hello\n", "t.yaml:1:1: the outermost level must be a mapping (key: value)");
    refuse_yaml("a: 1\nb: 2\na: 3\n",
                "t.yaml:3:1: the key \"a\" stands here a second time; the first is at line 1");
    refuse_yaml("? [x]\n: 1\n", "t.yaml:1:3: a key must be a name, not a list or a mapping");
    refuse_yaml("a: !!python/object:os.system x\n",
                "t.yaml:1:30: the tag tag:yaml.org,2002:python/object:os.system is not supported");
    struct doc d = parse_n("a:\n\tb: 1\n", 8);
    assert_int_equal(d.err, ERR_USAGE);
    assert_non_null(strstr(d.e.msg, "t.yaml:2:1: "));
    assert_non_null(strstr(d.e.msg, "tab"));
    arena_free(d.a);
    d = parse("a: !!str 4\nb: !!int 5\n");
    assert_true(yaml_find(d.root, "a")->quoted);
    assert_false(yaml_find(d.root, "b")->quoted);
    arena_free(d.a);
}

static void test_syntax_errors_have_positions(void **state)
{
    (void)state;
    const char *const bad[] = {"a: [1, 2\nb: 3\n", "a: 'x\n",      "a: b: c\n", "a: 1\n  b: 2\n", "a: @x\n",
                               "a: {b\n",          "a: \"\\q\"\n", "&a\n",      "a: }\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct doc d = parse_n(bad[i], strlen(bad[i]));
        if (!d.err && strcmp(bad[i], "&a\n"))
            fail_msg("accepted: %s", bad[i]);
        if (d.err && (strncmp(d.e.msg, "t.yaml:", 7) || d.e.msg[7] < '1' || d.e.msg[7] > '3'))
            fail_msg("no position: %s", d.e.msg);
        arena_free(d.a);
    }
}

static void test_with_copies_the_way(void **state)
{
    (void)state;
    struct doc d = parse("base: &b {x: 1}\na: *b\nc: *b\ns: 1\n");
    const char *stop = NULL;
    struct yaml_node *v = yaml_from_text(d.a, "7", "--a.x");
    struct yaml_node *r = yaml_with(d.a, d.root, "a.x", v, &stop);
    assert_string_equal(yaml_find(r, "a.x")->text, "7");
    assert_string_equal(yaml_find(r, "c.x")->text, "1"); /* the alias elsewhere is untouched */
    assert_string_equal(yaml_find(d.root, "a.x")->text, "1");
    r = yaml_with(d.a, r, "p.q.r", yaml_from_text(d.a, "[1, {\"k\": null}]", "-"), &stop);
    assert_int_equal(yaml_find(r, "p.q.r")->kind, YAML_SEQ);
    assert_true(yaml_is_null(yaml_find(yaml_find(r, "p.q.r")->value[1], "k")));
    assert_null(yaml_with(d.a, r, "s.t", v, &stop));
    assert_string_equal(stop, "t");
    assert_string_equal(yaml_from_text(d.a, "[not json", "-")->text, "[not json");
    arena_free(d.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_anchors_and_merges),
        cmocka_unit_test(test_alias_bomb_is_bounded),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_shape_of_a_document),
        cmocka_unit_test(test_syntax_errors_have_positions),
        cmocka_unit_test(test_with_copies_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
