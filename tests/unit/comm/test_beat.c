/* Who watches whom: pairs are mutual, never within a host, few, and connect all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/beat.h"

#define MOST 256

static int with[MOST][MOST], n_with[MOST];

static int watches(int r, int s)
{
    for (int i = 0; i < n_with[r]; i++)
        if (with[r][i] == s)
            return 1;
    return 0;
}

static int host_watches(const int *host, int n, int a, int b)
{
    for (int r = 0; r < n; r++)
        for (int i = 0; host[r] == a && i < n_with[r]; i++)
            if (host[with[r][i]] == b)
                return 1;
    return 0;
}

static void check(const int *host, int n, int hosts)
{
    for (int r = 0; r < n; r++)
        n_with[r] = beat_partners(host, n, r, with[r]);
    for (int r = 0; r < n; r++) {
        assert_int_equal(n_with[r] > 0, hosts > 1);
        for (int i = 0; i < n_with[r]; i++) {
            assert_true(watches(with[r][i], r));
            assert_int_not_equal(host[with[r][i]], host[r]);
            for (int j = 0; j < i; j++)
                assert_int_not_equal(with[r][i], with[r][j]);
        }
    }
    for (int a = 0; a < n; a++) {
        int watched = 0;
        for (int b = 0; b < n; b++) {
            int first = 1;
            for (int s = 0; s < b; s++)
                first &= host[s] != host[b];
            watched += first && host_watches(host, n, host[a], host[b]);
        }
        int log2 = 0;
        while (1 << log2 < hosts)
            log2++;
        assert_true(watched <= 2 * log2);
        if (hosts <= 5)
            assert_int_equal(watched, hosts - 1);
    }
}

static void test_even(void **state)
{
    (void)state;
    int host[MOST];
    for (int hosts = 1; hosts <= 64; hosts++)
        for (int each = 1; each <= 4; each++) {
            for (int r = 0; r < hosts * each; r++)
                host[r] = r / each * each; /* named by the lowest rank, as mpi.c does */
            check(host, hosts * each, hosts);
        }
}

static void test_round_robin(void **state)
{
    (void)state;
    int host[MOST];
    for (int hosts = 1; hosts <= 12; hosts++)
        for (int n = hosts; n <= 40; n++) {
            for (int r = 0; r < n; r++)
                host[r] = r % hosts;
            check(host, n, hosts);
        }
}

static void test_uneven(void **state)
{
    (void)state;
    srand(1);
    int host[MOST], ranks[16];
    for (int turn = 0; turn < 300; turn++) {
        int hosts = 1 + rand() % 16, n = 0;
        for (int h = 0; h < hosts; h++) {
            ranks[h] = 1 + rand() % 9;
            for (int i = 0, first = n; i < ranks[h]; i++)
                host[n++] = first;
        }
        check(host, n, hosts);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    int host[64], ret[64];
    for (int r = 0; r < 64; r++)
        host[r] = r;
    assert_int_equal(beat_partners(host, 64, 0, ret), 11); /* 1 2 4 8 16 32, 63 62 60 56 48 */
    const int three[] = {0, 0, 0, 3};                      /* one rank watches all three of the other host */
    assert_int_equal(beat_partners(three, 4, 3, ret), 3);
    assert_int_equal(beat_partners(three, 4, 1, ret), 1);
    assert_int_equal(ret[0], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_even), cmocka_unit_test(test_round_robin),
                                       cmocka_unit_test(test_uneven), cmocka_unit_test(test_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
