#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define REDRAW_S 0.1

static void add_bytes(struct buf *out, double n)
{
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
    size_t u = 0;
    while (n >= 1000 && u + 1 < ARRAY_LEN(unit)) {
        n /= 1024;
        u++;
    }
    buf_addf(out, n < 10 && u ? "%.1f %s" : "%.0f %s", n, unit[u]);
}

static void add_amount(const struct progress *p, struct buf *out, double n)
{
    if (p->unit == PROGRESS_BYTES)
        add_bytes(out, n);
    else
        buf_addf(out, n < 10 && n != (double)(uint64_t)n ? "%.1f" : "%.0f", n);
}

static void add_time(struct buf *out, double s)
{
    unsigned long t = s < 1e7 ? (unsigned long)(s + 0.5) : 0;
    if (t >= 3600)
        buf_addf(out, "%lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
    else
        buf_addf(out, "%lu:%02lu", t / 60, t % 60);
}

/* "loading [######......]  50%  1.2/2.4 GB  600 MB/s  0:02 left  note" */
void progress_render(const struct progress *p, int width, double elapsed_s, struct buf *out)
{
    enum { BAR_MAX = 30, BAR_MIN = 6 };
    uint64_t done = p->total ? MIN(p->done, p->total) : p->done;
    struct buf tail = BUF_INIT;
    if (p->total)
        buf_addf(&tail, " %3d%%", (int)((double)done / (double)p->total * 100));
    buf_adds(&tail, "  ");
    add_amount(p, &tail, (double)done);
    if (p->total) {
        buf_adds(&tail, "/");
        add_amount(p, &tail, (double)p->total);
    }
    if (p->unit == PROGRESS_COUNT && p->noun)
        buf_addf(&tail, " %s", p->noun);
    /* A rate and what is left, once there is something to judge by. */
    if (done && elapsed_s >= 1) {
        double rate = (double)done / elapsed_s;
        buf_adds(&tail, "  ");
        add_amount(p, &tail, rate);
        buf_adds(&tail, "/s");
        if (p->total && done < p->total) {
            buf_adds(&tail, "  ");
            add_time(&tail, (double)(p->total - done) / rate);
            buf_adds(&tail, " left");
        }
    }
    if (*p->note)
        buf_addf(&tail, "  %s", p->note);
    size_t start = out->len;
    buf_adds(out, p->what);
    int room = width - (int)strlen(p->what) - (int)tail.len - 3;
    if (p->total && room >= BAR_MIN) {
        int n = MIN(room, BAR_MAX), full = (int)((double)done / (double)p->total * n);
        buf_adds(out, " [");
        for (int i = 0; i < n; i++)
            buf_addc(out, i < full ? '#' : '.');
        buf_addc(out, ']');
    }
    buf_add(out, tail.s, tail.len);
    buf_release(&tail);
    size_t most = start + (size_t)MAX(width, 0);
    if (out->len > most)
        buf_remove(out, most, out->len - most);
}

static bool wanted(void)
{
    const char *term = getenv("TERM"), *off = getenv("YOKE_PROGRESS");
    return isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb")) && !(off && !strcmp(off, "0"));
}

void progress_begin(struct progress *p, const char *what, uint64_t total, enum progress_unit unit)
{
    *p = (struct progress){.what = what, .total = total, .unit = unit, .fd = wanted() ? STDERR_FILENO : -1};
    p->begin_s = clock_s();
}

static void put(const struct progress *p, const char *s, size_t n)
{
    ssize_t ignored = write(p->fd, s, n); /* a lost drawing is no error */
    (void)ignored;
}

static void draw(struct progress *p, double now)
{
    struct winsize w;
    int width = ioctl(p->fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? w.ws_col : 80;
    struct buf b = BUF_INIT;
    buf_adds(&b, "\r");
    progress_render(p, width - 1, now - p->begin_s, &b);
    buf_adds(&b, "\033[K");
    put(p, b.s, b.len);
    buf_release(&b);
    p->drawn_s = now;
    p->visible = true;
}

void progress_update(struct progress *p, uint64_t done)
{
    p->done = done;
    if (p->fd < 0)
        return;
    double now = clock_s();
    if (!p->visible || now - p->drawn_s >= REDRAW_S)
        draw(p, now);
}

void progress_note(struct progress *p, const char *note)
{
    snprintf(p->note, sizeof(p->note), "%s", note);
}

void progress_hide(struct progress *p)
{
    if (p->visible)
        put(p, "\r\033[K", 4);
    p->visible = false;
}

void progress_end(struct progress *p)
{
    progress_hide(p);
    p->fd = -1;
}
