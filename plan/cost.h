/* cost.h: what a split would cost in time and memory, and which split to choose. docs/advice.md has the
 * formulas in words, the constants' sources, and predictions beside measurements.
 *
 * Three plain structs and functions of them, without state: a machine (constants, stated or measured by
 * `yoke bench`), a shape (bytes, multiply-adds and collectives per layer of one rank, read off a plan, so
 * that they are the program's own), and a job (lengths, sequences). cost_estimate puts them together for one
 * split; cost_advise tries all splits that make sense and ranks them.
 *
 * Seconds, bytes, and multiply-adds (MAC) a second throughout.
 */
#ifndef YOKE_PLAN_COST_H
#define YOKE_PLAN_COST_H

#include <stdbool.h>
#include <stddef.h>
#include "base/dtype.h"
#include "plan/plan.h"

#define COST_CHUNK 512

struct cost_link {
    double latency_s, bytes_s; /* of one hop between two ranks; 2 ranks' all-reduce moves its bytes once */
};

struct cost_machine {
    int hosts, cores, domains; /* cores and NUMA domains of a host */
    double memory;             /* bytes of a host that ranks may use */
    double host_read;          /* bytes/s of a whole host with all its cores */
    double core_read;          /* of one core alone */
    double numa_share;     /* of its bandwidth that a rank keeps whose threads are in several NUMA domains */
    double one[DT_COUNT];  /* weight bytes/s of one core, multiplying one token */
    double many[DT_COUNT]; /* MAC/s of one core for each further token; 0: the format cannot be held */
    /* A chunk of columns ends (kernels/sum.h): seconds of one core a row and end, for the first token and for
     * each further one, beyond the ends that `one` and `many` have at COST_CHUNK columns a chunk. */
    double end_one_s, end_many_s;
    double score_macs;              /* what a score costs beside its MACs (softmax), in MACs */
    double attend_one, attend_many; /* MAC/s of one core: a single query, many queries */
    double row_bytes_s;             /* bytes/s of one core in norms, gates and the like: read and written */
    double step_s;                  /* overhead of a step on its thread */
    double barrier_s;               /* threads of a rank meet: this, times log2 of their number */
    struct cost_link local, net;
};
/* Stated constants (docs/advice.md), for a host of so many cores. */
void cost_machine_default(struct cost_machine *m, int hosts, int cores, double memory);

/* What one rank does in one layer, per row (token) or per tick. */
struct cost_layer {
    double held_bytes;                                    /* weights, all of them */
    double bytes[DT_COUNT];                               /* weights that each tick reads */
    double macs[DT_COUNT];                                /* per row */
    double expert_bytes[DT_COUNT], expert_macs[DT_COUNT]; /* of one expert, as this rank holds it */
    double ends[DT_COUNT], expert_ends[DT_COUNT]; /* rows x chunks of them, beyond macs / COST_CHUNK */
    double scores;                                /* per position and query: its heads */
    double kv_bytes, attend_macs;                 /* per position cached (and query) */
    int window;                                   /* positions that a query sees; 0: all */
    double row_bytes;                  /* read and written per row, by steps that are not multiplications */
    double reduce_bytes, gather_bytes; /* payload per row */
    int reduces, gathers, barriers, steps;
};
struct cost_shape { /* of the fullest rank (the last one) of its tensor group */
    int tp, ep, experts, chosen;
    int n_layers, fewest_rows;
    struct cost_layer *layer; /* [n_layers + 2]: before the layers, the layers, after them (per wanted row) */
    struct stage_cost *stage_cost; /* [n_layers + 1]: as in the plan */
    double hidden_bytes;           /* a row that goes from stage to stage */
    double work_bytes;
};
/* p: a plan with pp 1. */
void cost_shape_of(const struct plan *p, struct cost_shape *ret);
void cost_shape_release(struct cost_shape *s);

enum cost_goal { GOAL_LATENCY, GOAL_THROUGHPUT };

struct cost_job {
    int prompt, answer; /* tokens of each sequence */
    int context;        /* positions of KV to keep room for, a sequence */
    int batch;          /* sequences at once, all replicas together */
    int chunk;          /* most prompt tokens in a tick */
};

struct cost_split {
    int tp, pp, ep, dp;
    int hosts;   /* in use, evenly */
    int threads; /* per rank */
};

/* Where the time of a tick goes, and what it is made of. */
enum cost_part { PART_READ, PART_MATH, PART_ATTEND, PART_ROWS, PART_SYNC, PART_LOCAL, PART_NET, COST_PARTS };
const char *cost_part_name(enum cost_part p);

enum cost_verdict { COST_GOOD, COST_TOO_BIG, COST_NO_FORMAT };

struct cost {
    struct cost_split split;
    enum cost_verdict verdict;
    bool tp_crosses;                                /* a tensor group spans hosts */
    double weight_bytes, kv_bytes, work_bytes;      /* of the fullest rank; KV for its sequences' contexts */
    double host_bytes;                              /* of the fullest host */
    double read_bytes, macs, comm_bytes;            /* of the fullest rank, per decoding tick */
    double prefill[COST_PARTS], decode[COST_PARTS]; /* seconds: of a prompt (all its chunks in all stages); of
                                                       a tick through all stages */
    double wait_s;                                  /* of TPOT: behind other ticks in the pipeline */
    int answer;                                     /* tokens, as in the job */
    double prompts_s;                               /* of all prompts, following each other */
    double ttft, tpot, answer_s;                    /* answer_s: a whole request, alone or in its batch */
    double throughput;                              /* answered tokens a second, prompts' time included */
};

/* Tensor-parallel all-reduce of so many bytes over n ranks, `spans` hosts. */
double cost_allreduce(const struct cost_machine *m, int n, int spans, double bytes, double *ret_net);
/* Expected largest number of distinct experts that one of ep groups must read, and of (token, expert) pairs
 * it must compute, when `tokens` each choose k of n at random. */
double cost_experts_read(int n, int k, int ep, double tokens);
double cost_experts_pairs(int n, int k, int ep, double tokens);

void cost_estimate(const struct cost_machine *m, const struct cost_shape *s, const struct cost_split *split,
                   const struct cost_job *job, struct cost *ret);

/* fixed: degrees that are given, 0 where free. ret: xfree(); best first, those that do not fit last. o: as
 * for plan_make; its degrees are overwritten. An error only if no split is legal. */
int cost_advise(const struct graph *g, const struct plan_options *o, const struct cost_machine *m,
                const struct cost_job *job, enum cost_goal goal, const struct cost_split *fixed,
                struct cost **ret, size_t *ret_n, struct err *e);

/* Why `c` is not the choice, in a few words; buf is the caller's. */
const char *cost_why_not(const struct cost *c, const struct cost *best, const struct cost_machine *m,
                         enum cost_goal goal, char *buf, size_t n);

#endif
