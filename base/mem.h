/* mem.h: where memory comes from.
 *
 * Small things (names, tables, structs): x*() functions, which end the process with a message when the system
 * has no memory left; nobody checks them. Sizes that come from a file must be range-checked before they get
 * here. Large things (weights, KV pages, activations): big_alloc(), whole zeroed pages from the system,
 * checked, reported.
 *
 * The guard: between alloc_guard_begin() and alloc_guard_end() on a thread, every x*() and big_alloc() call
 * on that thread is a bug and aborts (debug builds). The token loop runs under it (ARCHITECTURE.md, invariant
 * 2). No code outside base/ calls malloc directly; `make check` looks.
 */
#ifndef YOKE_BASE_MEM_H
#define YOKE_BASE_MEM_H

#include <stddef.h>
#include "base/err.h"

void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size); /* zeroed; ends the process if n * size overflows */
void *xrealloc(void *p, size_t size);
void *xreallocarray(void *p, size_t n, size_t size);
void *xaligned(size_t align, size_t size); /* zeroed; freed with xfree */
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void xfree(void *p); /* NULL is fine */

#define XNEW(ptr)      ((ptr) = xcalloc(1, sizeof(*(ptr))))
#define XNEW_N(ptr, n) ((ptr) = xcalloc((n), sizeof(*(ptr))))
/* Makes room for one more element of a growable array: `XGROW(v, n_v, cap_v)` before `v[n_v++] = x`. */
#define XGROW(ptr, n, cap)                                                                                   \
    do {                                                                                                     \
        if ((size_t)(n) == (size_t)(cap)) {                                                                  \
            (cap) = (cap) ? 2 * (cap) : 8;                                                                   \
            (ptr) = xreallocarray((ptr), (size_t)(cap), sizeof(*(ptr)));                                     \
        }                                                                                                    \
    } while (0)

/* Zeroed pages, 2 MiB-aligned when large, transparent huge pages asked for. NULL on failure (e says how much
 * was asked and for what). Free with the same size. */
void *big_alloc(size_t size, const char *what, struct err *e);
void big_free(void *p, size_t size);
/* Gives the system back what the C library keeps of memory already freed: after a phase that used much. */
void mem_trim(void);

void alloc_guard_begin(void);
void alloc_guard_end(void);

/* Checked arithmetic for sizes that come from outside: false on overflow, *ret untouched. */
static inline int size_mul(size_t a, size_t b, size_t *ret)
{
    return !__builtin_mul_overflow(a, b, ret);
}
static inline int size_add(size_t a, size_t b, size_t *ret)
{
    return !__builtin_add_overflow(a, b, ret);
}

#define ARRAY_LEN(a)    (sizeof(a) / sizeof((a)[0]))
#define ROUND_UP(x, to) (((x) + (to)-1) / (to) * (to))
#define MIN(a, b)       ((a) < (b) ? (a) : (b))
#define MAX(a, b)       ((a) > (b) ? (a) : (b))

#endif
