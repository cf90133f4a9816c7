#include "plan/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "plan/internal.h"

const char *cost_part_name(enum cost_part p)
{
    static const char *const names[COST_PARTS] = {
        "reading weights",         "arithmetic", "attention", "norms and gates", "threads meeting",
        "all-reduces in the host", "network"};
    return names[p];
}

/* Per core: docs/speed.md, AVX2, at 3/4 of the clock measured there, since 64 cores do not run at 4.1 GHz. */
void cost_machine_default(struct cost_machine *m, int hosts, int cores, double memory)
{
    static const struct {
        enum dtype t;
        double one, many; /* GB/s, GMAC/s */
    } rates[] = {{DT_F32, 35.5, 47},   {DT_F16, 33.2, 47},   {DT_BF16, 29.9, 48},  {DT_F8_E4M3, 16.1, 40},
                 {DT_Q8_0, 37.7, 88},  {DT_Q4_0, 34.9, 138}, {DT_Q4_1, 34.4, 137}, {DT_Q5_0, 32.2, 120},
                 {DT_Q5_1, 33.4, 119}, {DT_Q4_K, 33.3, 132}, {DT_Q5_K, 30.5, 115}, {DT_Q6_K, 32.2, 90},
                 {DT_I8C, 38.0, 100},  {DT_I4G, 34.9, 138}};
    *m = (struct cost_machine){.hosts = hosts,
                               .cores = cores,
                               .domains = MAX(1, cores / 32),
                               .memory = memory,
                               .host_read = 5.4e9 * cores,
                               .core_read = 20e9,
                               .numa_share = 0.75,
                               .end_one_s = 0.06e-9,
                               .end_many_s = 0.3e-9,
                               .score_macs = 60,
                               .attend_one = 40e9,
                               .attend_many = 46e9,
                               .row_bytes_s = 34e9,
                               .step_s = 0.7e-6,
                               .barrier_s = 0.7e-6,
                               .local = {3e-6, 10e9},
                               .net = {30e-6, 11.25e9}};
    m->core_read = MIN(m->core_read, m->host_read);
    for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
        m->one[rates[i].t] = 0.75e9 * rates[i].one;
        m->many[rates[i].t] = 0.75e9 * rates[i].many;
    }
}

/* --- the shape, read off a plan ---------------------------------------------------------------------- */

static double record_bytes(const struct slot *s, int kind)
{
    return kind == SLOT_WORK ? (double)s->row_bytes : 0;
}

static void add_matmul(struct cost_layer *l, const struct plan_weight *w)
{
    double stack = range_n(w->stack), macs = (double)range_n(w->row) * range_n(w->col) * stack;
    l->bytes[w->dtype] += (double)w->bytes;
    l->macs[w->dtype] += macs;
    l->ends[w->dtype] += MAX(stack * range_n(w->row) * w->cuts.n - macs / COST_CHUNK, 0);
}

static void add_expert(struct cost_layer *l, const struct plan_weight *w)
{
    double stack = MAX(range_n(w->stack), 1);
    l->expert_bytes[w->dtype] += (double)w->bytes / stack;
    double macs = (double)range_n(w->row) * range_n(w->col);
    l->expert_macs[w->dtype] += macs;
    l->expert_ends[w->dtype] += MAX((double)range_n(w->row) * w->cuts.n - macs / COST_CHUNK, 0);
}

static void add_attend(const struct plan *p, struct cost_layer *l, const struct step *s)
{
    const struct slot *kv = NULL;
    for (int k = 0; k < STEP_MAX_IN; k++)
        if (s->in[k] >= 0 && p->slots[s->in[k]].kind == SLOT_KV)
            kv = &p->slots[s->in[k]];
    const struct slot *q = &p->slots[s->in[0]];
    if (!kv)
        return;
    double heads = (double)q->width / kv->kv.k_dim;
    l->scores += heads;
    l->attend_macs += heads * (kv->kv.k_dim + kv->kv.v_dim);
    l->kv_bytes += (double)kv->row_bytes / p->opt.page_tokens;
    l->window = s->op >= 0 ? p->graph->ops[s->op].attend.window : 0;
}

