/* Cores shared out among ranks, on machines that hwloc makes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <sched.h>
#include "base/cpu.h"
#include "base/mem.h"

static struct cores range(int begin, int end)
{
    struct cores c = {0};
    for (int i = begin; i < end; i++)
        c.cpu[c.n++] = (uint16_t)i;
    return c;
}

/* The parts, as "0-3 | 4-7". */
static const char *parts(const char *topology, struct cores allowed, int count)
{
    static char all[4096];
    all[0] = 0;
    for (int i = 0; i < count; i++) {
        struct cores c;
        char one[256];
        cores_share(topology, &allowed, i, count, &c);
        cores_print(&c, one, sizeof(one));
        strcat(strcat(all, i ? " | " : ""), one);
    }
    return all;
}

static void test_known_shares(void **state)
{
    (void)state;
    const char *two = "pack:2 [numa] core:8 pu:1", *smt = "pack:1 [numa] core:4 pu:2",
               *four = "pack:2 numa:2 core:4 pu:1";
    assert_string_equal(parts(two, range(0, 16), 1), "0-15");
    assert_string_equal(parts(two, range(0, 16), 2), "0-7 | 8-15");
    assert_string_equal(parts(two, range(0, 16), 4), "0-3 | 4-7 | 8-11 | 12-15");
    /* no part straddles the domains, though it makes the third larger */
    assert_string_equal(parts(two, range(0, 16), 3), "0-3 | 4-7 | 8-15");
    assert_string_equal(parts(two, range(0, 16), 6), "0-1 | 2-4 | 5-7 | 8-9 | 10-12 | 13-15");
    /* affinity */
    assert_string_equal(parts(two, range(4, 12), 2), "4-7 | 8-11");
    assert_string_equal(parts(two, range(4, 8), 2), "4-5 | 6-7");
    /* a domain of which next to nothing may be used gets no rank */
    assert_string_equal(parts(two, range(0, 9), 2), "0-3 | 4-7");
    /* fewer parts than domains: whole domains */
    assert_string_equal(parts(four, range(0, 16), 2), "0-7 | 8-15");
    assert_string_equal(parts(four, range(0, 16), 3), "0-3 | 4-7 | 8-15");
    assert_string_equal(parts(four, range(0, 16), 4), "0-3 | 4-7 | 8-11 | 12-15");
    /* hardware threads of a core stay together while there are enough cores */
    assert_string_equal(parts(smt, range(0, 8), 2), "0-3 | 4-7");
    assert_string_equal(parts(smt, range(0, 8), 3), "0-1 | 2-3 | 4-7");
    assert_string_equal(parts(smt, range(0, 8), 8), "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7");
    assert_string_equal(parts(smt, range(1, 7), 2), "1-3 | 4-6");
    /* more parts than cores: shared */
    assert_string_equal(parts(smt, range(0, 2), 3), "any | any | any");
    assert_string_equal(parts("numa:2 core:0", range(0, 2), 1), "any"); /* no topology at all */
}

/* The kernel numbers the second hardware threads after all first ones, and interleaves packages. */
static void test_numbers_of_the_kernel(void **state)
{
    (void)state;
    const char *t = "pack:2 [numa] core:2 pu:2(indexes=0,4,2,6,1,5,3,7)";
    assert_string_equal(parts(t, range(0, 8), 2), "0,2,4,6 | 1,3,5,7");
    assert_string_equal(parts(t, range(0, 8), 4), "0,4 | 2,6 | 1,5 | 3,7");
}

static void test_any_share(void **state)
{
    (void)state;
    static const char *const machines[] = {"pack:1 [numa] core:1 pu:1",  "pack:2 [numa] core:6 pu:2",
                                           "pack:2 numa:4 core:3 pu:1",  "pack:1 [numa] l3:4 core:4 pu:2",
                                           "pack:2 [numa] core:64 pu:2", "numa:8 core:1 pu:1"};
    static const int size[] = {1, 24, 24, 32, 256, 8};
    for (size_t k = 0; k < ARRAY_LEN(machines); k++) {
        for (int skip = 1; skip <= 3; skip++) {
            struct cores allowed = {0};
            for (int i = 0; i < size[k]; i++)
                if (skip == 1 || i % skip)
                    allowed.cpu[allowed.n++] = (uint16_t)i;
            for (int count = 1; count <= allowed.n && count < 16; count += count < 4 ? 1 : 3) {
                uint8_t taken[CPU_MAX] = {0}, may[CPU_MAX] = {0};
                int least = CPU_MAX;
                for (int i = 0; i < allowed.n; i++)
                    may[allowed.cpu[i]] = 1;
                for (int r = 0; r < count; r++) {
                    struct cores c;
                    cores_share(machines[k], &allowed, r, count, &c);
                    assert_true(c.n > 0);
                    least = MIN(least, c.n);
                    for (int i = 0; i < c.n; i++) {
                        assert_true(may[c.cpu[i]]);
                        assert_false(taken[c.cpu[i]]++);
                    }
                }
                /* never less than half of an even share */
                assert_true(2 * least >= allowed.n / count);
            }
        }
    }
}

static void test_binding_this_thread(void **state)
{
    (void)state;
    struct cores before, now, mine;
    cpu_set_t set;
    cores_allowed(&before);
    assert_true(before.n >= 1 && cpu_count() <= before.n);
    cores_share(NULL, &before, 0, 1, &mine);
    assert_int_equal(mine.n, before.n);
    cores_bind(&mine, mine.n - 1, mine.n);
    assert_false(sched_getaffinity(0, sizeof(set), &set));
    assert_int_equal(CPU_COUNT(&set), 1);
    assert_true(CPU_ISSET(mine.cpu[mine.n - 1], &set));
    cores_bind(&before, 0, 0);
    cores_allowed(&now);
    assert_int_equal(now.n, before.n);
    assert_memory_equal(now.cpu, before.cpu, sizeof(now.cpu[0]) * (size_t)now.n);
    cores_bind(&(struct cores){0}, 0, 1);                            /* no statement: nothing happens */
    cores_bind(&(struct cores){.n = 1, .cpu = {CPU_MAX - 1}}, 0, 1); /* no such core: nothing happens */
    cores_allowed(&now);
    assert_int_equal(now.n, before.n);
}

static void test_printing(void **state)
{
    (void)state;
    char b[64], small[6];
    cores_print(&(struct cores){.n = 6, .cpu = {8, 0, 1, 3, 2, 10}}, b, sizeof(b));
    assert_string_equal(b, "0-3,8,10");
    cores_print(&(struct cores){.n = 6, .cpu = {8, 0, 1, 3, 2, 10}}, small, sizeof(small));
    assert_string_equal(small, "0-3,8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_shares), cmocka_unit_test(test_numbers_of_the_kernel),
        cmocka_unit_test(test_any_share),    cmocka_unit_test(test_binding_this_thread),
        cmocka_unit_test(test_printing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
