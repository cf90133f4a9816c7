/* How a rank ended: what its supervisor writes and the launcher reads. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/launch.h"

#define LINE_END '\x1f' /* stands for a newline in a report */

void rank_end_write(const struct rank_end *x, struct buf *out)
{
    buf_addf(out, "%c%d %d %d %d %s%c", REPORT_MARK, x->rank, x->pid, x->code, x->signal, x->host, LINE_END);
    for (size_t i = 0; i < x->lines.len; i++) {
        unsigned char c = (unsigned char)x->lines.s[i];
        buf_addc(out, c == '\n' ? LINE_END : (c < ' ' && c != '\t') || c == 127 ? ' ' : (char)c);
    }
    buf_addc(out, '\n');
}

bool rank_end_read(const char *line, struct rank_end *ret)
{
    int n = 0;
    *ret = (struct rank_end){.lines = BUF_INIT};
    if (sscanf(line, "%d %d %d %d %63[^\x1f]\x1f%n", &ret->rank, &ret->pid, &ret->code, &ret->signal,
               ret->host, &n) != 5 ||
        !n || ret->rank < 0 || ret->code < 1 || ret->code > 255 || ret->signal < 0)
        return false;
    for (const char *c = line + n; *c; c++)
        buf_addc(&ret->lines, *c == LINE_END ? '\n' : *c);
    if (ret->lines.len && ret->lines.s[ret->lines.len - 1] != '\n')
        buf_addc(&ret->lines, '\n');
    return true;
}

void rank_end_describe(const struct rank_end *x, struct buf *out)
{
    buf_addf(out, "rank %d on host %s (pid %d) ", x->rank, x->host, x->pid);
    if (x->signal)
        buf_addf(out, "was killed by signal %d (%s)%s", x->signal, strsignal(x->signal),
                 x->signal == 9 ? "; if nobody did that, the system was out of memory" : "");
    else if (exit_meaning(x->code))
        buf_addf(out, "ended with code %d: %s", x->code, exit_meaning(x->code));
    else
        buf_addf(out, "ended with code %d", x->code);
}