static const struct plan_weight *weight_of(const struct plan *p, int32_t slot)
{
    return slot >= 0 && p->slots[slot].kind == SLOT_WEIGHT ? &p->weights[p->slots[slot].weight] : NULL;
}

static void add_step(const struct plan *p, struct cost_layer *l, const struct step *s)
{
    const struct plan_weight *w;
    l->steps++;
    l->barriers += s->barrier;
    switch (s->kind) {
    case OP_MATMUL:
    case OP_ABSORB:
    case OP_EXPAND:
        if ((w = weight_of(p, s->in[1])) && w->matrix)
            add_matmul(l, w);
        return;
    case STEP_EXPERT_UP:
    case STEP_EXPERT_DOWN:
        for (int k = 1; k < STEP_MAX_IN; k++)
            if ((w = weight_of(p, s->in[k])) && w->matrix)
                add_expert(l, w);
        return;
    case OP_ATTEND:
        add_attend(p, l, s);
        return;
    case OP_ALLREDUCE:
    case OP_REDUCE_SCATTER:
        l->reduces++;
        l->reduce_bytes += (double)plan_step_bytes(p, s, 1);
        return;
    case OP_ALLGATHER:
    case OP_ALLTOALL:
        l->gathers++;
        l->gather_bytes += (double)plan_step_bytes(p, s, 1);
        return;
    default:
        for (int k = 0; k < STEP_MAX_IN; k++)
            if (s->in[k] >= 0)
                l->row_bytes += record_bytes(&p->slots[s->in[k]], p->slots[s->in[k]].kind);
        if (s->out >= 0)
            l->row_bytes += record_bytes(&p->slots[s->out], p->slots[s->out].kind);
    }
}

void cost_shape_of(const struct plan *p, struct cost_shape *ret)
{
    const struct graph *g = p->graph;
    *ret = (struct cost_shape){.tp = p->opt.tp,
                               .ep = p->opt.ep,
                               .experts = g->axis_n[AX_EXPERT],
                               .chosen = g->axis_n[AX_CHOICE] / 2,
                               .n_layers = g->n_layers,
                               .fewest_rows = plan_fewest_rows(g),
                               .hidden_bytes = 4.0 * g->axis_n[AX_EMBED],
                               .work_bytes = (double)p->work_bytes};
    XNEW_N(ret->layer, (size_t)g->n_layers + 2);
    int *of_slot, at = 0; /* the place in ret->layer where a weight is first used */
    XNEW_N(of_slot, (size_t)p->n_slots);
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct step *s = &p->steps[i];
        at = s->layer >= 0 ? s->layer + 1 : at > 0 ? g->n_layers + 1 : 0;
        add_step(p, &ret->layer[at], s);
        for (int k = 0; k < STEP_MAX_IN; k++)
            if (weight_of(p, s->in[k]) && !of_slot[s->in[k]])
                of_slot[s->in[k]] = at + 1;
    }
    for (int32_t i = 0; i < p->n_weights; i++) {
        int where = MAX(of_slot[p->weights[i].slot] - 1, 0);
        ret->layer[where].held_bytes += (double)p->weights[i].bytes;
    }
    xfree(of_slot);
    XNEW_N(ret->stage_cost, (size_t)g->n_layers + 1);
    memcpy(ret->stage_cost, p->stage_cost, ((size_t)g->n_layers + 1) * sizeof(*ret->stage_cost));
}

void cost_shape_release(struct cost_shape *s)
{
    xfree(s->layer);
    xfree(s->stage_cost);
    s->layer = NULL;
    s->stage_cost = NULL;
}

