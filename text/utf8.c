#include "text/utf8.h"

size_t utf8_look(const char *s, size_t n, int *ret_state)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char c = p[0], lo = 0x80, hi = 0xBF; /* what the second byte may be */
    size_t len;
    if (c < 0x80) {
        *ret_state = 1;
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF) {
        len = 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
        len = 3;
        if (c == 0xE0)
            lo = 0xA0; /* no overlong forms */
        else if (c == 0xED)
            hi = 0x9F; /* no surrogates */
    } else if (c >= 0xF0 && c <= 0xF4) {
        len = 4;
        if (c == 0xF0)
            lo = 0x90;
        else if (c == 0xF4)
            hi = 0x8F;
    } else {
        *ret_state = 0;
        return 1;
    }
    for (size_t i = 1; i < len; i++) {
        if (i == n) {
            *ret_state = -1;
            return n;
        }
        if (p[i] < lo || p[i] > hi) {
            *ret_state = 0;
            return i;
        }
        lo = 0x80;
        hi = 0xBF;
    }
    *ret_state = 1;
    return len;
}

bool utf8_valid(const char *s, size_t n)
{
    int state;
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        i += utf8_look(s + i, n - i, &state);
        if (state != 1)
            return false;
    }
    return true;
}

void utf8_add_lossy(struct buf *out, const char *s, size_t n)
{
    int state;
    size_t from = 0, i = 0;
    while (i < n) {
        size_t len = utf8_look(s + i, n - i, &state);
        if (state != 1) {
            buf_add(out, s + from, i - from);
            buf_add(out, "\xEF\xBF\xBD", 3);
            from = i + len;
        }
        i += len;
    }
    buf_add(out, s + from, n - from);
}
