#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "text/regex.h"

static char *matches(const char *pattern, const char *text, size_t n, bool jit)
{
    struct regex *r = NULL;
    struct err e = {0};
    struct regex_matches m = {0};
    struct buf b = BUF_INIT;
    struct regex_scratch *s = regex_scratch_new();
    if (regex_new(pattern, strlen(pattern), "test", &r, &e))
        fail_msg("%s", e.msg);
    if (!jit)
        regex_disable_jit(r);
    if (regex_find_all(r, s, text, n, &m, &e))
        fail_msg("%s: %s", pattern, e.msg);
    for (size_t i = 0; i < m.n; i++)
        buf_addf(&b, "%s%zu-%zu", i ? " " : "", m.v[i].start, m.v[i].end);
    xfree(m.v);
    regex_scratch_free(s);
    regex_free(r);
    return buf_detach(&b);
}

/* What Oniguruma finds. */
static void test_semantics(void **state)
{
    static const struct {
        const char *pattern, *text, *found;
    } cases[] = {
        {"\\s+", "a \xE1\xA0\x8E\xC2\x85 b", "1-2 5-8"}, /* U+180E is no space, U+0085 is */
        {"\\S+", "a \xE1\xA0\x8E", "0-1 2-5"},
        {"\\h+", "xyz09afg", "3-7"}, /* hexadecimal digits */
        {"a.c|^b|c$", "a\nc\nb\nabc\nc", "2-3 4-5 6-9 10-11"},
        {"(?m)a.c", "a\nc", "0-3"},
        {"(?m:a.)c|a.", "a\nc", "0-3"},
        {"\\d{2}+", "12345", "0-4"},         /* (?:\d{2})+ */
        {"\\d{2}?", "12345", "0-2 2-4 5-5"}, /* (?:\d{2})? */
        {"\\d{1,2}?", "123", "0-1 1-2 2-3"},
        {"a{,2}b", "aaab", "1-4"},
        {"x{a}", "x{a}", "0-4"},
        {"[a-c[x-z]]+", "abxzm", "0-4"},
        {"[a-z&&[^aeiou]]+", "hello", "0-1 2-4"},
        {"[^a-z&&[^aeiou]]+", "heLlo", "1-3 4-5"},
        {"[]a]+", "a]", "0-2"},
        {"[\\s-]+", "- b", "0-2"},
        {"[a-]+", "a-b", "0-2"},
        {"[\\]\\-\\\\]+", "]-\\", "0-3"},
        {"(?i:'s|'LL)", "'S'll'\xC5\xBF", "0-2 2-5 5-8"},
        {"(?i)ab|cd", "ABcD", "0-2 2-4"},
        {"\\p{Han}+", "a\xE6\xBC\xA2\xE3\x80\x81\xF0\xB1\x8D\x90",
         "1-4 7-11"}, /* not the comma; and U+31350 */
        {"\\p{^L}+|\\P{N}", "1a", "0-1 1-2"},
        {"\\p{Lowercase_Letter}\\p{punctuation}", "a!A!", "0-2"},
        {"\\w+", "a\xC2\xB3\xE2\x92\xB6", "0-6"},       /* ³ counts outside classes ... */
        {"[\\w]+", "a\xC2\xB3\xE2\x92\xB6", "0-1 3-6"}, /* ... and not inside */
        {"\\b", "ab c", "0-0 2-2 3-3 4-4"},
        {"\\v|\\x41|\\u0042|\\x{43}", "\vABC", "0-1 1-2 2-3 3-4"},
        {"(?x) a  b # c\n c", "abc", "0-3"},
        {"(?<n>a)\\k<n>|b", "b", NULL},
        {"(a)\\1", "aaa", "0-2"},
        {"(?#note)a(?>b|bc)c", "abcabc", "0-3 3-6"},
        {"x*", "axx", "0-0 1-3"},
        {"\\s+$", "a  \n \nb  \n", "1-5 7-10"},
        {"(?<=a)b|(?<!a)c", "abac c", "1-2 5-6"},
        {"\\Aa|a\\z", "aaa", "0-1 2-3"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (!cases[i].found)
            continue;
        for (int jit = 0; jit < 2; jit++) {
            char *found = matches(cases[i].pattern, cases[i].text, strlen(cases[i].text), jit);
            if (strcmp(found, cases[i].found))
                fail_msg("%s in \"%s\": found %s, not %s", cases[i].pattern, cases[i].text, found,
                         cases[i].found);
            xfree(found);
        }
    }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *pattern, *why;
    } cases[] = {
        {"[\\P{L}a]", "a negated set inside a class"},
        {"[a[^b]c]", "a negated class inside a class"},
        {"\\q", "this escape"},
        {"\\K", "this escape"},
        {"\\x80", "this escape"},
        {"a\\", "a trailing backslash"},
        {"[a", "an unfinished class"},
        {"(a", "unmatched"},
        {"a)", "unmatched"},
        {"\\p{Nonsense}", "cannot be compiled"},
        {"\\p{No_Such-9}", "this \\p{...}"},
        {"\\pL", "\\p without {name}"},
        {"a(?i)b|c", "an option in force before a later"},
        {"(?w)a", "this group"},
        {"[[:bogus:]]", "this [:class:]"},
        {"*a", "cannot be compiled"},
        {"\xFF", "not UTF-8"},
        {"((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))", "a group nested so deeply"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct regex *r = NULL;
        struct err e = {0};
        if (!regex_new(cases[i].pattern, strlen(cases[i].pattern), "here", &r, &e))
            fail_msg("%s was accepted", cases[i].pattern);
        if (!strstr(e.msg, cases[i].why) || strncmp(e.msg, "here: ", 6))
            fail_msg("%s: \"%s\" should say \"%s\"", cases[i].pattern, e.msg, cases[i].why);
    }
}

static char *filled(const char *unit, size_t n)
{
    size_t len = strlen(unit);
    char *s = xmalloc(n * len + 1);
    for (size_t i = 0; i < n; i++)
        memcpy(s + i * len, unit, len);
    s[n * len] = 0;
    return s;
}

static int run(const char *pattern, const char *text, bool jit, size_t *ret_n)
{
    struct regex *r = NULL;
    struct err e = {0};
    struct regex_matches m = {0};
    struct regex_scratch *s = regex_scratch_new();
    assert_int_equal(regex_new(pattern, strlen(pattern), "test", &r, &e), 0);
    if (!jit)
        regex_disable_jit(r);
    int rc = regex_find_all(r, s, text, strlen(text), &m, &e);
    *ret_n = m.n;
    xfree(m.v);
    regex_scratch_free(s);
    regex_free(r);
    return rc;
}

/* Patterns that would take for ever, on texts that bring it out, end with an error, soon. */
static void test_limits(void **state)
{
    size_t n;
    char *a = filled("a", 1 << 20), *few = filled("a", 40), *spaces = filled(" ", 1 << 18);
    for (int jit = 0; jit < 2; jit++) {
        assert_int_equal(run("(?:a+)+[bc]", few, jit, &n), ERR_LIMIT);
        assert_int_equal(run("a++[bc]", a, jit, &n), ERR_LIMIT);
        assert_int_equal(run("\\s+[.,]", spaces, jit, &n), ERR_LIMIT);
    }
    xfree(a);
    xfree(few);
    xfree(spaces);
}

/* Long matches are whole, whatever stack or windows they take. */
static void test_long_matches(void **state)
{
    static const char *const patterns[] = {"a+",   "(?:a\\p{M}*)+",         "(?:a|b)+",
                                           "(a)+", "\\s*[\\r\\n]+|a+(?!b)", "(?:(?:ab?)+c?)+"};
    char *a = filled("a", 1 << 18);
    size_t n;
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++)
        for (int jit = 0; jit < 2; jit++) {
            assert_int_equal(run(patterns[i], a, jit, &n), 0);
            assert_int_equal(n, 1);
        }
    xfree(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_semantics),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
