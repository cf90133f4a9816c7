#include "tests/unit/cli/harness.h"

#include <fcntl.h>
#include <stdlib.h>

#include "cli/progress.h"

static void check(struct progress p, int width, double elapsed_s, const char *want)
{
    struct buf b = BUF_INIT;
    progress_render(&p, width, elapsed_s, &b);
    assert_string_equal(b.s, want);
    assert_true((int)b.len <= width);
    buf_release(&b);
}

static void test_rendering(void **state)
{
    (void)state;
    struct progress p = {.what = "loading", .total = 2ull << 30, .unit = PROGRESS_BYTES};
    check(p, 80, 0, "loading [..............................]   0%  0 B/2.0 GB");
    p.done = 1ull << 30;
    check(p, 80, 0.5, "loading [###############...............]  50%  1.0 GB/2.0 GB");
    check(p, 80, 2, "loading [##############...............]  50%  1.0 GB/2.0 GB  512 MB/s  0:02 left");
    check(p, 60, 2, "loading [####.....]  50%  1.0 GB/2.0 GB  512 MB/s  0:02 left");
    check(p, 54, 2, "loading  50%  1.0 GB/2.0 GB  512 MB/s  0:02 left");
    check(p, 20, 2, "loading  50%  1.0 GB");
    check(p, 0, 2, "");
    p.done = 3ull << 30; /* more than was announced */
    check(p, 80, 4, "loading [##############################] 100%  2.0 GB/2.0 GB  512 MB/s");
    p = (struct progress){.what = "answering",
                          .total = 7200,
                          .done = 1,
                          .unit = PROGRESS_COUNT,
                          .noun = "prompts",
                          .note = "12.5 tokens/s"};
    check(p, 100, 2,
          "answering [..............................]   0%  1/7200 prompts  0.5/s  3:59:58 left  12.5 "
          "tokens/s");
    p = (struct progress){.what = "reading", .done = 999, .unit = PROGRESS_BYTES}; /* no total */
    check(p, 80, 3, "reading  999 B  333 B/s");
}

static void test_every_width_fits(void **state)
{
    (void)state;
    for (int width = 0; width < 130; width++)
        for (uint64_t done = 0; done <= 1000; done += 125) {
            struct progress p = {
                .what = "loading", .total = 1000, .done = done, .unit = PROGRESS_COUNT, .noun = "tensors"};
            struct buf b = BUF_INIT;
            buf_adds(&b, ">>");
            progress_render(&p, width, 1.5, &b);
            assert_true((int)b.len <= width + 2);
            buf_release(&b);
        }
}

/* Standard error of a test is no terminal (or is made none here): nothing may be drawn. */
static void test_silent_without_a_terminal(void **state)
{
    (void)state;
    char path[] = "/tmp/yoke_test_XXXXXX";
    int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    assert_true(fd >= 0 && saved >= 0);
    dup2(fd, STDERR_FILENO);
    struct progress p;
    progress_begin(&p, "x", 10, PROGRESS_COUNT);
    for (uint64_t i = 0; i <= 10; i++)
        progress_update(&p, i);
    progress_end(&p);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_int_equal(lseek(fd, 0, SEEK_END), 0);
    close(fd);
    unlink(path);
}

/* Into a pseudo terminal: the line appears and is taken away again. */
static void test_draws_on_a_terminal(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master))
        skip();
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY), saved = dup(STDERR_FILENO);
    if (slave < 0)
        skip();
    setenv("TERM", "xterm", 1);
    unsetenv("YOKE_PROGRESS");
    dup2(slave, STDERR_FILENO);
    struct progress p;
    progress_begin(&p, "loading", 4, PROGRESS_COUNT);
    progress_update(&p, 1);
    p.drawn_s += 1000; /* however slow this machine is, the next one comes too soon to be drawn */
    progress_update(&p, 2);
    progress_end(&p);
    setenv("YOKE_PROGRESS", "0", 1);
    struct progress off;
    progress_begin(&off, "loading", 4, PROGRESS_COUNT);
    int off_fd = off.fd;
    dup2(saved, STDERR_FILENO);
    close(saved);
    const char *want = "\rloading [#######.......................]  25%  1/4\033[K\r\033[K";
    char got[256] = "";
    size_t n = 0;
    while (n < strlen(want)) { /* a terminal hands out as much as it has */
        ssize_t more = read(master, got + n, sizeof(got) - 1 - n);
        assert_true(more > 0);
        n += (size_t)more;
    }
    assert_string_equal(got, want);
    assert_int_equal(off_fd, -1);
    close(slave);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendering),
        cmocka_unit_test(test_every_width_fits),
        cmocka_unit_test(test_silent_without_a_terminal),
        cmocka_unit_test(test_draws_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
