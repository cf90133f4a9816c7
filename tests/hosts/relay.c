/* relay DELAY_US NETNS...: a switch whose cables have a delay, for kernels without netem.
 *
 * In each of the network namespaces (paths such as /run/netns/h1) it makes a TAP device, eth0, and passes
 * frames between them, each DELAY_US microseconds after it came. It runs until it is killed.
 *
 * One thread. The delay is the same for all, so frames fall due in the order in which they came: one queue.
 * Frames may be as large as the kernel likes (64 KiB, checksums left open; IFF_VNET_HDR): a frame costs a
 * read and a write, so fewer and larger ones are what makes 10 Gb/s possible here. Rates are the hosts' own
 * (tc).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_PORTS = 16,
    MAX_FRAME = sizeof(struct virtio_net_hdr) + 14 + 4 + 65536,
    MAX_QUEUE = 2048, /* frames; a power of two. What finds it full is dropped */
    BURST = 32,       /* frames from one port before others have their turn */
    /* What is due so soon is waited for awake, as the kernel wakes us up too late; no more than this, for
     * whoever waits awake keeps a rank from its core. */
    AWAKE_NS = 20000
};

struct frame {
    int64_t due; /* now_ns() */
    int from;
    size_t n;
    unsigned char data[MAX_FRAME];
};

struct port {
    int fd;
    unsigned char mac[6]; /* of its host, once that has sent something */
};

struct relay {
    int64_t delay;
    int n_ports;
    struct port port[MAX_PORTS];
    struct frame *queue[MAX_QUEUE];
    unsigned head, tail; /* queue[head % MAX_QUEUE] is the oldest */
    struct frame
        *spare[MAX_QUEUE]; /* the last one used is the first one to be used again: it is in the cache */
    int n_spare;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int open_tap(const char *netns)
{
    struct ifreq r = {.ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int ns = open(netns, O_RDONLY | O_CLOEXEC), fd = -1;
    if (ns < 0 || setns(ns, CLONE_NEWNET))
        die(netns);
    close(ns);
    if ((fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0)
        die("/dev/net/tun");
    if (ioctl(fd, TUNSETIFF, &r) || ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
        die("making eth0");
    return fd;
}

static void deliver(struct relay *r, const struct frame *f)
{
    const unsigned char *to = f->data + sizeof(struct virtio_net_hdr);
    int known = -1;
    for (int i = 0; i < r->n_ports; i++)
        if (!memcmp(r->port[i].mac, to, 6))
            known = i;
    for (int i = 0; i < r->n_ports; i++)
        if (i != f->from && (known < 0 || known == i) && write(r->port[i].fd, f->data, f->n) < 0 &&
            errno != EAGAIN && errno != EIO &&
            errno != ENOBUFS) /* its host does not listen: the frame is lost */
            die("writing a frame");
}

static struct frame *new_frame(struct relay *r)
{
    struct frame *f = r->n_spare ? r->spare[--r->n_spare] : malloc(sizeof(*f));
    if (!f)
        die("memory");
    return f;
}

/* False: there is nothing more. */
static bool accept_frame(struct relay *r, int from)
{
    struct frame *f = new_frame(r);
    ssize_t n = read(r->port[from].fd, f->data, sizeof(f->data));
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        die("reading a frame");
    if (n < (ssize_t)sizeof(struct virtio_net_hdr) + 14 || r->tail - r->head == MAX_QUEUE) {
        r->spare[r->n_spare++] = f;
        return n >= 0;
    }
    memcpy(r->port[from].mac, f->data + sizeof(struct virtio_net_hdr) + 6, 6);
    f->n = (size_t)n;
    f->from = from;
    f->due = now_ns() + r->delay;
    r->queue[r->tail++ % MAX_QUEUE] = f;
    return true;
}

/* Nanoseconds until the next one is due; -1: none is waiting. */
static int64_t deliver_due(struct relay *r)
{
    while (r->head != r->tail) {
        struct frame *f = r->queue[r->head % MAX_QUEUE];
        int64_t left = f->due - now_ns();
        if (left > 0)
            return left;
        deliver(r, f);
        r->spare[r->n_spare++] = f;
        r->head++;
    }
    return -1;
}

static void serve(struct relay *r)
{
    struct pollfd p[MAX_PORTS];
    for (;;) {
        int64_t left = deliver_due(r);
        int64_t nap = left > AWAKE_NS ? left - AWAKE_NS : 0;
        struct timespec t = {nap / 1000000000, nap % 1000000000};
        for (int i = 0; i < r->n_ports; i++)
            p[i] = (struct pollfd){r->port[i].fd, POLLIN, 0};
        if (ppoll(p, (nfds_t)r->n_ports, left < 0 ? NULL : &t, NULL) < 0 && errno != EINTR)
            die("poll");
        for (int i = 0; i < r->n_ports; i++)
            for (int k = 0; p[i].revents && k < BURST && accept_frame(r, i); k++)
                ;
    }
}

int main(int argc, char **argv)
{
    static struct relay r;
    if (argc < 3 || argc - 2 > MAX_PORTS) {
        fprintf(stderr, "usage: relay DELAY_US NETNS... (at most %d)\n", MAX_PORTS);
        return 2;
    }
    r.delay = atoll(argv[1]) * 1000;
    for (int i = 2; i < argc; i++)
        r.port[r.n_ports++].fd = open_tap(argv[i]);
    /* A frame that is due must not wait for a rank that spins, nor for a timer to be rounded up. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    prctl(PR_SET_TIMERSLACK, 1);
    serve(&r);
}
