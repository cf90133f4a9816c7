/* collect.c: steps that move data between ranks, and the packing around them.
 *
 * A row of a value is [pre, axis, post] around the axis in question; a rank's part of the axis is a range.
 * comm wants each rank's part contiguous: [rows, pre, part, post], parts in rank order; `copy_part` goes
 * between that and the whole row. Communication errors are kept in the run; once there is one, further
 * collectives of the tick are skipped and its result is never looked at, so that threads need not be told.
 */
#include <string.h>
#include "exec/internal.h"

struct shape { /* of a row around one axis */
    size_t pre, n, post;
};

static struct shape around(const struct slot *s, int axis)
{
    struct shape x = {1, 1, 1};
    int d = 0;
    for (; d < s->n_dims && s->dim[d] != axis; d++)
        x.pre *= (size_t)s->dim_n[d];
    x.n = (size_t)s->dim_n[d];
    for (d++; d < s->n_dims; d++)
        x.post *= (size_t)s->dim_n[d];
    return x;
}

/* Between rows of whole [rows, pre, n, post] and a contiguous part [rows, pre, range, post]. */
static void copy_part(float *whole, struct shape x, size_t rows, struct range part, float *packed, bool pack)
{
    size_t run = (size_t)range_n(part) * x.post;
    for (size_t i = 0; i < rows * x.pre; i++) {
        float *w = whole + (i * x.n + (size_t)part.begin) * x.post, *p = packed + i * run;
        memcpy(pack ? p : w, pack ? w : p, sizeof(float) * run);
    }
}

static struct range part_of(const struct run *r, int axis, int rank)
{
    return plan_part(r->plan, (enum axis)axis, rank, r->plan->opt.tp);
}

void step_allreduce(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out);
    size_t n = (size_t)slot_rows(r, in) * (size_t)in->width;
    if (ith || !n || r->err.code)
        return;
    if (in->root != out->root)
        memcpy(slot_row(r, out, 0), slot_row(r, in, 0), n * sizeof(float));
    comm_allreduce(r->comm, slot_row(r, out, 0), n, &r->err);
}

void step_allgather(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out), *tmp = slot_of(r, s->tmp);
    size_t rows = (size_t)slot_rows(r, in), bytes[PLAN_MAX_RANKS] = {0};
    if (ith || !rows || r->err.code)
        return;
    struct shape x = around(out, s->axis_from);
    int n = r->plan->opt.tp;
    for (int i = 0; i < n; i++)
        bytes[i] = sizeof(float) * rows * x.pre * (size_t)range_n(part_of(r, s->axis_from, i)) * x.post;
    float *parts = slot_row(r, tmp, 0);
    if (comm_allgather(r->comm, slot_row(r, in, 0), parts, bytes, &r->err))
        return;
    for (int i = 0; i < n; i++) {
        copy_part(slot_row(r, out, 0), x, rows, part_of(r, s->axis_from, i), parts, false);
        parts += bytes[i] / sizeof(float);
    }
}

void step_reduce_scatter(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out), *tmp = slot_of(r, s->tmp);
    size_t rows = (size_t)slot_rows(r, in), count[PLAN_MAX_RANKS] = {0};
    if (ith || !rows || r->err.code)
        return;
    struct shape x = around(in, s->axis_to);
    float *packed = slot_row(r, tmp, 0);
    for (int i = 0; i < r->plan->opt.tp; i++) {
        struct range part = part_of(r, s->axis_to, i);
        count[i] = rows * x.pre * (size_t)range_n(part) * x.post;
        copy_part(slot_row(r, in, 0), x, rows, part, packed, true);
        packed += count[i];
    }
    comm_reduce_scatter(r->comm, slot_row(r, tmp, 0), count, slot_row(r, out, 0), &r->err);
}

void step_alltoall(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out), *tmp = slot_of(r, s->tmp);
    size_t rows = (size_t)slot_rows(r, in), send[PLAN_MAX_RANKS] = {0}, recv[PLAN_MAX_RANKS] = {0},
           n_send = 0;
    if (ith || !rows || r->err.code)
        return;
    /* what I hold is cut along axis_to; what I get is joined along axis_from */
    struct shape cut = around(in, s->axis_to), join = around(out, s->axis_from);
    float *packed = slot_row(r, tmp, 0);
    for (int i = 0; i < r->plan->opt.tp; i++) {
        struct range mine = part_of(r, s->axis_to, i), theirs = part_of(r, s->axis_from, i);
        size_t n = rows * cut.pre * (size_t)range_n(mine) * cut.post;
        copy_part(slot_row(r, in, 0), cut, rows, mine, packed + n_send, true);
        n_send += n;
        send[i] = sizeof(float) * n;
        recv[i] = sizeof(float) * rows * join.pre * (size_t)range_n(theirs) * join.post;
    }
    float *got = packed + n_send;
    if (comm_alltoall(r->comm, packed, send, got, recv, &r->err))
        return;
    for (int i = 0; i < r->plan->opt.tp; i++) {
        copy_part(slot_row(r, out, 0), join, rows, part_of(r, s->axis_from, i), got, false);
        got += recv[i] / sizeof(float);
    }
}

void step_slice(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out);
    int begin, end;
    pool_share(slot_rows(r, out), ith, nth, &begin, &end);
    struct shape x = around(in, s->axis_to);
    struct range mine = part_of(r, s->axis_to, r->plan->opt.rank);
    for (int i = begin; i < end; i++)
        copy_part(slot_row(r, in, i), x, 1, mine, slot_row(r, out, i), true);
}

void step_send(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]);
    if (!ith && !r->err.code && slot_rows(r, in))
        comm_send(r->opt.pipe, slot_row(r, in, 0), in->row_bytes * (size_t)slot_rows(r, in), r->opt.to,
                  &r->err);
}

void step_recv(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *out = slot_of(r, s->out);
    if (!ith && !r->err.code && slot_rows(r, out))
        comm_recv(r->opt.pipe, slot_row(r, out, 0), out->row_bytes * (size_t)slot_rows(r, out), r->opt.from,
                  &r->err);
}