/* --- parts of a tick --------------------------------------------------------------------------------- */

static double log2_of(double n)
{
    return n > 1 ? log2(n) : 0;
}

double cost_allreduce(const struct cost_machine *m, int n, int spans, double bytes, double *ret_net)
{
    int here = MAX(n / spans, 1);
    *ret_net = 0;
    if (spans > 1) /* the hosts' leaders: reduce-scatter and all-gather, or as many rounds if it is small */
        *ret_net =
            2 * ceil(log2_of(spans)) * m->net.latency_s + 2.0 * (spans - 1) / spans * bytes / m->net.bytes_s;
    return here > 1 ? m->local.latency_s * log2_of(here) + 2.0 * (here - 1) / here * bytes / m->local.bytes_s
                    : 0;
}

/* Every rank gets every other one's part. */
static double allgather(const struct cost_machine *m, int n, int spans, double part, double *ret_net)
{
    int here = MAX(n / spans, 1);
    *ret_net =
        spans > 1 ? ceil(log2_of(spans)) * m->net.latency_s + (double)(n - here) * part / m->net.bytes_s : 0;
    return here > 1 ? m->local.latency_s * log2_of(here) + (double)(n - 1) * part / m->local.bytes_s : 0;
}

/* Mean of the largest of `groups` counts with this mean and variance, as for normal ones. */
static double largest(double mean, double variance, int groups)
{
    return mean + sqrt(2 * MAX(variance, 0) * log(groups));
}

double cost_experts_read(int n, int k, int ep, double tokens)
{
    double active = n * (1 - pow(1 - (double)k / n, tokens)), mean = active / ep;
    double variance =
        n > 1 ? mean * (1 - 1.0 / ep) * (n - active) / (n - 1) : 0; /* drawn without repetition */
    return MIN(largest(mean, variance, ep), MIN(active, (n + ep - 1) / ep));
}

double cost_experts_pairs(int n, int k, int ep, double tokens)
{
    double pairs = tokens * k, mean = pairs / ep;
    return MIN(largest(mean, mean * (1 - 1.0 / ep), ep), tokens * MIN(k, (n + ep - 1) / ep));
}

struct tick {
    double rows, outs; /* tokens; wanted logits */
    double sees;       /* positions that all its queries together see */
    double cached;     /* positions that are read, of all its sequences */
    bool single;       /* one query a sequence */
};

/* Bandwidth of one rank when `active` ranks of its host work. */
static double rank_read(const struct cost_machine *m, int threads, double active)
{
    double in_domain = (double)m->cores / m->domains, share = m->host_read / MAX(active, 1);
    if (threads > in_domain + 0.5)
        share *= m->numa_share;
    else
        share = MIN(share, m->host_read / m->domains);
    return MIN(share, threads * m->core_read);
}

struct place { /* of a rank, for one tick */
    const struct cost_machine *m;
    const struct cost_shape *s;
    int threads, spans;
    double read; /* bytes/s */
};

/* first: what a tick's first token (or an expert's) takes, which is the reading; more: tokens after it. */
static void matmul_time(const struct place *at, enum dtype t, double bytes, double first, double more,
                        double macs, double ends, double *parts)
{
    const struct cost_machine *m = at->m;
    parts[PART_READ] += first * bytes / MIN(at->read, at->threads * m->one[t]);
    parts[PART_MATH] +=
        (more * macs / m->many[t] + ends * (first * m->end_one_s + more * m->end_many_s)) / at->threads;
}

