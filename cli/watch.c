/* mpirun, from start to end: what it and rank 0 say, Ctrl-C, which rank failed first. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/launch.h"

enum {
    POLITE_MS = 3000, /* from Ctrl-C to taking the ranks down, if rank 0 has not ended the run */
    LAST_MS = 6000,   /* from there to killing mpirun */
    /* The same, once a rank has failed, or a host is lost. mpirun ends by itself 3 s after a rank has; but it
     * may wait for a host that is gone until TCP gives up. A lost host is noticed after at most 6 s (mpirun's
     * keepalives), and all is to be over within 10. */
    FAILED_MS = 5000,
    LOST_MS = 2750,
    KILL_MS = 750
};

struct watch {
    const struct watch_options *opt;
    pid_t mpirun;
    int err, signals, in; /* mpirun's standard error; ours; its standard input, -1: none (any more) */
    bool ended;
    int status;
    int interrupts, ended_by; /* Ctrl-C; the signal that told us to end */
    int64_t failed_at;        /* when a report, or mpirun, first said that the job has failed; 0: not yet */
    bool own_failure;         /* a report says more than that another rank is lost */
    int64_t next_step_at;     /* clock_ns(); 0: none */
    bool terminated;          /* mpirun was told to end */
    /* input on its way */
    char input[4096];
    size_t n_input, sent;
    /* the stream */
    struct buf line;     /* a report, or a line that may open a frame of mpirun's, so far */
    bool in_report;      /* line is a report */
    bool mid_line;       /* part of this line has been shown */
    bool in_frame;       /* between two of mpirun's dashed lines */
    struct buf frame;    /* such a message so far */
    struct buf held;     /* those that a rank's report would say better */
    char lost_host[256]; /* whose daemon mpirun has lost */
    struct rank_end *ends;
    size_t n_ends, cap_ends;
};

/* --- what comes from mpirun's standard error --- */

/* Nothing once the ranks are taken down, by us: what is said then is noise. */
static void show(const struct watch *w, const char *p, size_t n)
{
    if (!w->terminated)
        fwrite(p, 1, n, stderr);
}

static void step_in(struct watch *w, int ms)
{
    w->next_step_at = clock_ns() + ms * (int64_t)1000000;
}

/* From the first bad news on mpirun has little time left. */
static void expect_end(struct watch *w)
{
    if (w->terminated)
        return;
    if (!w->failed_at)
        w->failed_at = clock_ns();
    int ms = *w->lost_host || !w->own_failure ? LOST_MS : FAILED_MS;
    w->next_step_at = w->failed_at + ms * (int64_t)1000000;
}

/* mpirun's words for what a report says with more to it. */
static bool says_little(const char *frame)
{
    static const char *const phrases[] = {"process returned\na non-zero exit code",
                                          "exited with non-zero status",
                                          "mpirun noticed that process rank",
                                          "MPI_ABORT was invoked",
                                          "lost communication with a remote daemon",
                                          "An MPI communication peer process has unexpectedly disconnected",
                                          "has exited due to process rank",
                                          "mpirun has exited due to",
                                          "Primary job  terminated normally"};
    for (size_t i = 0; i < ARRAY_LEN(phrases); i++)
        if (strstr(frame, phrases[i]))
            return true;
    return false;
}

/* How mpirun announces the signal that it passes on for us. */
static const char forwarding[] = "mpirun: Forwarding signal ";

/* Not for the user. The second: a race with the ssh that it has just started, which does not matter. */
static bool is_noise(const char *line)
{
    return !strncmp(line, forwarding, sizeof(forwarding) - 1) ||
           (*line == '[' && strstr(line, "] plm:rsh: Warning: setpgid("));
}

/* Whether a line, of which this is the beginning, may turn out not to be for the user. */
static bool may_be_mpiruns(const struct buf *line)
{
    size_t n = strspn(line->s, "-");
    return n == line->len || (n >= 70 && line->s[n] == '\n') || *line->s == '[' ||
           !strncmp(line->s, forwarding, MIN(line->len, sizeof(forwarding) - 1));
}

static bool is_dashes(const struct buf *line)
{
    size_t n = strspn(line->s, "-");
    return n >= 70 && line->s[n] == '\n';
}

