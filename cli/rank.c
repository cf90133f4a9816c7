/* The supervisor of one rank: mpirun's child, the command's parent. */
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
#include "comm/comm.h"

enum { GRACE_MS = 1000 }; /* between asking the command to end and making it */

struct supervisor {
    int rank, log, pipe, signals;
    pid_t child;
    bool ended, told_to_end; /* ended is about the child, told_to_end about who ended it */
    bool reported;
    int status;
    int64_t kill_at; /* clock_ns(); 0: not set */
    struct buf tail;
};

static void write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return; /* a full disk or a launcher that is gone must not stop the rank */
        p += k;
        n -= (size_t)k;
    }
}

static int fail(struct supervisor *s, int code, const char *msg)
{
    struct rank_end x = {
        .rank = s->rank, .pid = (int)getpid(), .code = exit_code_of(code), .lines = BUF_INIT};
    struct buf b = BUF_INIT;
    gethostname(x.host, sizeof(x.host) - 1);
    buf_addf(&x.lines, "yoke: error: %s\n", msg);
    if (s->rank == 0)
        write_all(STDERR_FILENO, x.lines.s, x.lines.len);
    rank_end_write(&x, &b);
    write_all(STDERR_FILENO, b.s, b.len);
    buf_release(&b);
    buf_release(&x.lines);
    return x.code;
}

static int open_log(struct supervisor *s, const char *dir, struct err *e)
{
    int rc = make_folders(dir, e);
    if (rc)
        return rc;
    char *path = xasprintf("%s/rank_%d.log", dir, s->rank);
    s->log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (s->log < 0)
        rc = err_errno(e, "cannot write %s", path);
    xfree(path);
    return rc;
}

/* In the child. Its own process group: signals that mpirun sends to the rank's group come to the supervisor
 * alone, who decides. It dies with its supervisor. */
static void run_command(const struct supervisor *s, int to, pid_t parent, const sigset_t *mask, char **argv)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(128 + SIGKILL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    dup2(to, STDERR_FILENO);
    if (s->rank)
        dup2(to, STDOUT_FILENO); /* only rank 0 has anything to say to the user */
    setenv(LAUNCH_SUPERVISED, "1", 1);
    execv("/proc/self/exe", argv);
    perror("yoke: cannot start again");
    _exit(127);
}

static int start(struct supervisor *s, char **argv, struct err *e)
{
    int ends[2];
    sigset_t caught, old;
    sigemptyset(&caught);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGHUP);
    sigaddset(&caught, SIGUSR1);
    sigaddset(&caught, LAUNCH_LOST);
    sigaddset(&caught, SIGCHLD);
    sigprocmask(SIG_BLOCK, &caught, &old);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* mpirun, or its daemon on this host, is gone */
    s->signals = signalfd(-1, &caught, SFD_CLOEXEC);
    if (s->signals < 0 || pipe2(ends, O_CLOEXEC))
        return err_errno(e, "cannot supervise rank %d", s->rank);
    pid_t me = getpid();
    s->pipe = ends[0];
    s->child = fork();
    if (s->child < 0)
        return err_errno(e, "cannot start rank %d", s->rank);
    if (s->child == 0) {
        signal(SIGPIPE, SIG_DFL);
        run_command(s, ends[1], me, &old, argv);
    }
    close(ends[1]);
    return 0;
}

static void reap(struct supervisor *s)
{
    if (!s->ended && waitpid(s->child, &s->status, WNOHANG) == s->child)
        s->ended = true;
}

/* Keeps the last REPORT_LINES lines, and not much more than REPORT_BYTES. */
static void remember(struct supervisor *s, const char *p, size_t n)
{
    buf_add(&s->tail, p, n);
    if (s->tail.len > 4 * REPORT_BYTES)
        buf_remove(&s->tail, 0, s->tail.len - REPORT_BYTES);
}

