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

static void print_comm(const struct rank_report *all, int n, double run_s)
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
                    run_s > 0 ? (double)ns * 1e-7 / run_s : 0.0);
    }
}

/* --- experts: pairs are (token, chosen expert), over all layers --- */

struct load {
    int32_t n, busiest;                           /* experts; which one */
    uint64_t *pairs;                              /* [n] */
    double sum, expert_imbalance, rank_imbalance; /* largest over mean; 0: nothing computed */
};

/* The stage whose ranks are least evenly loaded. Other stages have other layers: they are not compared. */
static double imbalance_of_ranks(const struct team_options *o, const struct rank_report *all, int n)
{
    double worst = 0;
    for (int stage = 0; stage < o->pp; stage++) {
        double sum = 0, max = 0, count = 0;
        for (int i = 0; i < n; i++) {
            if (i / o->tp % o->pp != stage)
                continue;
            sum += (double)all[i].run.pairs;
            max = MAX(max, (double)all[i].run.pairs);
            count++;
        }
        if (sum > 0)
            worst = MAX(worst, max * count / sum);
    }
    return worst;
}

/* experts: [ranks, experts]; NULL: ret->n is 0. */
static void load_init(struct load *ret, const struct session *x, const struct rank_report *all,
                      const uint64_t *experts, int ranks)
{
    uint64_t slices = (uint64_t)plan_expert_slices(team_plan(x->team)); /* each counted the same pairs */
    *ret = (struct load){.n = experts ? x->graph->axis_n[AX_EXPERT] : 0};
    XNEW_N(ret->pairs, (size_t)ret->n);
    for (int32_t e = 0; e < ret->n; e++) {
        for (int i = 0; i < ranks; i++)
            ret->pairs[e] += experts[(size_t)i * (size_t)ret->n + (size_t)e];
        ret->pairs[e] /= slices;
        ret->sum += (double)ret->pairs[e];
        if (ret->pairs[e] > ret->pairs[ret->busiest])
            ret->busiest = e;
    }
    if (ret->sum > 0)
        ret->expert_imbalance = (double)ret->pairs[ret->busiest] * ret->n / ret->sum;
    if (ret->n)
        ret->rank_imbalance = imbalance_of_ranks(team_options(x->team), all, ranks);
}

static void print_load(const struct load *l, int ranks)
{
    if (!l->n || l->sum <= 0)
        return;
    fprintf(stderr,
            "experts         %.0f token-expert pairs; busiest: expert %d with %.2f%%, average %.2f%%; "
            "imbalance %.2f over experts",
            l->sum, l->busiest, 100.0 * (double)l->pairs[l->busiest] / l->sum, 100.0 / l->n,
            l->expert_imbalance);
    if (ranks > 1)
        fprintf(stderr, ", %.2f over ranks", l->rank_imbalance);
    fprintf(stderr, "\n");
}

static json_t *load_json(const struct load *l)
{
    json_t *pairs = json_array();
    for (int32_t e = 0; e < l->n; e++)
        json_array_append_new(pairs, json_integer((json_int_t)l->pairs[e]));
    return json_pack("{s:o, s:f, s:f}", "pairs", pairs, "imbalance_experts", l->expert_imbalance,
                     "imbalance_ranks", l->rank_imbalance);
}

/* --- experts on disk --- */

static double hit_rate(const struct expert_cache_stats *c)
{
    uint64_t wanted = c->hits + c->misses;
    return wanted ? (double)c->hits / (double)wanted : 1;
}

static void print_caches(const struct session *x, const struct rank_report *all, int n)
{
    for (int i = 0; i < n && x->settings->expert_cache; i++) {
        const struct expert_cache_stats *c = &all[i].run.cache;
        if (!c->records) {
            fprintf(stderr, "expert cache    rank %d: all its experts are in memory\n", i);
            continue;
        }
        fprintf(stderr,
                "expert cache    rank %d: %d of %d experts in %.1f MiB (room for %d); %.1f%% of %llu wanted "
                "were there; "
                "%llu read, %.1f MiB; computing waited %.3f s for them\n",
                i, c->held, c->records, mib(c->memory_bytes), c->slots, 100 * hit_rate(c),
                (unsigned long long)(c->hits + c->misses), (unsigned long long)c->misses, mib(c->read_bytes),
                (double)c->wait_ns * 1e-9);
    }
}

static json_t *cache_json(const struct expert_cache_stats *c)
{
    return json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:I, s:f}", "experts", c->records, "slots",
                     c->slots, "held", c->held, "memory_bytes", (json_int_t)c->memory_bytes, "hits",
                     (json_int_t)c->hits, "misses", (json_int_t)c->misses, "hit_rate", hit_rate(c),
                     "read_bytes", (json_int_t)c->read_bytes, "wait_s", (double)c->wait_ns * 1e-9);
}

