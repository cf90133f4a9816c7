#include "cli/transport.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "engine/place.h"

/* What one token makes a rank send to the others of its tensor group. */
static size_t token_bytes(const struct plan *p, int *ret_calls)
{
    size_t bytes = 0;
    *ret_calls = 0;
    for (int32_t i = 0; i < p->n_steps; i++) {
        size_t n = p->steps[i].kind == OP_SEND ? 0 : plan_step_bytes(p, &p->steps[i], 1);
        bytes += n;
        *ret_calls += n > 0;
    }
    return bytes;
}

/* Neighbouring ranks make a tensor group. */
static bool group_spans_hosts(const struct comm *world, int tp)
{
    for (int i = 0; i < world->size; i++)
        if (strcmp(world->peer[i].host, world->peer[i / tp * tp].host))
            return true;
    return false;
}

static void warn_of_network(const struct session *x, struct warn_sink *warn)
{
    const struct comm *world = team_world(x->team);
    const struct plan *p = team_plan(x->team);
    int calls, tp = p->opt.tp;
    size_t bytes = token_bytes(p, &calls);
    if (!group_spans_hosts(world, tp))
        return;
    warn_to(
        warn,
        "tensor parallelism (%d ranks) goes over the network (%s): each token waits for %d collectives%s, "
        "in which each rank puts in %.1f KiB; it is meant for the ranks of one host, pipeline stages (--pp) "
        "for the way between hosts",
        tp, comm_carrier(world), calls, p->opt.pp > 1 ? " in each stage" : "", (double)bytes / 1024);
}

void transport_tell(const struct session *x, struct warn_sink *warn)
{
    const struct comm *world = team_world(x->team);
    int hosts = place_hosts(world);
    if (hosts == 1 && !x->settings->stats)
        return;
    struct buf where = BUF_INIT;
    char cores[256];
    place_describe(world, &where);
    cores_print(team_cores(x->team), cores, sizeof(cores));
    if (world->size > 1)
        fprintf(stderr, "yoke: %d ranks talk over %s (%s), %s", world->size, comm_carrier(world),
                world->ops->name, where.s);
    else
        fprintf(stderr, "yoke: 1 rank, %s", where.s);
    fprintf(stderr, "; rank 0: %d thread%s on cores %s\n", team_threads(x->team),
            team_threads(x->team) > 1 ? "s" : "", cores);
    buf_release(&where);
    if (hosts > 1)
        warn_of_network(x, warn);
}
