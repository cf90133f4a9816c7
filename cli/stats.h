/* stats.h: what a run cost, for people (--stats, on standard error) and for programs (--stats-json). */
#ifndef YOKE_CLI_STATS_H
#define YOKE_CLI_STATS_H

#include "cli/session.h"

struct run_stats { /* gathered by run.c over all answers */
    int64_t requests, prompt_tokens, output_tokens;
    double ttft_sum_s, ttft_max_s; /* from being added to the first token */
    double tpot_sum_s;             /* per request: time per token after the first, averaged */
    int64_t tpot_n;
    double wall_s;
};
void run_stats_add(struct run_stats *s, const struct request_view *v);

/* Asks all ranks (collective), prints the table and writes the file, as the settings say. */
int stats_report(struct session *x, const struct run_stats *s, struct err *e);

#endif