static void layer_time(const struct place *at, const struct cost_layer *l, const struct tick *k, double rows,
                       double *parts)
{
    const struct cost_machine *m = at->m;
    const struct cost_shape *s = at->s;
    double more = MAX(rows - 1, 0), net;
    double read = s->experts ? cost_experts_read(s->experts, s->chosen, s->ep, rows) : 0;
    double pairs = s->experts ? cost_experts_pairs(s->experts, s->chosen, s->ep, rows) : 0;
    for (int t = 0; t < DT_COUNT; t++) {
        if (l->bytes[t] > 0)
            matmul_time(at, (enum dtype)t, l->bytes[t], 1, more, l->macs[t], l->ends[t], parts);
        if (l->expert_bytes[t] > 0) /* an expert's first pair is the reading */
            matmul_time(at, (enum dtype)t, l->expert_bytes[t], read, MAX(pairs - read, 0), l->expert_macs[t],
                        l->expert_ends[t], parts);
    }
    if (l->attend_macs > 0) {
        double seen = k->sees, cached = k->cached;
        if (l->window && k->rows > 0 && seen > k->rows * l->window) {
            cached *= l->window * k->rows / seen;
            seen = k->rows * l->window;
        }
        parts[PART_ATTEND] += l->kv_bytes * cached / MIN(at->read, at->threads * m->one[DT_F16]) +
                              (l->attend_macs + l->scores * m->score_macs) * seen / at->threads /
                                  (k->single ? m->attend_one : m->attend_many);
    }
    parts[PART_ROWS] += l->row_bytes * rows / m->row_bytes_s / MIN(MAX(rows, 1), at->threads);
    parts[PART_SYNC] += l->barriers * m->barrier_s * log2_of(at->threads) + l->steps * m->step_s;
    if (l->reduces) {
        double each = l->reduce_bytes * rows / l->reduces;
        parts[PART_LOCAL] += l->reduces * cost_allreduce(m, s->tp, at->spans, each, &net);
        parts[PART_NET] += l->reduces * net;
    }
    if (l->gathers) {
        double each = l->gather_bytes * rows / l->gathers;
        parts[PART_LOCAL] += l->gathers * allgather(m, s->tp, at->spans, each, &net);
        parts[PART_NET] += l->gathers * net;
    }
}

static double total(const double *parts)
{
    double sum = 0;
    for (int i = 0; i < COST_PARTS; i++)
        sum += parts[i];
    return sum;
}

/* A tick through one stage: layers [from, to) and what lies outside them; then on to the next one. */
static double stage_time(const struct place *at, const struct tick *k, int from, int to, bool to_other_host,
                         double *parts)
{
    const struct cost_shape *s = at->s;
    double mine[COST_PARTS] = {0};
    if (from == 0)
        layer_time(at, &s->layer[0], k, k->rows, mine);
    for (int l = from; l < to; l++)
        layer_time(at, &s->layer[l + 1], k, k->rows, mine);
    if (to == s->n_layers)
        layer_time(at, &s->layer[to + 1], k, k->outs, mine);
    else {
        const struct cost_link *link = to_other_host ? &at->m->net : &at->m->local;
        mine[to_other_host ? PART_NET : PART_LOCAL] +=
            link->latency_s + s->hidden_bytes * k->rows / link->bytes_s;
    }
    for (int i = 0; i < COST_PARTS; i++)
        parts[i] += mine[i];
    return total(mine);
}

/* --- a whole split ----------------------------------------------------------------------------------- */

/* Of what comes after the layers: a tied table counts here too, as in stages.c. */
static double outer_bytes(const struct cost_shape *s)
{
    const struct cost_layer *last = &s->layer[s->n_layers + 1];
    double read = 0;
    for (int t = 0; t < DT_COUNT; t++)
        read += last->bytes[t];
    return MAX(read, last->held_bytes);
}

static double stage_weights(const struct cost_shape *s, int from, int to)
{
    double sum = 0;
    for (int l = from; l < to; l++)
        sum += s->layer[l + 1].held_bytes;
    if (from == 0)
        sum += s->layer[0].held_bytes;
    if (to == s->n_layers) /* a tied table is held once where one stage has both uses */
        sum += from > 0 ? outer_bytes(s) : s->layer[to + 1].held_bytes;
    return sum;
}

