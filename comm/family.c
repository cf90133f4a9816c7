#include "comm/family.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct family *family_ref(struct family *f)
{
    atomic_fetch_add(&f->refs, 1);
    return f;
}

void family_unref(struct family *f)
{
    if (f && atomic_fetch_sub(&f->refs, 1) == 1)
        f->gone(f);
}

int fault_set(struct fault *f, const char *why)
{
    uint32_t none = FAULT_NONE;
    if (!atomic_compare_exchange_strong(&f->state, &none, FAULT_WRITING))
        return 0;
    snprintf(f->why, sizeof(f->why), "%.*s", (int)sizeof(f->why) - 1, why);
    atomic_store(&f->state, FAULT_SET);
    return 1;
}

void family_fault(struct family *f, const char *fmt, ...)
{
    char why[sizeof(f->fault->why)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    if (fault_set(f->fault, why) && f->tell)
        f->tell(f, why);
}

int family_check(struct family *f, struct err *e)
{
    uint32_t state = atomic_load_explicit(&f->fault->state, memory_order_acquire);
    if (state == FAULT_NONE)
        return 0;
    /* The writer needs a microsecond, unless it was killed just there. */
    for (int ms = 0; state == FAULT_WRITING && ms < 100; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        state = atomic_load_explicit(&f->fault->state, memory_order_acquire);
    }
    if (state == FAULT_WRITING)
        return err_set(e, ERR_RANK_LOST, "a rank died while it reported that another was lost");
    return err_set(e, ERR_RANK_LOST, "%s", f->fault->why);
}