/* False at the end of the command's output. */
static bool copy_output(struct supervisor *s)
{
    char b[4096];
    ssize_t n = read(s->pipe, b, sizeof(b));
    if (n < 0 && errno == EINTR)
        return true;
    if (n <= 0)
        return false;
    write_all(s->log, b, (size_t)n);
    if (s->rank == 0)
        write_all(STDERR_FILENO, b, (size_t)n);
    remember(s, b, (size_t)n);
    return true;
}

/* What lies in the pipe already. */
static void drain_output(struct supervisor *s)
{
    struct pollfd p = {s->pipe, POLLIN, 0};
    while (poll(&p, 1, 0) > 0 && copy_output(s))
        ;
}

static void last_lines(const struct supervisor *s, struct buf *out)
{
    const char *t = s->tail.s;
    size_t end = s->tail.len, at = end;
    for (int lines = 0; at > 0 && end - at < REPORT_BYTES; at--)
        if (at < end && t[at - 1] == '\n' && ++lines == REPORT_LINES)
            break;
    buf_add(out, t + at, end - at);
}

/* Once, and only of an end that is the rank's own doing. */
static void report(struct supervisor *s, int code, int sig)
{
    if (!code || s->told_to_end || s->reported)
        return;
    struct rank_end x = {
        .rank = s->rank, .pid = (int)s->child, .code = code, .signal = sig, .lines = BUF_INIT};
    struct buf b = BUF_INIT;
    s->reported = true;
    gethostname(x.host, sizeof(x.host) - 1);
    last_lines(s, &x.lines);
    rank_end_write(&x, &b);
    write_all(STDERR_FILENO, b.s, b.len);
    buf_release(&b);
    buf_release(&x.lines);
}

static void handle_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof(info)) != sizeof(info))
        return;
    reap(s); /* first: what has ended already did so by itself */
    if (s->ended || info.ssi_signo == SIGCHLD)
        return;
    if (info.ssi_signo == SIGUSR1) { /* the launcher's Ctrl-C, passed on by mpirun: rank 0 ends the others */
        if (s->rank == 0)
            kill(s->child, SIGINT);
        return;
    }
    if (info.ssi_signo == LAUNCH_LOST) { /* mpirun would pass one on, too */
        if (info.ssi_pid == (uint32_t)s->child) {
            drain_output(s);
            report(s, exit_code_of(ERR_RANK_LOST), 0);
        }
        return;
    }
    s->told_to_end = true;
    kill(s->child, SIGTERM);
    if (!s->kill_at)
        s->kill_at = clock_ns() + GRACE_MS * (int64_t)1000000;
}

/* Until the command has ended and all it said is read. What it may have started and left behind can hold the
 * pipe open: that is not waited for. */
static void supervise(struct supervisor *s)
{
    bool open = true;
    while (open || !s->ended) {
        struct pollfd p[] = {{s->signals, POLLIN, 0}, {open ? s->pipe : -1, POLLIN, 0}};
        int n = poll(p, 2, s->ended ? 100 : s->kill_at ? 50 : -1);
        if (n == 0 && s->ended)
            break;
        if (p[0].revents)
            handle_signal(s);
        if (p[1].revents)
            open = copy_output(s);
        reap(s);
        if (s->kill_at && !s->ended && clock_ns() > s->kill_at)
            kill(s->child, SIGKILL);
    }
}

int launch_rank(int argc, char **argv)
{
    struct supervisor s = {.rank = comm_mpi_rank(), .log = -1, .tail = BUF_INIT};
    struct err e;
    if (argc < 3)
        return fail(&s, ERR_USAGE, "launch-rank is what 'yoke launch' has mpirun start; use 'yoke launch'");
    int rc = open_log(&s, argv[1], &e);
    argv[1] = (char *)"yoke";
    if (!rc)
        rc = start(&s, argv + 1, &e);
    if (rc)
        return fail(&s, rc, e.msg);
    supervise(&s);
    int sig = WIFSIGNALED(s.status) ? WTERMSIG(s.status) : 0, code = sig ? 128 + sig : WEXITSTATUS(s.status);
    report(&s, code, sig);
    buf_release(&s.tail);
    close(s.log);
    return code;
}
