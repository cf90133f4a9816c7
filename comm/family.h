/* family.h: what a group and all groups split from it share: the first fault. (Private to comm/.)
 *
 * Groups of a family fail together: when a rank is lost in one of them, whoever waits in another may be
 * waiting for a rank that will never come. The first fault wins and stays; it is one sentence that names the
 * rank. Where the world is shared memory, the sentence lies there and everyone sees it; where it is not, each
 * process holds its own copy, and `poll` and `tell` carry it.
 *
 * Each rank has one struct family, referenced by each of its comms; the last one to close frees it.
 */
#ifndef YOKE_COMM_FAMILY_H
#define YOKE_COMM_FAMILY_H

#include <stdatomic.h>
#include <stdint.h>
#include "base/err.h"

enum { FAULT_NONE, FAULT_WRITING, FAULT_SET };

struct fault { /* zeroed: none. Lies in memory that several processes may map. */
    _Atomic uint32_t state;
    char why[508];
};

/* Returns 1, or 0 if a fault was there before: the first one stays. */
int fault_set(struct fault *f, const char *why);

struct family {
    _Atomic int refs;
    struct fault *fault;
    _Atomic int far;                /* the fault is that a host, or the link to it, is lost */
    void (*poll)(struct family *f); /* looks for news from elsewhere; may be NULL */
    void (*tell)(struct family *f, const char *why); /* spreads a fault found here; may be NULL */
    void (*gone)(struct family *f);                  /* frees, at the last reference */
};

struct family *family_ref(struct family *f);
void family_unref(struct family *f);
/* Records and spreads a fault, unless there is one already. */
void family_fault(struct family *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* 0, or ERR_RANK_LOST with the sentence. Costs one load while all is well. */
int family_check(struct family *f, struct err *e);

#endif
