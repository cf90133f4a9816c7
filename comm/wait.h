/* wait.h: how long a waiting rank keeps its core. (Private to comm/.)
 *
 * Three phases: spin (the answer is a cache-line transfer away and the core is ours), yield (let whoever
 * shares this core run), sleep. The caller does the sleeping, because how to be woken depends on the
 * transport.
 *
 * Spinning is short in any case: yielding to nobody costs a fraction of a microsecond, while spinning on a
 * core that somebody else wants, of this program or not, costs all of the spin, each time (with 50 us of it,
 * two ranks beside an unrelated busy process took 100 us for an all-reduce of 0.6 us). Where ranks times
 * threads exceed the cores, whoever is waited for probably waits for a core itself: then sleep comes soon.
 */
#ifndef YOKE_COMM_WAIT_H
#define YOKE_COMM_WAIT_H

#include <sched.h>
#include <stdint.h>
#include "base/clock.h"

struct wait {
    int64_t since; /* when the first doubt arose; 0: has not looked at the clock yet */
    int64_t now;
    int crowded; /* more runnable threads than cores */
    int turns;
};

static inline void wait_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` does nothing on most cores; isb takes some 20 ns */
#endif
}

/* One turn: returns 0 after having spent a moment, or 1 if it is time to sleep. */
static inline int wait_turn(struct wait *w)
{
    const int64_t spin_ns = w->crowded ? 500 : 3000, yield_ns = w->crowded ? 20000 : 1000000;
    if (++w->turns & 15) { /* a look at the clock costs as much as several pauses */
        wait_relax();
        return 0;
    }
    w->now = clock_ns();
    if (!w->since)
        w->since = w->now;
    int64_t spent = w->now - w->since;
    if (spent >= yield_ns) {
        w->turns--; /* from here on every turn is a sleep, and looks at the clock */
        return 1;
    }
    if (spent >= spin_ns) {
        w->turns--;
        sched_yield();
    }
    return 0;
}

#endif