static double stage_kv(const struct cost_shape *s, int from, int to)
{
    double sum = 0;
    for (int l = from; l < to; l++)
        sum += s->layer[l + 1].kv_bytes;
    return sum;
}

static void memory_of(const struct cost_machine *m, const struct cost_shape *s, const struct cost_job *job,
                      const int *end, struct cost *c)
{
    const struct cost_split *x = &c->split;
    double most = -1, seqs = ceil((double)job->batch / x->dp);
    for (int i = 0; i < x->pp; i++) {
        int from = i ? end[i - 1] : 0;
        double w = stage_weights(s, from, end[i]), kv = stage_kv(s, from, end[i]) * seqs * job->context;
        if (w + kv > most) {
            most = w + kv;
            c->weight_bytes = w;
            c->kv_bytes = kv;
        }
    }
    c->work_bytes = s->work_bytes;
    c->host_bytes = (most + c->work_bytes) * x->tp * x->pp * x->dp / x->hosts;
    c->verdict = c->host_bytes > m->memory ? COST_TOO_BIG : COST_GOOD;
}

/* What the fullest rank does in one decoding tick: for the table, not for the times. */
static void count_tick(const struct cost_shape *s, const struct tick *k, int from, int to, struct cost *c)
{
    double read = 0, macs = 0, comm = 0;
    for (int i = from; i <= to; i++) {
        const struct cost_layer *l = &s->layer[i + 1];
        if (i == to && to < s->n_layers)
            break;
        double rows = i == s->n_layers ? k->outs : k->rows;
        for (int t = 0; t < DT_COUNT; t++) {
            read += l->bytes[t];
            macs += l->macs[t] * rows;
            if (l->expert_bytes[t] > 0) {
                read += l->expert_bytes[t] * cost_experts_read(s->experts, s->chosen, s->ep, rows);
                macs += l->expert_macs[t] * cost_experts_pairs(s->experts, s->chosen, s->ep, rows);
            }
        }
        read += l->kv_bytes * k->cached;
        macs += l->attend_macs * k->sees;
        comm += (l->reduce_bytes + l->gather_bytes) * rows;
    }
    if (read > c->read_bytes) {
        c->read_bytes = read;
        c->macs = macs;
    }
    c->comm_bytes = MAX(c->comm_bytes, comm + (to < s->n_layers ? s->hidden_bytes * k->rows : 0));
}

