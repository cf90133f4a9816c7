#include "base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static _Thread_local int guard_depth;

void alloc_guard_begin(void)
{
    guard_depth++;
}

void alloc_guard_end(void)
{
    guard_depth--;
}

static void guard_check(size_t size)
{
#ifdef YOKE_DEBUG
    if (guard_depth > 0) {
        fprintf(stderr, "yoke: bug: %zu bytes allocated inside the token loop\n", size);
        abort();
    }
#else
    (void)size;
#endif
}

static void *must(void *p, size_t size)
{
    if (!p && size) {
        fprintf(stderr, "yoke: out of memory (%zu bytes asked for)\n", size);
        exit(7);
    }
    return p;
}

void *xmalloc(size_t size)
{
    guard_check(size);
    return must(malloc(size ? size : 1), size);
}

void *xcalloc(size_t n, size_t size)
{
    guard_check(n * size);
    return must(calloc(n ? n : 1, size ? size : 1), SIZE_MAX);
}

void *xrealloc(void *p, size_t size)
{
    guard_check(size);
    return must(realloc(p, size ? size : 1), size);
}

void *xreallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!size_mul(n, size, &bytes))
        must(NULL, SIZE_MAX);
    return xrealloc(p, bytes);
}

void *xaligned(size_t align, size_t size)
{
    guard_check(size);
    size_t rounded = ROUND_UP(size ? size : 1, align);
    void *p = must(aligned_alloc(align, rounded), rounded);
    memset(p, 0, rounded);
    return p;
}

char *xstrdup(const char *s)
{
    return xstrndup(s, strlen(s));
}

char *xstrndup(const char *s, size_t n)
{
    char *p = xmalloc(n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0)
        must(NULL, 1);
    return s;
}

void xfree(void *p)
{
    free(p);
}

void *big_alloc(size_t size, const char *what, struct err *e)
{
    guard_check(size);
    const size_t huge = (size_t)2 << 20;
    size_t bytes = ROUND_UP(size ? size : 1, 4096);
    size_t slack = bytes >= huge ? huge : 0;
    if (bytes < size || bytes + slack < bytes) {
        err_set(e, ERR_MEMORY, "%s: %zu bytes asked for, more than addresses can count", what, size);
        return NULL;
    }
    uint8_t *p = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        err_errno(e, "%s: %.2f GiB of memory", what, (double)size / (1 << 30));
        return NULL;
    }
    if (slack) { /* give back what lies outside the aligned range */
        uint8_t *q = (uint8_t *)ROUND_UP((uintptr_t)p, huge);
        if (q > p)
            munmap(p, (size_t)(q - p));
        if (p + slack > q)
            munmap(q + bytes, (size_t)(p + slack - q));
        p = q;
        madvise(p, bytes, MADV_HUGEPAGE);
    }
    return p;
}

void big_free(void *p, size_t size)
{
    if (p)
        munmap(p, ROUND_UP(size ? size : 1, 4096));
}

void mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
