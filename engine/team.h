/* team.h: the ranks of one engine, seen from rank 0 as one thing that runs ticks.
 *
 * Each rank has its own plan, weights, run and comm. Ranks are threads of this process (tp > 1 without a
 * launcher) or processes under an MPI launcher; they load at the same time, each its own slices, and then
 * agree on the plan's hash before anything runs. Rank 0 broadcasts each tick's batch; the other ranks live in
 * a loop that receives and runs it.
 *
 * Under MPI every process calls team_open; on ranks other than 0 it returns a team that only team_serve may
 * be called on. A rank that fails or dies makes the others' calls fail with ERR_RANK_LOST, naming it.
 */
#ifndef YOKE_ENGINE_TEAM_H
#define YOKE_ENGINE_TEAM_H

#include "engine/load.h"
#include "exec/run.h"

struct team_options {
    int tp;
    int threads; /* per rank; 0: the cores this process may use, shared out */
    enum cpu_level level;
    enum quant quant;
    enum kv_dtype kv;
    int32_t page_tokens, n_pages;
    int32_t max_tokens, max_out, max_spans; /* of one tick */
    bool profile;
    bool reslice, verify; /* as load_options */
    load_progress_fn *progress; /* rank 0's loading; may be NULL */
    void *progress_ctx;
};

struct team;
/* Checkpoint and graph are borrowed and must outlive the team. */
int team_open(const struct checkpoint *c, const struct graph *g, const struct team_options *o,
              struct warn_sink *warn, struct team **ret, struct err *e);
void team_close(struct team *t); /* rank 0: tells the others to end, waits for them. NULL is fine */

/* True on MPI ranks other than 0: call team_serve, then team_close. */
bool team_is_worker(const struct team *t);
/* Runs ticks as rank 0 sends them, until it closes the team (0) or a rank is lost. */
int team_serve(struct team *t, struct err *e);

/* One tick on all ranks; logits [n_out, vocab] are valid until the next. Rank 0 only. */
int team_tick(struct team *t, const struct batch *b, const float **ret_logits, struct err *e);

const struct plan *team_plan(const struct team *t);
const struct team_options *team_options(const struct team *t); /* as opened, threads filled in */
int team_threads(const struct team *t);                        /* per rank */
const char *team_transport(const struct team *t);              /* "self", "threads", "mpi/shm", ... */

/* One rank's figures. Collective: rank 0 asks, all answer. ret: [team size]. */
struct rank_report {
    struct run_report run;
    struct comm_stats comm;
    double load_s;
    char where[64]; /* "host pid" */
};
int team_report(struct team *t, struct rank_report *ret, struct err *e);

#endif