void cost_estimate(const struct cost_machine *m, const struct cost_shape *s, const struct cost_split *split,
                   const struct cost_job *job, struct cost *ret)
{
    struct cost c = {.split = *split};
    int *end, per_host = split->tp * split->pp * split->dp / split->hosts;
    XNEW_N(end, (size_t)split->pp);
    stages_cut(s->stage_cost, s->n_layers, split->pp, end);
    memory_of(m, s, job, end, &c);
    for (int i = 0; i < s->n_layers + 2; i++)
        for (int t = 0; t < DT_COUNT; t++)
            if ((s->layer[i].bytes[t] > 0 || s->layer[i].expert_bytes[t] > 0) &&
                !(m->one[t] > 0 && m->many[t] > 0))
                c.verdict = COST_NO_FORMAT;
    struct place at = {.m = m, .s = s, .threads = split->threads, .spans = 1};
    if (split->tp > per_host)
        at.spans = split->tp / per_host;
    c.tp_crosses = at.spans > 1;
    int here = split->tp / at.spans; /* of a tensor group, on one host */
    if (c.verdict == COST_NO_FORMAT) {
        xfree(end);
        *ret = c;
        return;
    }

    /* a prompt that comes alone: its first chunk goes through all stages, the others follow at the pace of
     * the slowest */
    double prompt_slowest = 0;
    at.read = rank_read(m, split->threads, here);
    for (int done = 0, n; done < job->prompt; done += n) {
        n = MIN(job->prompt - done,
                plan_prompt_rows(job->prompt - done, split->pp, s->fewest_rows, job->chunk));
        struct tick k = {.rows = n,
                         .outs = done + n == job->prompt,
                         .sees = (double)n * done + (double)n * (n + 1) / 2,
                         .cached = done + n,
                         .single = n == 1};
        double slowest = 0, through = 0;
        for (int i = 0; i < split->pp; i++) {
            bool away = (int64_t)(i + 1) * split->tp / per_host != (int64_t)i * split->tp / per_host;
            double t = stage_time(&at, &k, i ? end[i - 1] : 0, end[i], away, c.prefill);
            slowest = MAX(slowest, t);
            through += t;
        }
        prompt_slowest += slowest;
        c.ttft += done ? slowest : through;
    }

    /* decoding: each replica's sequences in as many ticks as it has stages, if it has that many */
    double seqs = ceil((double)job->batch / split->dp), ticks = MIN(seqs, split->pp),
           rows = ceil(seqs / ticks);
    double middle = job->prompt + job->answer / 2.0;
    struct tick k = {
        .rows = rows, .outs = rows, .sees = rows * middle, .cached = rows * middle, .single = true};
    double slowest = 0;
    int replicas = MIN(split->dp, job->batch);
    at.read = rank_read(m, split->threads, MAX(here, per_host * ticks / split->pp * replicas / split->dp));
    for (int i = 0; i < split->pp; i++) {
        int from = i ? end[i - 1] : 0;
        bool away = (int64_t)(i + 1) * split->tp / per_host != (int64_t)i * split->tp / per_host;
        double t = stage_time(&at, &k, from, end[i], away, c.decode);
        slowest = MAX(slowest, t);
        count_tick(s, &k, from, end[i], &c);
    }
    double through = total(c.decode);
    c.tpot = MAX(through, ticks * slowest);
    c.wait_s = c.tpot - through;

    double steps = MAX(job->answer - 1, 0);
    c.answer = job->answer;
    c.prompts_s = c.ttft + (seqs - 1) * prompt_slowest;
    c.answer_s = c.ttft + c.tpot * steps;
    c.throughput = (double)job->batch * job->answer / (c.prompts_s + c.tpot * steps);
    xfree(end);
    *ret = c;
}

/* --- the choice -------------------------------------------------------------------------------------- */

/* Powers of two, and what divides `n`, up to most, in order. */
static int degrees(int n, int most, int *ret)
{
    int count = 0;
    for (int d = 1; d <= most && count < 64; d++)
        if (!(d & (d - 1)) || n % d == 0)
            ret[count++] = d;
    return count;
}

static bool allowed(int fixed, int d)
{
    return !fixed || fixed == d;
}

/* Ranks of a host and threads of a rank, or false where it does not come out even. */
static bool place_ranks(const struct cost_machine *m, struct cost_split *x)
{
    int ranks = x->tp * x->pp * x->dp, per_host = ranks / x->hosts;
    if (ranks % x->hosts || per_host > m->cores || (x->tp <= per_host ? per_host % x->tp : x->tp % per_host))
        return false;
    x->threads = m->cores / per_host;
    return true;
}

struct search {
    const struct cost_machine *m;
    const struct cost_job *job;
    const struct cost_split *fixed;
    struct cost *v;
    size_t n, cap;
};