/* "ORTE has lost communication with a remote daemon. [...] Remote daemon: [[5,0],2] on node n3" */
static void note_lost_host(struct watch *w)
{
    const char *name = strstr(w->frame.s, "lost communication");
    if (!name || !(name = strstr(name, "Remote daemon")) || !(name = strstr(name, " on node ")))
        return;
    name += strlen(" on node ");
    if (!*w->lost_host)
        snprintf(w->lost_host, sizeof(w->lost_host), "%.*s", (int)strcspn(name, " \n"), name);
    expect_end(w);
}

static void end_frame(struct watch *w)
{
    w->in_frame = false;
    note_lost_host(w);
    if (says_little(w->frame.s))
        buf_add(&w->held, w->frame.s, w->frame.len);
    else
        show(w, w->frame.s, w->frame.len);
    buf_clear(&w->frame);
}

static bool only_lost_another(const struct rank_end *x)
{
    return x->code == exit_code_of(ERR_RANK_LOST) ||
           x->code == -ERR_RANK_LOST; /* main's; comm's own (beat.c) */
}

static void end_line(struct watch *w)
{
    if (w->in_report) {
        struct rank_end x;
        w->line.s[w->line.len - 1] = 0;
        if (rank_end_read(w->line.s, &x)) {
            XGROW(w->ends, w->n_ends, w->cap_ends);
            w->ends[w->n_ends++] = x;
            w->own_failure |= !only_lost_another(&x);
            expect_end(w);
        } else {
            buf_release(&x.lines);
        }
        w->in_report = false;
    } else if (w->in_frame || is_dashes(&w->line)) {
        bool edge = is_dashes(&w->line), second = edge && w->in_frame;
        w->in_frame = true;
        buf_add(&w->frame, w->line.s, w->line.len);
        if (second)
            end_frame(w);
    } else if (!is_noise(w->line.s)) {
        show(w, w->line.s, w->line.len);
    }
    buf_clear(&w->line);
}

/* Bytes go out as they come, but for lines that may turn out to be mpirun's dashes, and reports. */
static void take(struct watch *w, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (c == REPORT_MARK && !w->in_report) {
            show(w, w->line.s, w->line.len);
            buf_clear(&w->line);
            w->in_report = true;
            continue;
        }
        buf_addc(&w->line, c);
        if (c == '\n')
            end_line(w);
        else if (w->in_report || w->in_frame || (!w->mid_line && may_be_mpiruns(&w->line)))
            continue;
        else {
            show(w, w->line.s, w->line.len);
            buf_clear(&w->line);
        }
        w->mid_line = c != '\n';
    }
    fflush(stderr);
}

/* False at its end. */
static bool take_some(struct watch *w)
{
    char b[8192];
    ssize_t n = read(w->err, b, sizeof(b));
    if (n > 0)
        take(w, b, (size_t)n);
    return n > 0 || (n < 0 && errno == EINTR);
}

/* --- what goes to its standard input --- */

/* A launcher in the background must not read the terminal. */
static bool may_read_input(void)
{
    pid_t front = tcgetpgrp(STDIN_FILENO);
    return front < 0 || front == getpgrp();
}

static void close_input(struct watch *w)
{
    close(w->in);
    w->in = -1;
}

static void pass_input(struct watch *w, bool readable, bool writable)
{
    if (readable && may_read_input()) {
        ssize_t n = read(STDIN_FILENO, w->input, sizeof(w->input));
        if (n <= 0 && !(n < 0 && (errno == EINTR || errno == EAGAIN))) {
            close_input(w);
            return;
        }
        w->n_input = n > 0 ? (size_t)n : 0;
        w->sent = 0;
    } else if (writable) {
        ssize_t n = write(w->in, w->input + w->sent, w->n_input - w->sent);
        if (n > 0)
            w->sent += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            close_input(w); /* nobody reads any more */
        if (w->sent == w->n_input)
            w->n_input = w->sent = 0;
    }
}

/* --- signals --- */

static void terminate(struct watch *w)
{
    kill(w->mpirun, SIGTERM);
    w->terminated = true;
    step_in(w, w->failed_at ? KILL_MS : LAST_MS);
}

/* The first Ctrl-C goes to rank 0, which ends the run in good order (or, in a conversation, the answer); the
 * second one, or three seconds, take the ranks down. */
