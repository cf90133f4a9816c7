/* The program: finds the subcommand, reads its settings, prints what went wrong. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/launch.h"
#include "cli/settings.h"
#include "cli/suggest.h"
#include "comm/comm.h"

/* Ranks see the same things: rank 0 speaks for all, unless each has a log of its own. */
static bool others_speak(void)
{
    return comm_mpi_rank() && !getenv(LAUNCH_SUPERVISED);
}

/* Warnings go straight to standard error, each sentence once. */
struct printer {
    struct warn_sink sink;
    char **seen;
    size_t n, cap;
};

static void print_warning(struct warn_sink *sink, const char *sentence)
{
    struct printer *p = (struct printer *)sink;
    if (others_speak())
        return;
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->seen[i], sentence))
            return;
    XGROW(p->seen, p->n, p->cap);
    p->seen[p->n++] = xstrdup(sentence);
    fprintf(stderr, "yoke: warning: %s\n", sentence);
}

struct entry {
    const char *name;
    int (*run)(struct settings *s, struct warn_sink *warn, struct err *e);
    bool ranks; /* all processes that an MPI launcher started take part */
};

static const struct entry entries[] = {
    {"run", command_run, true},
    {"plan", command_plan, false},
    {"bench", command_bench, false},
    {"logits", command_logits, true},
    {"launch", command_launch, false},
    {"tokenize", command_tokenize, false},
    {"template", command_template, false},
    {"shard", command_shard, false},
};

/* What goes wrong on one rank mostly does on all, and one sentence is enough: the others wait, and if rank 0
 * ends with the same error, the launcher ends them meanwhile. What only they see, they say. */
static int fail(int code, const char *msg)
{
    if (others_speak()) {
        nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL); /* mpirun takes one second */
        fprintf(stderr, "yoke: error: as seen by rank %d: %s\n", comm_mpi_rank(), msg);
    } else if (*msg) {
        fprintf(stderr, "yoke: error: %s\n", msg);
    }
    if (code == ERR_RANK_LOST && getenv(LAUNCH_SUPERVISED)) {
        kill(getppid(), LAUNCH_LOST);
        sleep(1); /* our end makes mpirun end all; let the report of who was first get out before */
    }
    return exit_code_of(code);
}

static int print(struct buf *b)
{
    if (!comm_mpi_rank())
        fwrite(b->s, 1, b->len, stdout);
    buf_release(b);
    return 0;
}

static int help(int argc, char **argv)
{
    struct buf b = BUF_INIT;
    struct err e = {0};
    int err = 0;
    if (argc < 3)
        help_overview(&b);
    for (int i = 2; i < argc && !err; i++) {
        if (i > 2)
            buf_adds(&b, "\n");
        err = help_topic(argv[i], &b, &e);
    }
    print(&b);
    return err ? fail(err, e.msg) : 0;
}

static int run_command(const struct entry *entry, int argc, char **argv)
{
    struct printer p = {.sink = {print_warning}};
    struct settings s = {0};
    struct err e = {0};
    int err = settings_parse(argc, (const char *const *)argv, &s, &p.sink, &e);
    bool idle = comm_mpi_rank() && !entry->ranks; /* rank 0 does it alone */
    if (!err && s.help) {
        struct buf b = BUF_INIT;
        help_command(s.command, &b);
        print(&b);
    } else if (!err && !idle) {
        err = entry->run(&s, &p.sink, &e);
    }
    settings_release(&s);
    for (size_t i = 0; i < p.n; i++)
        xfree(p.seen[i]);
    xfree(p.seen);
    return err ? fail(err, e.msg) : 0;
}

static int unknown_command(const char *word)
{
    static const char *const others[] = {"options", "version", "help"};
    struct suggest s;
    struct err e;
    suggest_init(&s, word, strlen(word));
    for (size_t i = 0; i < ARRAY_LEN(entries); i++)
        suggest_try(&s, entries[i].name, strlen(entries[i].name));
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        suggest_try(&s, others[i], strlen(others[i]));
    if (*word == '-')
        err_set(&e, ERR_USAGE, "a command comes first: yoke run %s ...", word);
    else if (s.best)
        err_set(&e, ERR_USAGE, "unknown command \"%s\"; did you mean %s?", word, s.best);
    else
        err_set(&e, ERR_USAGE, "unknown command \"%s\"; 'yoke --help' lists them", word);
    return fail(ERR_USAGE, e.msg);
}

static int dispatch(int argc, char **argv)
{
    struct buf b = BUF_INIT;
    const char *word = argc > 1 ? argv[1] : "";
    if (!*word) {
        help_overview(&b);
        fwrite(b.s, 1, b.len, stderr);
        buf_release(&b);
        return exit_code_of(ERR_USAGE);
    }
    if (!strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h"))
        return help(argc, argv);
    if (!strcmp(word, "version") || !strcmp(word, "--version") || !strcmp(word, "-V")) {
        buf_adds(&b, "yoke " YOKE_VERSION "\n");
        return print(&b);
    }
    if (!strcmp(word, "options")) {
        help_markdown(&b);
        return print(&b);
    }
    if (!strcmp(word, "launch-rank"))
        return launch_rank(argc - 1, argv + 1);
    for (size_t i = 0; i < ARRAY_LEN(entries); i++)
        if (!strcmp(entries[i].name, word))
            return run_command(&entries[i], argc - 1, argv + 1);
    return unknown_command(word);
}

/* What cannot be written (a full disk) must not look like success. */
int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    if (fflush(stdout) || ferror(stdout)) {
        struct err e;
        err_errno(&e, "standard output");
        if (!code)
            code = fail(ERR_IO, e.msg);
    }
    return code;
}
