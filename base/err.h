/* err.h: how a function says what went wrong.
 *
 * A function that can fail returns int: 0, or a negative enum err_code, and fills a `struct err` that its
 * caller owns with one sentence for a person: what was found, what was expected, where, what would be legal.
 * Only main prints it. Callers may add context in front (`err_prefix`), never rewrite the
 * cause. Programming errors are assert()s, not errs.
 *
 *     if (n > LIMIT)
 *         return err_set(e, ERR_LIMIT, "%s: %zu tensors, but at most %d are read", path, n, LIMIT);
 */
#ifndef YOKE_BASE_ERR_H
#define YOKE_BASE_ERR_H

enum err_code {
    ERR_FAIL = -1,        /* anything without a better name */
    ERR_USAGE = -2,       /* the command line or the configuration is wrong */
    ERR_IO = -3,          /* the operating system refused */
    ERR_FORMAT = -4,      /* a file's bytes are not what they claim to be */
    ERR_UNSUPPORTED = -5, /* well-formed, but yoke does not do it */
    ERR_SPLIT = -6,       /* this model cannot be split that way, or the ranks disagree */
    ERR_MEMORY = -7,      /* it does not fit */
    ERR_LIMIT = -8,       /* a stated bound was exceeded (context length, steps, sizes) */
    ERR_RANK_LOST = -9,   /* another rank died or stopped answering */
    ERR_INTERRUPTED = -10 /* the user asked to stop */
};

struct err {
    int code;       /* 0, or an enum err_code */
    char msg[4096]; /* one sentence (lists may make it long); always terminated */
};

/* Sets code and message and returns code. `e` may be NULL, then only the code is returned. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the message already there; returns the code that is there. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As err_set with ERR_IO, ending in strerror(errno). */
int err_errno(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Where the lower layers put what deserves a warning but stops nothing (an unknown key, a slow path). Whoever
 * owns the sink prints it, once. `sink` may be NULL: then the warning is dropped. */
struct warn_sink {
    void (*warn)(struct warn_sink *sink, const char *sentence);
};
void warn_to(struct warn_sink *sink, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
