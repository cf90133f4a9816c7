#include "cli/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t seen;
static int wake[2] = {-1, -1}; /* the handler writes; a full pipe wakes as well as any */

static struct buf unread = BUF_INIT; /* of standard input, after the line that was last given out */
static bool at_end;

static void on_interrupt(int sig)
{
    int before = errno;
    (void)sig;
    seen = 1;
    ssize_t n = write(wake[1], "", 1);
    (void)n;
    errno = before;
}

int interrupts_catch(struct err *e)
{
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK))
        return err_errno(e, "cannot make a pipe for Ctrl-C");
    struct sigaction sa = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a file of prompts ends */
    if (sigaction(SIGINT, &sa, NULL))
        return err_errno(e, "cannot catch Ctrl-C");
    return 0;
}

bool interrupted(void)
{
    return seen;
}

void interrupts_forget(void)
{
    char bytes[64];
    while (wake[0] >= 0 && read(wake[0], bytes, sizeof(bytes)) > 0)
        ;
    seen = 0;
}

static bool take_line(struct buf *line)
{
    const char *end = memchr(unread.s, '\n', unread.len);
    if (!end && !(at_end && unread.len))
        return false;
    size_t n = end ? (size_t)(end - unread.s) : unread.len;
    size_t used = n + (end != NULL);
    while (n && unread.s[n - 1] == '\r')
        n--;
    buf_add(line, unread.s, n);
    buf_remove(&unread, 0, used);
    return true;
}

/* False: Ctrl-C came first. */
static bool wait_for_input(void)
{
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    while (poll(p, 2, -1) < 0 && errno == EINTR && !seen)
        ;
    return !seen && !p[1].revents;
}

enum typed terminal_read_line(struct buf *line)
{
    char chunk[4096];
    while (!take_line(line)) {
        if (at_end) {
            at_end = false; /* Ctrl-D ends a conversation, not the terminal */
            return TYPED_END;
        }
        if (!wait_for_input()) {
            interrupts_forget();
            return TYPED_INTERRUPT;
        }
        ssize_t n = read(STDIN_FILENO, chunk, sizeof(chunk));
        if (n > 0)
            buf_add(&unread, chunk, (size_t)n);
        else if (!(n < 0 && errno == EINTR))
            at_end = true;
    }
    return TYPED_LINE;
}
