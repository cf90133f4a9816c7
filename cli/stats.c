#include "cli/stats.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

static const char *const comm_names[COMM_KINDS] = {"barrier",   "bcast",    "allreduce", "reduce_scatter",
                                                   "allgather", "alltoall", "send",      "recv"};

void run_stats_add(struct run_stats *s, const struct request_view *v)
{
    s->requests++;
    s->prompt_tokens += v->n_prompt;
    s->output_tokens += v->n_output;
    if (v->first_token_s > 0) {
        double ttft = v->first_token_s - v->added_s;
        s->ttft_sum_s += ttft;
        s->ttft_max_s = MAX(s->ttft_max_s, ttft);
    }
    if (v->n_output > 1) {
        s->tpot_sum_s += (v->last_token_s - v->first_token_s) / (v->n_output - 1);
        s->tpot_n++;
    }
}

static double mib(size_t bytes)
{
    return (double)bytes / 0x1p20;
}

static double rate(uint64_t n, double s)
{
    return s > 0 ? (double)n / s : 0;
}

static void print_comm(const struct rank_report *all, int n, double busy_s)
{
    for (int k = 0; k < COMM_KINDS; k++) {
        uint64_t calls = 0, bytes = 0, ns = 0;
        for (int i = 0; i < n; i++) {
            calls = MAX(calls, all[i].comm.calls[k]);
            bytes = MAX(bytes, all[i].comm.bytes[k]);
            ns = MAX(ns, all[i].comm.ns[k]);
        }
        if (calls)
            fprintf(stderr,
                    "  %-15s %8llu calls %9.1f MiB a rank %9.3f s %5.1f%% of the run (waiting included, "
                    "slowest rank)\n",
                    comm_names[k], (unsigned long long)calls, mib(bytes), (double)ns * 1e-9,
                    busy_s > 0 ? (double)ns * 1e-7 / busy_s : 0.0);
    }
}

static void print_steps(const struct rank_report *r)
{
    uint64_t total = 0;
    for (int k = 0; k < STEP_KINDS; k++)
        total += r->run.step_ns[k];
    fprintf(stderr, "time by step (rank 0, first thread):");
    for (int k = 0; k < STEP_KINDS; k++)
        if (total && r->run.step_ns[k] * 200 > total)
            fprintf(stderr, " %s %.1f%%", step_name(k), 100.0 * (double)r->run.step_ns[k] / (double)total);
    fprintf(stderr, "\n");
}

static void print_table(const struct session *x, const struct run_stats *s, const struct engine_stats *en,
                        const struct rank_report *all, int n)
{
    fprintf(stderr, "\n%s, level %s, %d thread%s a rank, %d rank%s (%s)\n", cpu_model_name(),
            cpu_level_name(team_options(x->team)->level), team_threads(x->team),
            team_threads(x->team) > 1 ? "s" : "", n, n > 1 ? "s" : "", team_transport(x->team));
    fprintf(stderr, "load            %8.3f s\n", x->load_s);
    if (s->requests) {
        fprintf(stderr, "TTFT            %8.1f ms mean, %.1f ms longest\n",
                1e3 * s->ttft_sum_s / (double)s->requests, 1e3 * s->ttft_max_s);
        if (s->tpot_n)
            fprintf(stderr, "TPOT            %8.2f ms a token, mean of requests\n",
                    1e3 * s->tpot_sum_s / (double)s->tpot_n);
    }
    fprintf(stderr, "prefill         %8llu tokens in %.3f s: %.1f tokens/s\n",
            (unsigned long long)en->prefill_tokens, en->prefill_s, rate(en->prefill_tokens, en->prefill_s));
    fprintf(stderr, "decode          %8llu tokens in %.3f s: %.1f tokens/s\n",
            (unsigned long long)en->decode_tokens, en->decode_s, rate(en->decode_tokens, en->decode_s));
    fprintf(stderr, "requests        %8lld, %lld prompt and %lld output tokens in %.3f s, %llu preemptions\n",
            (long long)s->requests, (long long)s->prompt_tokens, (long long)s->output_tokens, s->wall_s,
            (unsigned long long)en->preemptions);
    for (int i = 0; i < n; i++)
        fprintf(stderr,
                "rank %-3d        weights %.1f MiB, KV %.1f MiB reserved, work %.1f MiB, load %.3f s, %s\n",
                i, mib(all[i].run.weight_bytes), mib(all[i].run.kv_bytes), mib(all[i].run.work_bytes),
                all[i].load_s, all[i].where);
    fprintf(stderr, "KV              %zu bytes a token and rank, at most %d pages of %d in use\n",
            plan_kv_token_bytes(team_plan(x->team)), en->pages_used_max, team_options(x->team)->n_pages);
    if (n > 1) {
        fprintf(stderr, "collectives\n");
        print_comm(all, n, en->prefill_s + en->decode_s);
    }
    print_steps(&all[0]);
}