static void try_places(struct search *f, const struct cost_shape *s)
{
    const struct cost_machine *m = f->m;
    int hosts[64], pp[64], dp[64], n_hosts = degrees(m->hosts, m->hosts, hosts);
    int n_pp = degrees(m->hosts, MIN(s->n_layers, 256), pp), n_dp = degrees(m->hosts, 256, dp);
    if (f->fixed->pp)
        pp[0] = f->fixed->pp, n_pp = f->fixed->pp <= s->n_layers;
    if (f->fixed->dp)
        dp[0] = f->fixed->dp, n_dp = 1;
    for (int h = 0; h < n_hosts; h++)
        for (int i = 0; i < n_pp; i++)
            for (int j = 0; j < n_dp; j++) {
                struct cost_split x = {s->tp, pp[i], s->ep, dp[j], hosts[h], 0};
                if (x.dp > f->job->batch && !f->fixed->dp) /* a replica without a sequence */
                    continue;
                if (x.dp > 1 && x.ep > 1) /* spread experts are not in the model */
                    continue;
                if (!allowed(f->fixed->hosts, x.hosts) || !place_ranks(m, &x))
                    continue;
                XGROW(f->v, f->n, f->cap);
                cost_estimate(m, s, &x, f->job, &f->v[f->n++]);
            }
}

static double badness(const struct cost *c, enum cost_goal goal)
{
    return goal == GOAL_LATENCY ? c->answer_s : 1 / c->throughput;
}

static int by_latency(const void *a, const void *b);
static int by_throughput(const void *a, const void *b);

static int compare(const struct cost *a, const struct cost *b, enum cost_goal goal)
{
    if ((a->verdict == COST_GOOD) != (b->verdict == COST_GOOD))
        return a->verdict == COST_GOOD ? -1 : 1;
    if (a->verdict != COST_GOOD)
        return (a->host_bytes > b->host_bytes) - (a->host_bytes < b->host_bytes);
    double x = badness(a, goal), y = badness(b, goal);
    if (x != y)
        return x < y ? -1 : 1;
    int n = a->split.tp * a->split.pp * a->split.dp, k = b->split.tp * b->split.pp * b->split.dp;
    return n != k ? n - k : a->split.hosts - b->split.hosts;
}

static int by_latency(const void *a, const void *b)
{
    return compare(a, b, GOAL_LATENCY);
}
static int by_throughput(const void *a, const void *b)
{
    return compare(a, b, GOAL_THROUGHPUT);
}

/* Times across hosts are the least certain: within 3 in a hundred a split that needs no all-reduce there is
 * taken. Then, within one in a hundred of that, fewest hosts and ranks. */
static void prefer_few(struct cost *v, size_t n, enum cost_goal goal)
{
    size_t best = 0, good = 0;
    while (good < n && v[good].verdict == COST_GOOD)
        good++;
    for (size_t i = 1; i < good && v[best].tp_crosses && badness(&v[i], goal) <= 1.03 * badness(&v[0], goal);
         i++)
        if (!v[i].tp_crosses)
            best = i;
    double most = 1.01 * (good ? badness(&v[best], goal) : 0);
    for (size_t i = best + 1; i < good && badness(&v[i], goal) <= most; i++) {
        const struct cost_split *x = &v[i].split, *y = &v[best].split;
        int fewer =
            x->hosts != y->hosts ? y->hosts - x->hosts : y->tp * y->pp * y->dp - x->tp * x->pp * x->dp;
        if (fewer > 0 && v[i].tp_crosses <= v[best].tp_crosses)
            best = i;
    }
    struct cost c = v[best];
    memmove(&v[1], &v[0], best * sizeof(*v));
    v[0] = c;
}

/* Experts sliced over all ranks, one whole on each, or some of each. */
static bool worth_trying(const struct graph *g, int tp, int ep)
{
    bool two = !(ep & (ep - 1));
    return ep == 1 || (g->axis_n[AX_EXPERT] && tp % ep == 0 && (ep == tp || two));
}

