/* clock.h: time for measuring. */
#ifndef YOKE_BASE_CLOCK_H
#define YOKE_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void); /* monotonic */
static inline double clock_s(void)
{
    return (double)clock_ns() * 1e-9;
}

#endif