static json_t *rank_json(const struct rank_report *r)
{
    json_t *comm = json_object(), *steps = json_object();
    for (int k = 0; k < COMM_KINDS; k++)
        if (r->comm.calls[k])
            json_object_set_new(comm, comm_names[k],
                                json_pack("{s:I, s:I, s:f}", "calls", (json_int_t)r->comm.calls[k], "bytes",
                                          (json_int_t)r->comm.bytes[k], "seconds",
                                          (double)r->comm.ns[k] * 1e-9));
    for (int k = 0; k < STEP_KINDS; k++)
        if (r->run.step_ns[k])
            json_object_set_new(steps, step_name(k), json_real((double)r->run.step_ns[k] * 1e-9));
    return json_pack("{s:s, s:f, s:I, s:I, s:I, s:o, s:o}", "where", r->where, "load_s", r->load_s,
                     "weight_bytes", (json_int_t)r->run.weight_bytes, "kv_bytes", (json_int_t)r->run.kv_bytes,
                     "work_bytes", (json_int_t)r->run.work_bytes, "collectives", comm, "step_seconds", steps);
}

static int write_json(const struct session *x, const struct run_stats *s, const struct engine_stats *en,
                      const struct rank_report *all, int n, struct err *e)
{
    json_t *ranks = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(ranks, rank_json(&all[i]));
    json_t *o = json_pack(
        "{s:s, s:s, s:i, s:s, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:I, s:f, s:I, s:o}", "cpu",
        cpu_model_name(), "level", cpu_level_name(team_options(x->team)->level), "threads",
        team_threads(x->team), "transport", team_transport(x->team), "load_s", x->load_s, "requests",
        (json_int_t)s->requests, "prompt_tokens", (json_int_t)s->prompt_tokens, "output_tokens",
        (json_int_t)s->output_tokens, "wall_s", s->wall_s, "ttft_mean_s",
        s->requests ? s->ttft_sum_s / (double)s->requests : 0.0, "tpot_mean_s",
        s->tpot_n ? s->tpot_sum_s / (double)s->tpot_n : 0.0, "prefill_tokens", (json_int_t)en->prefill_tokens,
        "prefill_s", en->prefill_s, "decode_tokens", (json_int_t)en->decode_tokens, "decode_s", en->decode_s,
        "preemptions", (json_int_t)en->preemptions, "ranks", ranks);
    const char *path = x->settings->stats_json;
    int rc = json_dump_file(o, path, JSON_INDENT(1)) ? err_errno(e, "cannot write %s", path) : 0;
    json_decref(o);
    return rc;
}

int stats_report(struct session *x, const struct run_stats *s, struct err *e)
{
    if (!x->settings->stats && !x->settings->stats_json)
        return 0;
    int n = team_size(x->team);
    struct rank_report *all;
    struct engine_stats en;
    XNEW_N(all, (size_t)n);
    engine_stats(x->engine, &en);
    int rc = team_report(x->team, all, e);
    if (!rc && x->settings->stats)
        print_table(x, s, &en, all, n);
    if (!rc && x->settings->stats_json)
        rc = write_json(x, s, &en, all, n, e);
    xfree(all);
    return rc;
}
