#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        e->code = code;
        vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
        va_end(ap);
    }
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_FAIL;
    char cause[sizeof(e->msg)];
    memcpy(cause, e->msg, sizeof(cause));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(e->msg))
        snprintf(e->msg + n, sizeof(e->msg) - (size_t)n, ": %s", cause);
    return e->code;
}

int err_errno(struct err *e, const char *fmt, ...)
{
    int saved = errno;
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        e->code = ERR_IO;
        int n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof(e->msg))
            snprintf(e->msg + n, sizeof(e->msg) - (size_t)n, ": %s", strerror(saved));
    }
    return ERR_IO;
}

void warn_to(struct warn_sink *sink, const char *fmt, ...)
{
    if (!sink)
        return;
    char s[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s, sizeof(s), fmt, ap);
    va_end(ap);
    sink->warn(sink, s);
}
