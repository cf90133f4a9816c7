/* Hosts and who runs where; reports of how ranks ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "cli/launch.h"

/* Who runs where, as "a=2 b=2"; or the error's sentence. */
static const char *spread(const char *list, int n)
{
    static char out[4096];
    struct launch_hosts h = {0};
    struct err e;
    int rc = hosts_parse_list(list, &h, &e);
    if (!rc)
        rc = hosts_assign(&h, n, &e);
    out[0] = 0;
    for (size_t i = 0; i < h.n && !rc; i++)
        snprintf(out + strlen(out), sizeof(out) - strlen(out), "%s%s=%d", i ? " " : "", h.v[i].name,
                 h.v[i].ranks);
    hosts_release(&h);
    if (rc)
        snprintf(out, sizeof(out), "%s", e.msg);
    return out;
}

static void test_spreading(void **state)
{
    (void)state;
    assert_string_equal(spread("a", 3), "a=3");
    assert_string_equal(spread("a,b", 4), "a=2 b=2");
    assert_string_equal(spread("a,b,c", 8), "a=3 b=3 c=2");
    assert_string_equal(spread("a,b,c", 2), "a=1 b=1 c=0");
    assert_string_equal(spread("a:3,b", 4), "a=3 b=1");
    assert_string_equal(spread("a,b:3", 4), "a=1 b=3");
    assert_string_equal(spread("a:4,b:4", 6), "a=4 b=2");
    assert_string_equal(spread("a,b,a", 3), "a=1 b=1 a=1");
    assert_string_equal(spread("user@n1.example.org,10.0.0.2", 2), "user@n1.example.org=1 10.0.0.2=1");
    assert_string_equal(spread("a:1,b:2", 4), "the hosts take 3 ranks as they are listed, but there are 4");
}

static void test_bad_lists(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   ",",     "a,",   ",a",  "a,,b", "a:", "a:0",   "a:-1",
                                      ":2", "a:2x",  "a b",  "-a",  "a;b",  "$a", "a:b:2", "a:99999999999",
                                      "a'", "a:1:2", "a\tb", "a/b", "`a`"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (!strstr(spread(bad[i], 2), "should be a host's name"))
            fail_msg("\"%s\" is taken: %s", bad[i], spread(bad[i], 2));
}

static void file_case(const char *text, const char *want)
{
    char path[] = "/tmp/yoke_hosts_XXXXXX", got[4200] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && !close(fd));
    struct launch_hosts h = {0};
    struct err e;
    if (hosts_parse_file(path, &h, &e)) {
        assert_int_equal(e.code, ERR_USAGE);
        assert_true(!strncmp(e.msg, path, strlen(path)));
        snprintf(got, sizeof(got), "%s", e.msg + strlen(path));
    } else {
        for (size_t i = 0; i < h.n; i++)
            snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s:%d", i ? " " : "", h.v[i].name,
                     h.v[i].slots);
    }
    assert_string_equal(got, want);
    hosts_release(&h);
    unlink(path);
}

static void test_files(void **state)
{
    (void)state;
    file_case("a\nb", "a:0 b:0");
    file_case("# all\n\n  a slots=4 max_slots=8 # big\r\nb:2\nc\tmax-slots=3 slots=1\n", "a:4 b:2 c:1");
    file_case("", " names no host");
    file_case(" # \n", " names no host");
    file_case("a\nb slots=\n", ":2: \"slots=\" should be slots=N");
    file_case("a cores=2\n", ":1: \"cores=2\" should be slots=N");
    file_case("a b\n", ":1: \"b\" should be slots=N");
    file_case("a:x\n", ":1: \"a:x\" should be a host's name, or name:ranks such as n1:4");
    char line[3000];
    memset(line, 'a', sizeof(line) - 1);
    line[sizeof(line) - 1] = 0;
    file_case(line, ":1: a line of more than 1022 characters");
}

static void test_reports(void **state)
{
    (void)state;
    struct rank_end x = {.rank = 12, .pid = 345, .code = 137, .signal = 9, .host = "n1", .lines = BUF_INIT},
                    y;
    struct buf b = BUF_INIT, said = BUF_INIT;
    buf_adds(&x.lines, "one\n\ttwo \xc3\xa4\r\nthree\x1b[0m");
    rank_end_write(&x, &b);
    assert_int_equal(b.s[0], REPORT_MARK);
    assert_ptr_equal(strchr(b.s, '\n'), b.s + b.len - 1);
    b.s[b.len - 1] = 0;
    assert_true(rank_end_read(b.s + 1, &y));
    assert_int_equal(y.rank, 12);
    assert_int_equal(y.pid, 345);
    assert_int_equal(y.code, 137);
    assert_int_equal(y.signal, 9);
    assert_string_equal(y.host, "n1");
    assert_string_equal(y.lines.s, "one\n\ttwo \xc3\xa4 \nthree [0m\n");
    rank_end_describe(&y, &said);
    assert_non_null(strstr(said.s, "rank 12 on host n1 (pid 345) was killed by signal 9 (Killed)"));
    buf_release(&y.lines);
    static const char *const bad[] = {"",
                                      "x",
                                      "1 2 3",
                                      "1 2 3 0 host",
                                      "-1 2 3 0 host\x1f",
                                      "1 2 0 0 host\x1f",
                                      "1 2 256 0 host\x1f",
                                      "1 2 3 -1 host\x1f",
                                      "1 2 3 0 \x1f"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (rank_end_read(bad[i], &y))
            fail_msg("\"%s\" is taken", bad[i]);
        buf_release(&y.lines);
    }
    assert_true(rank_end_read("0 2 3 0 host\x1f", &y)); /* it said nothing */
    assert_int_equal(y.lines.len, 0);
    buf_clear(&said);
    rank_end_describe(&y, &said);
    assert_non_null(strstr(said.s, "ended with code 3: a model or a file"));
    buf_release(&x.lines);
    buf_release(&b);
    buf_release(&said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spreading),
        cmocka_unit_test(test_bad_lists),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
