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

void family_fault(struct family *f, const char *fmt, ...)
{
    uint32_t none = FAULT_NONE;
    if (!atomic_compare_exchange_strong(&f->fault->state, &none, FAULT_WRITING))
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->fault->why, sizeof(f->fault->why), fmt, ap);
    va_end(ap);
    atomic_store(&f->fault->state, FAULT_SET);
    if (f->tell)
        f->tell(f, f->fault->why);
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