int cost_advise(const struct graph *g, const struct plan_options *o, const struct cost_machine *m,
                const struct cost_job *job, enum cost_goal goal, const struct cost_split *fixed,
                struct cost **ret, size_t *ret_n, struct err *e)
{
    struct search f = {.m = m, .job = job, .fixed = fixed};
    int tp[64], n_tp = degrees(m->cores, MIN(m->cores * MIN(m->hosts, 8), 128), tp), rc = 0;
    if (fixed->tp)
        tp[0] = fixed->tp, n_tp = 1;
    for (int i = 0; i < n_tp; i++)
        for (int ep = MAX(fixed->ep, 1); ep <= MAX(fixed->ep, tp[i]); ep++) {
            if (fixed->ep ? ep != fixed->ep : !worth_trying(g, tp[i], ep))
                continue;
            struct plan_options po = *o;
            struct plan *p;
            po.tp = tp[i];
            po.ep = ep;
            po.dp = 1; /* experts stay within a replica: what spreading them costs is not modelled */
            po.pp = 1;
            po.stage = 0;
            po.rank = po.tp - 1;
            int failed = plan_make(g, &po, &p, e);
            if (failed == ERR_SPLIT) {
                rc = failed;
                continue;
            }
            if (failed) {
                xfree(f.v);
                return failed;
            }
            struct cost_shape s;
            cost_shape_of(p, &s);
            try_places(&f, &s);
            cost_shape_release(&s);
            plan_free(p);
        }
    if (!f.n) {
        xfree(f.v);
        return rc && (fixed->tp || fixed->ep)
                   ? rc
                   : err_set(e, ERR_SPLIT, "no split of this model comes out even on %d host%s of %d cores",
                             m->hosts, m->hosts > 1 ? "s" : "", m->cores);
    }
    qsort(f.v, f.n, sizeof(*f.v), goal == GOAL_LATENCY ? by_latency : by_throughput);
    prefer_few(f.v, f.n, goal);
    *ret = f.v;
    *ret_n = f.n;
    return 0;
}

/* The part that grew most. */
static int worst_part(const double *a, const double *b, double *ret_more)
{
    int worst = 0;
    for (int i = 1; i < COST_PARTS; i++)
        if (a[i] - b[i] > a[worst] - b[worst])
            worst = i;
    *ret_more = a[worst] - b[worst];
    return worst;
}

const char *cost_why_not(const struct cost *c, const struct cost *best, const struct cost_machine *m,
                         enum cost_goal goal, char *buf, size_t n)
{
    if (c->verdict == COST_TOO_BIG) {
        snprintf(buf, n, "needs %.0f GiB a host of the %.0f there are", c->host_bytes / 0x1p30,
                 m->memory / 0x1p30);
        return buf;
    }
    if (c->verdict == COST_NO_FORMAT) {
        snprintf(buf, n, "no speed is known for its number format");
        return buf;
    }
    double ratio = badness(c, goal) / badness(best, goal), steps = MAX(c->answer - 1, 0);
    bool alone = goal == GOAL_LATENCY;
    double prompts = alone ? c->ttft - best->ttft : c->prompts_s - best->prompts_s;
    double decode = (c->tpot - best->tpot) * steps, more, waits = c->wait_s - best->wait_s;
    bool early = prompts > decode;
    int worst = worst_part(early ? c->prefill : c->decode, early ? best->prefill : best->decode, &more);
    const char *part = cost_part_name((enum cost_part)worst);
    if (c->tp_crosses && !best->tp_crosses && ratio <= 1)
        snprintf(buf, n, "%.2fx, if all-reduces between hosts are as fast as stated", ratio);
    else if (ratio <= 1.01)
        snprintf(buf, n, "as good, with more ranks or hosts");
    else if (early && !alone && c->ttft < best->ttft)
        snprintf(buf, n, "%.2fx: prompts follow each other, %.1f s more for all", ratio, prompts);
    else if (early)
        snprintf(buf, n, "%.2fx: %s in a prompt, %.1f ms more", ratio, part, more * 1e3);
    else if (waits > more)
        snprintf(buf, n, "%.2fx: waits for the fullest stage, %.1f ms a token", ratio, waits * 1e3);
    else
        snprintf(buf, n, "%.2fx: %s, %.1f ms more a token", ratio, part, more * 1e3);
    return buf;
}