static void interrupt(struct watch *w)
{
    w->interrupts++;
    if (w->terminated)
        return;
    if (w->failed_at || (w->interrupts > 1 && (!w->opt->interactive || w->next_step_at))) {
        terminate(w);
    } else {
        kill(w->mpirun, SIGUSR1); /* passed on to the supervisors */
        step_in(w, POLITE_MS);
    }
}

static void take_signal(struct watch *w)
{
    struct signalfd_siginfo info;
    if (read(w->signals, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGCHLD)
        return;
    if (info.ssi_signo == SIGINT) {
        interrupt(w);
    } else {
        w->ended_by = (int)info.ssi_signo;
        if (!w->terminated)
            terminate(w);
    }
}

static void next_step(struct watch *w)
{
    if (!w->next_step_at || clock_ns() < w->next_step_at)
        return;
    w->next_step_at = 0;
    if (w->terminated)
        kill(w->mpirun, SIGKILL); /* the supervisors die with it */
    else if (w->failed_at || !w->opt->interactive)
        terminate(w);
}

/* --- mpirun --- */

/* In the child: a process group of its own, so that the terminal's Ctrl-C reaches only us. */
static void run_mpirun(const struct watch *w, int err, int in, pid_t parent, const sigset_t *mask)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    sigprocmask(SIG_SETMASK, mask, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(err, STDERR_FILENO);
    dup2(in, STDIN_FILENO);
    execv(w->opt->argv[0], w->opt->argv);
    fprintf(stderr, "yoke: cannot start %s: %s\n", w->opt->argv[0], strerror(errno));
    _exit(127);
}

static int start(struct watch *w, sigset_t *old, struct err *e)
{
    int err[2], in[2] = {-1, -1};
    sigset_t caught;
    sigemptyset(&caught);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGHUP);
    sigaddset(&caught, SIGQUIT);
    sigaddset(&caught, SIGCHLD);
    sigprocmask(SIG_BLOCK, &caught, old);
    signal(SIGPIPE, SIG_IGN);
    w->signals = signalfd(-1, &caught, SFD_CLOEXEC);
    if (w->signals < 0 || pipe2(err, O_CLOEXEC) || (w->opt->reads_stdin && pipe2(in, O_CLOEXEC)))
        return err_errno(e, "cannot watch mpirun");
    int from = w->opt->reads_stdin ? in[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_t me = getpid();
    w->err = err[0];
    w->in = in[1];
    w->mpirun = fork();
    if (w->mpirun < 0)
        return err_errno(e, "cannot start mpirun");
    if (w->mpirun == 0)
        run_mpirun(w, err[1], from, me, old);
    close(err[1]);
    close(from);
    if (w->in >= 0)
        fcntl(w->in, F_SETFL, O_NONBLOCK);
    return 0;
}

static void watch(struct watch *w)
{
    bool open = true;
    while (open || !w->ended) {
        bool read_in = w->in >= 0 && !w->n_input && may_read_input();
        struct pollfd p[] = {{w->signals, POLLIN, 0},
                             {open ? w->err : -1, POLLIN, 0},
                             {read_in ? STDIN_FILENO : -1, POLLIN, 0},
                             {w->in >= 0 && w->n_input ? w->in : -1, POLLOUT, 0}};
        int n = poll(p, ARRAY_LEN(p), w->ended || w->next_step_at ? 100 : 1000);
        if (n == 0 && w->ended)
            break; /* a process left behind holds the pipe */
        if (p[0].revents)
            take_signal(w);
        if (p[1].revents)
            open = take_some(w);
        if (p[2].revents || p[3].revents)
            pass_input(w, p[2].revents, p[3].revents);
        if (!w->ended && waitpid(w->mpirun, &w->status, WNOHANG) == w->mpirun)
            w->ended = true;
        if (!w->ended)
            next_step(w);
    }
    if (w->line.len && !w->in_report)
        show(w, w->line.s, w->line.len);
    if (w->in_frame)
        end_frame(w);
}

/* --- the end --- */

/* The first one that failed by itself: those that only lost another rank came after, whoever was heard
 * first. */
static const struct rank_end *culprit(const struct watch *w)
{
    const struct rank_end *x = w->n_ends ? &w->ends[0] : NULL;
    for (size_t i = 0; i < w->n_ends; i++)
        if (!only_lost_another(&w->ends[i])) {
            x = &w->ends[i];
            break;
        }
    for (size_t i = 0; i < w->n_ends; i++) /* where all said the same, rank 0 has said it for all */
        if (!w->ends[i].rank && w->ends[i].code == x->code && !strcmp(w->ends[i].lines.s, x->lines.s))
            return &w->ends[i];
    return x;
}

static void show_last_lines(const struct watch *w, const struct rank_end *x)
{
    if (x->rank == 0 || !x->lines.len)
        return; /* rank 0's have been shown */
    fprintf(stderr, "yoke: the last lines of rank %d on host %s (%s/rank_%d.log there):\n", x->rank, x->host,
            w->opt->log_dir, x->rank);
    for (const char *l = x->lines.s; *l;) {
        size_t n = strcspn(l, "\n");
        fprintf(stderr, "  | %.*s\n", (int)n, l);
        l += n + (l[n] == '\n');
    }
}

/* Who is lost: what the last of a rank's own lines says. NULL: it has none. */
static const char *last_sentence(const struct rank_end *x)
{
    static const char ours[] = "yoke: ", error[] = "error: ";
    const char *said = NULL;
    for (const char *l = x->lines.s; *l; l += strcspn(l, "\n"), l += *l == '\n')
        if (!strncmp(l, ours, strlen(ours)))
            said = l + strlen(ours);
    return said && !strncmp(said, error, strlen(error)) ? said + strlen(error) : said;
}

/* No rank has said anything: all that could are gone, or compute. */
static int lost_host(const struct watch *w, struct err *e)
{
    const struct launch_hosts *h = w->opt->hosts;
    int first = 0;
    size_t i = 0;
    while (i < h->n && strcmp(h->v[i].name, w->lost_host))
        first += h->v[i++].ranks;
    struct buf ranks = BUF_INIT;
    if (i < h->n && h->v[i].ranks == 1)
        buf_addf(&ranks, ", with rank %d", first);
    else if (i < h->n)
        buf_addf(&ranks, ", with ranks %d to %d", first, first + h->v[i].ranks - 1);
    err_set(e, ERR_RANK_LOST, "host %s is lost%s: mpirun has no connection to it any more; logs are in %s",
            w->lost_host, ranks.s, w->opt->log_dir);
    buf_release(&ranks);
    return ERR_RANK_LOST;
}

static int judge(struct watch *w, struct err *e)
{
    int code = WIFSIGNALED(w->status) ? 128 + WTERMSIG(w->status) : WEXITSTATUS(w->status);
    const struct rank_end *x = culprit(w);
    e->msg[0] = 0;
    if (w->ended_by)
        return 128 + w->ended_by;
    if (w->interrupts && code)
        return err_set(e, ERR_INTERRUPTED, "%s", x && x->rank == 0 ? "" : "interrupted");
    const char *said = x && only_lost_another(x) ? last_sentence(x) : NULL;
    if (said) {
        err_set(e, ERR_RANK_LOST, "%.*s; logs are in %s", (int)strcspn(said, "\n"), said, w->opt->log_dir);
        return exit_code_of(ERR_RANK_LOST);
    }
    if (x) {
        struct buf b = BUF_INIT;
        show_last_lines(w, x);
        rank_end_describe(x, &b);
        err_set(e, ERR_FAIL, "%s; logs are in %s", b.s, w->opt->log_dir);
        buf_release(&b);
        return x->code;
    }
    if (!code)
        return 0;
    show(w, w->held.s, w->held.len);
    if (*w->lost_host)
        return lost_host(w, e);
    return err_set(e, ERR_FAIL, "mpirun could not do it (its code is %d); its words are above", code);
}

int watch_mpirun(const struct watch_options *o, struct err *e)
{
    struct watch w = {.opt = o, .in = -1, .line = BUF_INIT, .frame = BUF_INIT, .held = BUF_INIT};
    sigset_t old;
    fflush(NULL);
    int rc = start(&w, &old, e);
    if (!rc) {
        watch(&w);
        rc = judge(&w, e);
        close(w.err);
    }
    if (w.in >= 0)
        close(w.in);
    close(w.signals);
    sigprocmask(SIG_SETMASK, &old, NULL);
    for (size_t i = 0; i < w.n_ends; i++)
        buf_release(&w.ends[i].lines);
    xfree(w.ends);
    buf_release(&w.line);
    buf_release(&w.frame);
    buf_release(&w.held);
    return rc;
}
