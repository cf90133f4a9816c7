/* What the tests of cli/ share: settings from a command line and YAML text, and a sink that keeps warnings.
 */
#ifndef YOKE_TESTS_CLI_HARNESS_H
#define YOKE_TESTS_CLI_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/settings.h"

struct kept {
    struct warn_sink sink;
    struct buf text; /* one sentence a line */
    int n;
};

static inline void keep_warning(struct warn_sink *sink, const char *sentence)
{
    struct kept *k = (struct kept *)sink;
    buf_addf(&k->text, "%s\n", sentence);
    k->n++;
}

/* One parse: what came in, what came out. */
struct trial {
    struct settings s;
    struct err e;
    struct kept w;
    int err;
    char file[64]; /* the YAML as a file; "" if there is none */
};

/* `line` is split at spaces; 'single quotes' hold words together. With yaml, "--config FILE" is put behind
 * the command. In error and warning texts the file is called FILE. */
static inline void trial_begin(struct trial *t, const char *line, const char *yaml)
{
    static char words[4096];
    const char *argv[64];
    int argc = 0;
    memset(t, 0, sizeof(*t));
    t->w.sink.warn = keep_warning;
    buf_init(&t->w.text);
    assert_true(strlen(line) < sizeof(words));
    strcpy(words, line);
    for (char *c = words; *c;) {
        while (*c == ' ')
            *c++ = 0;
        if (!*c)
            break;
        assert_true(argc < 60);
        char end = *c == '\'' ? *c++ : ' ';
        argv[argc++] = c;
        while (*c && *c != end)
            c++;
        if (*c)
            *c++ = 0;
        if (argc == 1 && yaml) {
            strcpy(t->file, "/tmp/yoke_test_XXXXXX");
            int fd = mkstemp(t->file);
            assert_true(fd >= 0);
            assert_int_equal(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
            close(fd);
            argv[argc++] = "--config";
            argv[argc++] = t->file;
        }
    }
    t->err = settings_parse(argc, argv, &t->s, &t->w.sink, &t->e);
    char *texts[] = {t->e.msg, t->w.text.s};
    for (size_t i = 0; i < ARRAY_LEN(texts) && *t->file; i++)
        for (char *at; (at = strstr(texts[i], t->file));) {
            memcpy(at, "FILE", 4);
            memmove(at + 4, at + strlen(t->file), strlen(at + strlen(t->file)) + 1);
        }
}

static inline void trial_end(struct trial *t)
{
    if (!t->err)
        settings_release(&t->s);
    buf_release(&t->w.text);
    if (*t->file)
        unlink(t->file);
}

/* The settings must be accepted without a warning. */
#define ACCEPT(t, line, yaml)                                                                                \
    do {                                                                                                     \
        trial_begin((t), (line), (yaml));                                                                    \
        if ((t)->err)                                                                                        \
            fail_msg("%s: %s", (line), (t)->e.msg);                                                          \
        assert_string_equal((t)->w.text.s, "");                                                              \
    } while (0)

static inline void refuse(const char *line, const char *yaml, const char *sentence)
{
    struct trial t;
    trial_begin(&t, line, yaml);
    if (!t.err)
        fail_msg("accepted: %s", line);
    assert_string_equal(t.e.msg, sentence);
    assert_int_equal(t.err, ERR_USAGE);
    trial_end(&t);
}

#endif
