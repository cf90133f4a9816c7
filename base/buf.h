/* buf.h: a string that grows. Text and raw bytes alike.
 *
 * Invariants: `s` is never NULL and always ends in a 0 byte at s[len] (not counted), so it can be printed at
 * any time, also when empty. Start with `struct buf b = BUF_INIT;`. `buf_detach` hands the bytes over to be
 * xfree()d.
 */
#ifndef YOKE_BASE_BUF_H
#define YOKE_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>

struct buf {
    char *s;
    size_t len, cap; /* cap == 0: s points to a shared empty string */
};

extern char buf_empty[];
#define BUF_INIT                                                                                             \
    {                                                                                                        \
        buf_empty, 0, 0                                                                                      \
    }

void buf_init(struct buf *b);
void buf_release(struct buf *b); /* frees, leaves it initialised */
static inline void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->cap)
        b->s[0] = 0;
}
void buf_reserve(struct buf *b, size_t extra);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vaddf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void buf_add_utf8(struct buf *b, unsigned codepoint); /* surrogates and > 10FFFF become U+FFFD */
void buf_remove(struct buf *b, size_t at, size_t n);
char *buf_detach(struct buf *b);

#endif
