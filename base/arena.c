#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

struct arena {
    struct chunk *head;
    size_t bytes;
};

struct arena *arena_new(void)
{
    struct arena *a;
    XNEW(a);
    return a;
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    for (struct chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        xfree(c);
    }
    xfree(a);
}

void *arena_alloc(struct arena *a, size_t size)
{
    size = ROUND_UP(size ? size : 1, 16);
    if (!a->head || a->head->size - a->head->used < size) {
        size_t n = MAX(size, (size_t)16384);
        struct chunk *c = xcalloc(1, sizeof(*c) + n);
        c->size = n;
        c->next = a->head;
        a->head = c;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += size;
    a->bytes += size;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    memcpy(p, s, n);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = arena_alloc(a, (size_t)(n < 0 ? 0 : n) + 1);
    if (n > 0)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}

size_t arena_bytes(const struct arena *a)
{
    return a->bytes;
}
