#include "comm/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* State letter and start time out of /proc/PID/stat: fields 3 and 22, counted after the last ')', because
 * field 2 is a name that may hold anything. 0 or -1 with errno. */
static int proc_stat(int pid, char *ret_state, uint64_t *ret_started)
{
    char path[32], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    int saved = n < 0 ? errno : EINVAL;
    close(fd);
    if (n > 0) {
        text[n] = 0;
        const char *s = strrchr(text, ')');
        unsigned long long started;
        if (s &&
            sscanf(s + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                   ret_state, &started) == 2) {
            *ret_started = started;
            return 0;
        }
    }
    errno = saved;
    return -1;
}

void peer_self(struct comm_peer *ret, int rank)
{
    char state;
    memset(ret, 0, sizeof(*ret));
    ret->rank = rank;
    ret->pid = getpid();
    if (proc_stat(ret->pid, &state, &ret->started))
        ret->started = 0;
    if (gethostname(ret->host, sizeof(ret->host) - 1))
        strcpy(ret->host, "?");
}

bool peer_dead(const struct comm_peer *p)
{
    char state;
    uint64_t started;
    if (!proc_stat(p->pid, &state, &started))
        return state == 'Z' || state == 'X' || (p->started && started != p->started);
    if (errno == ESRCH)
        return true;
    return kill(p->pid, 0) && errno == ESRCH; /* no /proc, or a restricted one */
}

const char *peer_describe(const struct comm_peer *p, char *buf, size_t n)
{
    snprintf(buf, n, "rank %d on host %s (pid %d)", p->rank, p->host, p->pid);
    return buf;
}
