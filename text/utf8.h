/* utf8.h: walking UTF-8 that is known to be well-formed, and making it so. */
#ifndef YOKE_TEXT_UTF8_H
#define YOKE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

/* The code point at s (well-formed; at least one byte); *ret_n is its length in bytes. */
static inline uint32_t utf8_get(const char *s, size_t *ret_n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *ret_n = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *ret_n = 2;
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *ret_n = 3;
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *ret_n = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

/* Where the character that ends at `end` starts; end > 0, s well-formed. */
static inline size_t utf8_before(const char *s, size_t end)
{
    do
        end--;
    while (((unsigned char)s[end] & 0xC0) == 0x80);
    return end;
}

/* Writes a code point (a scalar value), returns its length. */
static inline size_t utf8_put(uint32_t c, char *d)
{
    if (c < 0x80) {
        d[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        d[0] = (char)(0xC0 | c >> 6);
        d[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        d[0] = (char)(0xE0 | c >> 12);
        d[1] = (char)(0x80 | (c >> 6 & 63));
        d[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    d[0] = (char)(0xF0 | c >> 18);
    d[1] = (char)(0x80 | (c >> 12 & 63));
    d[2] = (char)(0x80 | (c >> 6 & 63));
    d[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* What stands at s[0..n): n > 0. Returns the length of a whole character and sets *ret_state to 1; or of a
 * maximal ill-formed part and 0; or n and -1 where the bytes are the beginning of a character and more are
 * needed to say. */
size_t utf8_look(const char *s, size_t n, int *ret_state);
bool utf8_valid(const char *s, size_t n);
/* Appends s with U+FFFD for each maximal ill-formed part (the Unicode standard's practice, Python's and
 * Rust's). */
void utf8_add_lossy(struct buf *out, const char *s, size_t n);

#endif
