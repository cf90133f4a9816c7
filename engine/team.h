/* team.h: the ranks of one engine, seen from rank 0 as something that runs ticks.
 *
 * The world has dp x pp x tp ranks, tp the fastest index, dp the slowest. A lane is one replica of the model:
 * its pp stages of tp ranks each, with KV pages of its own. Each rank has its own plan, weights, run and
 * comms. Ranks are threads of this process (no launcher) or processes under an MPI launcher; they load at the
 * same time, each its own slices, and then agree on the plan's hash before anything runs.
 *
 * A tick's batch goes from rank 0 to its lane's first stage, from stage to stage ahead of the hidden rows,
 * and within a stage to all its ranks; the last stage returns the logits. Several ticks may be in flight in a
 * lane, up to its depth, so that every stage has something to do: post, post, ..., wait. Where rank 0 is
 * itself the lane's first stage, it computes that stage inside team_post.
 *
 * Under MPI every process calls team_open; on ranks other than 0 it returns a team that only team_serve may
 * be called on. A rank that fails or dies makes the others' calls fail with ERR_RANK_LOST, naming it.
 */
#ifndef YOKE_ENGINE_TEAM_H
#define YOKE_ENGINE_TEAM_H

#include <stdio.h>
#include "base/cpu.h"
#include "engine/load.h"
#include "engine/place.h"
#include "exec/run.h"

struct team_options {
    int tp, pp, dp, ep;   /* 0 counts as 1 */
    int depth;            /* ticks in flight of a lane; 0: pp */
    int threads;          /* per rank; 0: as many as its share of the cores */
    enum place_bind bind; /* each rank to cores of its own */
    enum cpu_level level;
    enum quant quant;
    enum kv_dtype kv;
    int32_t page_tokens, n_pages;
    int32_t max_tokens, max_out, max_spans; /* of one tick */
    bool profile;                           /* times and loads for team_report */
    bool trace;                             /* timelines for team_trace */
    bool reslice, verify;                   /* as load_options, and so are these */
    uint64_t expert_cache;                  /* of each rank */
    const char *spill_dir;
    load_progress_fn *progress; /* rank 0's loading; may be NULL */
    void *progress_ctx;
};

struct team;
/* Checkpoint and graph are borrowed and must outlive the team. With `bind` the calling thread, and threads it
 * makes later, are kept to rank 0's cores until team_close. */
int team_open(const struct checkpoint *c, const struct graph *g, const struct team_options *o,
              struct warn_sink *warn, struct team **ret, struct err *e);
void team_close(struct team *t); /* rank 0: tells the others to end, waits for them. NULL is fine */

/* True on MPI ranks other than 0: call team_serve, then team_close. */
bool team_is_worker(const struct team *t);
/* Runs ticks as rank 0 sends them, until it closes the team (0) or a rank is lost. */
int team_serve(struct team *t, struct err *e);

/* Rank 0 only. Starts a tick in a lane that has fewer than `depth` in flight; the batch may be reused on
 * return. */
int team_post(struct team *t, int lane, const struct batch *b, struct err *e);
/* The oldest posted tick of the lane: *ret_logits [n_out, vocab] are valid until the lane's next post or
 * wait. */
int team_wait(struct team *t, int lane, const float **ret_logits, struct err *e);
/* Both at once, in lane 0. */
int team_tick(struct team *t, const struct batch *b, const float **ret_logits, struct err *e);
int team_lanes(const struct team *t);
/* Experts are spread over the lanes: a tick posted in one must be posted in all (an empty batch will do), in
 * one order. */
bool team_spreads(const struct team *t);
int team_depth(const struct team *t);
int team_size(const struct team *t); /* ranks in all */

const struct plan *team_plan(const struct team *t);            /* this rank's */
const struct team_options *team_options(const struct team *t); /* as opened, threads filled in */
int team_threads(const struct team *t);                        /* per rank */
const char *team_transport(const struct team *t);              /* "self", "threads", "mpi/shm", ... */
const struct cores *team_cores(const struct team *t);          /* what rank 0 is bound to; n 0: any */
const struct comm *team_world(const struct team *t);           /* all ranks, for reports */

/* One rank's figures. Collective: rank 0 asks, with nothing in flight, all answer. ret: [team_size].
 * ret_experts: [team_size, experts] pairs computed, for a profiled model with experts; else it may be NULL.
 */
struct rank_report {
    struct run_report run;
    struct comm_stats comm;
    double load_s;
    char where[64]; /* "host pid" */
};
int team_report(struct team *t, struct rank_report *ret, uint64_t *ret_experts, struct err *e);
/* What every rank kept of its timeline (options.trace), as one file. Rank 0, with nothing in flight. */
int team_trace(struct team *t, FILE *f, struct err *e);

#endif