/* --- the pipeline --- */

/* In ticks, less what was spent waiting for the neighbouring stages. */
static double busy_s(const struct rank_report *r)
{
    uint64_t waiting = r->run.step_ns[OP_SEND] + r->run.step_ns[OP_RECV];
    return (double)(r->run.tick_ns - MIN(waiting, r->run.tick_ns)) * 1e-9;
}

/* The part of the time with ticks under way in which the rank had nothing to do. */
static double bubble_of(const struct rank_report *r, const struct engine_stats *en)
{
    double wall = en->prefill_s + en->decode_s;
    return wall > 0 ? MAX(1 - busy_s(r) / wall, 0) : 0;
}

/* Ticks in flight of a replica, over the time. */
static double in_flight(const struct session *x, const struct engine_stats *en)
{
    double wall = en->prefill_s + en->decode_s;
    return wall > 0 ? en->flying_s / wall / team_options(x->team)->dp : 0;
}

/* docs/speed.md, "Pipeline": what equal stages without delays would idle, for want of ticks. */
static double bubble_theory(const struct session *x, const struct engine_stats *en)
{
    return en->ticks ? MAX(1 - in_flight(x, en) / team_options(x->team)->pp, 0) : 0;
}

static void print_bubble(const struct session *x, const struct engine_stats *en,
                         const struct rank_report *all, int n)
{
    const struct team_options *o = team_options(x->team);
    if (o->pp == 1 || !en->ticks)
        return;
    fprintf(stderr, "bubble          %.1f%% in theory (%d stages, %.2f ticks in flight a replica)",
            100 * bubble_theory(x, en), o->pp, in_flight(x, en));
    for (int stage = 0; stage < o->pp; stage++) {
        double most = 1, least = 0;
        for (int i = 0; i < n; i++)
            if (i / o->tp % o->pp == stage) {
                most = MIN(most, bubble_of(&all[i], en));
                least = MAX(least, bubble_of(&all[i], en));
            }
        fprintf(stderr, "%s stage %d %.1f%%", stage ? "," : "; measured:", stage, 100 * most);
        if (least - most >= 0.001)
            fprintf(stderr, " to %.1f%%", 100 * least);
    }
    fprintf(stderr, "\n");
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
                        const struct rank_report *all, const struct load *load, int n)
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
    print_bubble(x, en, all, n);
    print_load(load, n);
    print_caches(x, all, n);
    print_steps(&all[0]);
}

static json_t *rank_json(const struct rank_report *r, const struct engine_stats *en)
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
    json_t *o = json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "where", r->where, "load_s",
                          r->load_s, "weight_bytes", (json_int_t)r->run.weight_bytes, "kv_bytes",
                          (json_int_t)r->run.kv_bytes, "work_bytes", (json_int_t)r->run.work_bytes,
                          "expert_pairs", (json_int_t)r->run.pairs, "busy_s", busy_s(r), "bubble",
                          bubble_of(r, en), "collectives", comm, "step_seconds", steps);
    if (r->run.cache.records)
        json_object_set_new(o, "expert_cache", cache_json(&r->run.cache));
    return o;
}

static int write_json(const struct session *x, const struct run_stats *s, const struct engine_stats *en,
                      const struct rank_report *all, const struct load *load, int n, struct err *e)
{
    json_t *ranks = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(ranks, rank_json(&all[i], en));
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
    if (load->n)
        json_object_set_new(o, "experts", load_json(load));
    if (team_options(x->team)->pp > 1)
        json_object_set_new(o, "pipeline",
                            json_pack("{s:i, s:f, s:f}", "stages", team_options(x->team)->pp,
                                      "ticks_in_flight", in_flight(x, en), "bubble_theory",
                                      bubble_theory(x, en)));
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
    struct load load;
    uint64_t *experts = NULL;
    XNEW_N(all, (size_t)n);
    if (x->graph->axis_n[AX_EXPERT])
        XNEW_N(experts, (size_t)n * (size_t)x->graph->axis_n[AX_EXPERT]);
    engine_stats(x->engine, &en);
    int rc = team_report(x->team, all, experts, e);
    load_init(&load, x, all, experts, n);
    if (!rc && x->settings->stats)
        print_table(x, s, &en, all, &load, n);
    if (!rc && x->settings->stats_json)
        rc = write_json(x, s, &en, all, &load, n, e);
    xfree(load.pairs);
    xfree(experts);
    xfree(all);
    return rc;
}
