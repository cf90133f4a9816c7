/* exercise.h: what any group must do, whatever it is made of. Ranks run it side by side; a failed check ends
 * the process (cmocka's asserts do not work outside its own thread). */
#ifndef YOKE_TESTS_COMM_EXERCISE_H
#define YOKE_TESTS_COMM_EXERCISE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "comm/comm.h"

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #x);                            \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* Same, for a call that returns a code and fills e. */
#define CHECK_OK(call, e)                                                                                    \
    do {                                                                                                     \
        int rc_ = (call);                                                                                    \
        if (rc_) {                                                                                           \
            fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, rc_, (e)->msg);                \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

uint64_t random_next(uint64_t *state);

/* Runs `rounds` operations of random kinds and sizes, the same on every rank (same seed), up to about
 * most_bytes a message; checks every result to the bit against kernels/sum.h, and that nothing allocates. */
void exercise(struct comm *c, uint64_t seed, int rounds, size_t most_bytes);

/* Random splits, sub-groups used side by side with the whole, then closed. */
void exercise_split(struct comm *c, uint64_t seed, int rounds, size_t most_bytes);

#endif
