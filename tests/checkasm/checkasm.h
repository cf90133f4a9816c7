/* checkasm.h: what the check_*.c files use to prove that each faster kernel has the bits of the portable C
 * one, and to time them.
 *
 * The program initialises the table of kernels for one CPU level after the other. A check function walks
 * through its family's slots; for each it asks check_slot(), which says yes when this level put a new
 * function there (one that neither C nor a level before it had) and the user wants it. Then the check calls
 * both on the same data, in memory from guarded(), and compares. Random numbers are a function of --seed and
 * the slot's name, so that a failure can be repeated alone.
 *
 *     if (check_slot(c, FN(c->c.rows.add), FN(c->k.rows.add), "rows.add")) {
 *         for (int n = 1; n <= 130 && check_ok(c); n++) {
 *             float *a = guarded(c, sizeof(float) * n, 4), ...;
 *             c->c.rows.add(a, b, n, want);
 *             c->k.rows.add(a, b, n, got);
 *             same_floats(c, want, got, n, "n %d", n);
 *             guarded_end(c);
 *         }
 *         BENCH(c, 12.0 * n, "GB/s", "n 4096", c->k.rows.add(a, b, n, y));
 *     }
 *
 * For the C level itself check_slot() says yes only with --bench; the comparison is then C with C.
 */
#ifndef YOKE_TESTS_CHECKASM_H
#define YOKE_TESTS_CHECKASM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/cpu.h"
#include "kernels/kernels.h"

typedef void (*check_fn)(void); /* any kernel, for comparing addresses */
#define FN(f) ((check_fn)(f))

struct check_state; /* the program's own */

struct check {
    struct kernels c, k; /* the portable C table, and the table of the level under test */
    struct check_state *state;
};

/* True if slot `name` ("family.function") shall be checked at this level. It closes the slot before. */
bool check_slot(struct check *c, check_fn reference, check_fn fn, const char *name);
bool check_ok(const struct check *c); /* false once something was wrong with the open slot */
/* Marks the open slot as failed; the first message per slot is printed. */
void check_fail(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Memory for one argument, with canaries on both sides and an unreadable page behind. align (a power of two)
 * is what the kernel may count on. Half of the time the last byte is, as far as alignment allows, the last
 * readable one; otherwise the place is random. Contents are random bytes. */
void *guarded(struct check *c, size_t bytes, size_t align);
/* Ends the use of all guarded memory since the last call: looks at the canaries, then unmaps it. */
void guarded_end(struct check *c);

/* Bits must be equal, but any NaN equals any NaN. The text says what was special about this case (sizes). */
void same_floats(struct check *c, const float *want, const float *got, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void same_bytes(struct check *c, const void *want, const void *got, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

uint64_t random_bits(struct check *c);
int32_t random_int(struct check *c, int32_t lo, int32_t hi); /* both included */
enum random_floats {
    RANDOM_PLAIN,  /* about normal, variance 1 */
    RANDOM_WIDE,   /* magnitudes from 2^-40 to 2^40, zeros of both signs */
    RANDOM_FINITE, /* any finite bit pattern: subnormal, huge */
    RANDOM_ANY,    /* any bit pattern, one in eight infinite or NaN */
    RANDOM_KINDS
};
void random_floats(struct check *c, enum random_floats kind, float *x, size_t n);

/* Times `call` if the user wants benches: least time of several repeats, each of enough calls. `work` is what
 * one call does, in operations or bytes; `unit` is "GFLOP/s" or "GB/s" (1e9 of work a second). `what` says
 * the sizes. */
#define BENCH(c, work, unit, what, call)                                                                     \
    do {                                                                                                     \
        struct bench bench_ = {0};                                                                           \
        while (bench_next((c), &bench_, (what), (work), (unit)))                                             \
            for (long bench_i_ = 0; bench_i_ < bench_.calls; bench_i_++)                                     \
                call;                                                                                        \
    } while (0)
struct bench {
    long calls;
    int repeat;
    int64_t start_ns;
    double best_ns;
};
bool bench_next(struct check *c, struct bench *b, const char *what, double work, const char *unit);
bool bench_wanted(const struct check *c);

void check_rows(struct check *c);
void check_attention(struct check *c);
void check_matmul(struct check *c);

#endif
