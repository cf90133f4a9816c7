/* experts.c: routing, and the experts of a layer: tokens grouped by expert, each expert's matrices met by all
 * its tokens.
 *
 * A pair is a (token, chosen expert) with the expert on this rank. SORT counts them once per layer into an
 * index that the other steps read; pairs are ordered by expert, then token. A rank may have none: its steps
 * then do nothing.
 *
 * Arithmetic of the sum, defined to the bit: for one token, over chunks c of the EXPERT axis (kernels/sum.h,
 * the same cuts as a split over ranks has), S_c = fmaf over the chosen experts e of the chunk in increasing
 * e, from +0, of (weight_e, y_e); chunks are joined by the tree. So ranks that hold whole chunks keep the
 * bits of one rank.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "exec/internal.h"

/* --- routing --- */

static float sigmoid(float x)
{
    return 1.0f / (1.0f + yk_expf(-x));
}

static void scores_of(const struct routing *r, const float *logits, int32_t n, float *score)
{
    if (r->sigmoid) {
        for (int32_t i = 0; i < n; i++)
            score[i] = sigmoid(logits[i]);
        return;
    }
    float max = logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += score[i] = yk_expf(logits[i] - max);
    for (int32_t i = 0; i < n; i++)
        score[i] /= sum;
}

/* Index of the largest of v[0..n) that is not taken; ties to the lower index. */
static int32_t best(const float *v, int32_t n, const uint8_t *taken)
{
    int32_t at = -1;
    for (int32_t i = 0; i < n; i++)
        if (!taken[i] && (at < 0 || v[i] > v[at]))
            at = i;
    return at;
}

/* Experts outside the best groups are marked as taken. */
static void keep_best_groups(const struct routing *r, const float *decide, int32_t n, uint8_t *taken)
{
    int32_t size = n / r->n_group;
    float worth[ROUTE_MAX_EXPERTS];
    uint8_t kept[ROUTE_MAX_EXPERTS] = {0};
    for (int32_t g = 0; g < r->n_group; g++) {
        const float *v = decide + g * size;
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = 0; i < size; i++)
            if (v[i] > first) {
                second = first;
                first = v[i];
            } else if (v[i] > second) {
                second = v[i];
            }
        worth[g] = r->group_top2 ? first + second : first;
    }
    for (int32_t i = 0; i < r->topk_group; i++)
        kept[best(worth, r->n_group, kept)] = 1;
    for (int32_t i = 0; i < n; i++)
        taken[i] = !kept[i / size];
}

/* choice: k expert numbers (as int32 bits), then their k weights, experts increasing. */
static void route_row(const struct routing *r, const float *logits, const float *bias, int32_t n,
                      float *choice)
{
    float score[ROUTE_MAX_EXPERTS], decide[ROUTE_MAX_EXPERTS], sum = 0;
    uint8_t taken[ROUTE_MAX_EXPERTS] = {0};
    scores_of(r, logits, n, score);
    for (int32_t i = 0; i < n; i++)
        decide[i] = bias ? score[i] + bias[i] : score[i];
    if (r->n_group > 1)
        keep_best_groups(r, decide, n, taken);
    uint8_t chosen[ROUTE_MAX_EXPERTS] = {0};
    for (int32_t j = 0; j < r->k; j++) {
        int32_t e = best(decide, n, taken);
        taken[e] = chosen[e] = 1;
    }
    int32_t at = 0;
    for (int32_t e = 0; e < n; e++)
        if (chosen[e]) {
            memcpy(&choice[at], &e, sizeof(e));
            choice[r->k + at++] = score[e];
            sum += score[e];
        }
    for (int32_t j = 0; j < r->k; j++) {
        float w = choice[r->k + j];
        if (r->normalise)
            w /= r->sigmoid ? sum + 1e-20f : sum;
        choice[r->k + j] = w * r->scale;
    }
}

void step_route(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out);
    const struct routing *routing = &r->plan->graph->routings[r->plan->graph->ops[s->op].routing];
    const float *bias = s->in[1] >= 0 ? r->weights->vec[slot_of(r, s->in[1])->weight] : NULL;
    int begin, end;
    pool_share(slot_rows(r, out), ith, nth, &begin, &end);
    for (int i = begin; i < end; i++)
        route_row(routing, slot_row(r, in, i), bias, in->width, slot_row(r, out, i));
}

void step_gate(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *x = slot_of(r, s->in[0]), *g = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    int begin, end;
    pool_share(slot_rows(r, out), ith, nth, &begin, &end);
    for (int i = begin; i < end; i++)
        r->k.rows.scale(slot_row(r, x, i), sigmoid(*(const float *)slot_row(r, g, i)), out->width,
                        slot_row(r, out, i));
}

/* --- the index --- */

/* In the index slot's memory, for n experts here and T tokens with k choices each. */
struct index {
    int32_t *first; /* [n + 1]: pairs of expert e are first[e] .. first[e + 1] */
    int32_t *token; /* [pairs]: whose */
    int32_t *place; /* [T * k]: the pair of a token's j-th choice; -1: that expert is elsewhere. Spread
                     * experts: its row among what goes out and comes back; -1: another rank of this replica
                     * sent it out */
    int32_t n, k;
    struct range stack;
};

static struct index index_of(const struct run *r, int32_t slot, const struct plan_weight *w)
{
    struct index x = {.n = range_n(w->stack), .k = r->plan->graph->axis_n[AX_CHOICE] / 2, .stack = w->stack};
    x.first = slot_row(r, slot_of(r, slot), 0);
    x.token = x.first + x.n + 2;
    x.place = x.token + slot_of(r, slot)->bytes / sizeof(int32_t) - (size_t)(x.n + 2) -
              (size_t)r->plan->opt.max_tokens * (size_t)x.k; /* the pairs at most */
    return x;
}

static const struct plan_weight *weight_of(const struct run *r, int32_t slot)
{
    return &r->plan->weights[slot_of(r, slot)->weight];
}

/* The layer's choices are known: what is not in memory is read from here on, while others compute. */
static void want_experts(struct run *r, const struct plan_weight *gate, const struct index *x)
{
    if (r->weights->cache)
        expert_cache_want(r->weights->cache, gate->expert_layer, x->first);
}

/* A counting sort: first[] counts, then marks where the next pair of each expert goes, then is shifted back.
 */
void step_expert_sort(struct run *r, const struct step *s, int ith, int nth)
{
    if (ith)
        return;
    struct index x = index_of(r, s->out, weight_of(r, s->in[1]));
    const struct slot *choice = slot_of(r, s->in[0]);
    int32_t n_tokens = r->batch->n_tokens;
    memset(x.first, 0, sizeof(int32_t) * (size_t)(x.n + 2));
    for (int32_t t = 0; t < n_tokens; t++)
        for (int32_t j = 0; j < x.k; j++) {
            int32_t e = ((const int32_t *)slot_row(r, choice, t))[j] - x.stack.begin;
            if (e >= 0 && e < x.n)
                x.first[e + 2]++;
        }
    for (int32_t e = 0; e < x.n; e++)
        x.first[e + 2] += x.first[e + 1];
    for (int32_t t = 0; t < n_tokens; t++)
        for (int32_t j = 0; j < x.k; j++) {
            int32_t e = ((const int32_t *)slot_row(r, choice, t))[j] - x.stack.begin,
                    *place = &x.place[t * x.k + j];
            *place = e >= 0 && e < x.n ? x.first[e + 1]++ : -1;
            if (*place >= 0)
                x.token[*place] = t;
        }
    r->n_pairs = x.first[x.n];
    if (r->expert_load)
        for (int32_t e = 0; e < x.n; e++)
            r->expert_load[x.stack.begin + e] += (uint64_t)(x.first[e + 1] - x.first[e]);
    want_experts(r, weight_of(r, s->in[1]), &x);
}

void step_expert_gather(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out);
    const struct plan_weight *gate = &r->plan->weights[r->plan->slots[s->in[2]].weight];
    struct index x = index_of(r, s->in[1], gate);
    int begin, end;
    pool_share(r->n_pairs, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++)
        memcpy(slot_row(r, out, i), slot_row(r, in, x.token[i]), out->row_bytes);
}

/* --- the matrices --- */

/* Streaming a panel costs about as much as a few tokens' products, however few tokens there are. */
#define PANEL_COST 4

typedef void panels_fn(struct run *r, const struct step *s, const struct index *x, int32_t e, int32_t p0,
                       int32_t p1, int ith);

/* One of the step's calls to share: member ith of nth. */
struct sharing {
    int32_t n_panels;
    int ith, nth;
    panels_fn *panels;
};

/* Calls `panels` for this thread's contiguous share of all (expert, panel) tasks of n experts, by cost. list:
 * which ones, in an order that all threads have; NULL: 0 to n. */
static void share_panels(struct run *r, const struct step *s, const struct index *x, const int32_t *list,
                         int32_t n_list, const struct sharing *h)
{
    int64_t total = 0, at = 0, n_panels = h->n_panels;
    for (int32_t i = 0; i < n_list; i++) {
        int32_t e = list ? list[i] : i;
        int64_t n = x->first[e + 1] - x->first[e];
        total += n ? (n + PANEL_COST) * n_panels : 0;
    }
    int64_t begin = total * h->ith / h->nth, end = total * (h->ith + 1) / h->nth;
    for (int32_t i = 0; i < n_list && at < end; i++) {
        int32_t e = list ? list[i] : i;
        int64_t n = x->first[e + 1] - x->first[e], each = n + PANEL_COST;
        if (!n)
            continue;
        /* panel p of this expert is mine if its beginning at + p * each lies in [begin, end) */
        int64_t p0 = MAX(begin - at + each - 1, 0) / each, p1 = MAX(end - at + each - 1, 0) / each;
        p0 = MIN(p0, n_panels);
        p1 = MIN(p1, n_panels);
        if (p0 < p1)
            h->panels(r, s, x, e, (int32_t)p0, (int32_t)p1, h->ith);
        at += each * n_panels;
    }
}

/* All of a step's tasks. With a cache those of experts that are here come first, shared as ever, then each of
 * the others by itself, as it is read: nobody waits while there is something to do. */
static void all_panels(struct run *r, const struct step *s, const struct index *x, int ith, int nth,
                       panels_fn *panels)
{
    const struct sharing h = {(slot_of(r, s->out)->width + WMAT_PANEL - 1) / WMAT_PANEL, ith, nth, panels};
    int32_t here, n;
    if (!r->weights->cache) {
        share_panels(r, s, x, NULL, x->n, &h);
        return;
    }
    const int32_t *order = expert_cache_order(r->weights->cache, &here, &n);
    share_panels(r, s, x, order, here, &h);
    for (int32_t i = here; i < n; i++)
        share_panels(r, s, x, &order[i], 1, &h);
}

/* The matrix of expert e in a slot of weights. */
static struct wmat expert_mat(struct run *r, const struct slot *weight, int32_t e, int ith)
{
    struct wmat m = slot_mat(r, weight)[e];
    if (r->weights->cache) {
        const struct plan_weight *w = &r->plan->weights[weight->weight];
        const struct expert_layer *l = &r->plan->expert_layers[w->expert_layer];
        m.data = expert_cache_wait(r->weights->cache, e, ith) + l->at[weight->weight - l->weight];
    }
    return m;
}

static void multiply(struct run *r, const struct wmat *w, const struct slot *in, const struct slot *out,
                     const struct index *x, int32_t e, int32_t p0, int32_t p1)
{
    int32_t first = x->first[e], n = x->first[e + 1] - first;
    r->k.matmul.mul[w->dtype](w, slot_row(r, in, first), in->row_bytes, n, p0, p1, slot_row(r, out, first),
                              (size_t)out->width);
}

static void up_panels(struct run *r, const struct step *s, const struct index *x, int32_t e, int32_t p0,
                      int32_t p1, int ith)
{
    const struct slot *in = slot_of(r, s->in[0]), *h = slot_of(r, s->out), *up = slot_of(r, s->tmp);
    int kind = r->plan->graph->ops[s->op].glu;
    const struct wmat gate_mat = expert_mat(r, slot_of(r, s->in[2]), e, ith),
                      up_mat = expert_mat(r, slot_of(r, s->in[3]), e, ith);
    multiply(r, &gate_mat, in, h, x, e, p0, p1);
    multiply(r, &up_mat, in, up, x, e, p0, p1);
    int32_t c0 = p0 * WMAT_PANEL, c1 = MIN(p1 * WMAT_PANEL, h->width);
    for (int32_t i = x->first[e]; i < x->first[e + 1]; i++) {
        float *g = (float *)slot_row(r, h, i) + c0;
        r->k.rows.glu[kind](g, (const float *)slot_row(r, up, i) + c0, c1 - c0, g);
    }
}

void step_expert_up(struct run *r, const struct step *s, int ith, int nth)
{
    struct index x = index_of(r, s->in[1], weight_of(r, s->in[2]));
    all_panels(r, s, &x, ith, nth, up_panels);
}

static void down_panels(struct run *r, const struct step *s, const struct index *x, int32_t e, int32_t p0,
                        int32_t p1, int ith)
{
    const struct wmat down = expert_mat(r, slot_of(r, s->in[2]), e, ith);
    multiply(r, &down, slot_of(r, s->in[0]), slot_of(r, s->out), x, e, p0, p1);
}

/* An expert that could not be read fails the tick, as a lost rank does; the others must hear of it, or they
 * would wait in the next collective. Everything has been waited for by now. */
static void note_failed_reads(struct run *r)
{
    if (!r->weights->cache || r->err.code || !expert_cache_failed(r->weights->cache, &r->err))
        return;
    comm_abort(r->opt.pipe ? r->opt.pipe : r->comm, r->err.msg);
}

void step_expert_down(struct run *r, const struct step *s, int ith, int nth)
{
    struct index x = index_of(r, s->in[1], weight_of(r, s->in[2]));
    if (ith == 0)
        note_failed_reads(r);
    all_panels(r, s, &x, ith, nth, down_panels);
}

/* --- the sum --- */

/* The chunk of the EXPERT axis that expert e lies in. */
static int chunk_of(const struct plan *p, int32_t e)
{
    int c = 0;
    while (plan_part(p, AX_EXPERT, c, YOKE_CHUNKS).end <= e)
        c++;
    return c;
}

/* One token's row, elements [from, to) at a time: every element goes through its own tree. */
static void combine_row(const struct run *r, const struct index *x, const struct slot *pairs,
                        const float *choice, const int32_t *place, const int8_t *chunk, int c0, int c1,
                        float *y, int32_t width)
{
    for (int32_t i = 0; i < width; i++) {
        struct tree t = {0};
        int32_t j = 0;
        for (int c = c0; c < c1; c++) {
            float sum = 0;
            for (; j < x->k; j++) {
                int32_t e;
                memcpy(&e, &choice[j], sizeof(e));
                if (place[j] < 0)
                    continue;
                if (chunk[e] != c)
                    break;
                sum = fmaf(choice[x->k + j], ((const float *)slot_row(r, pairs, place[j]))[i], sum);
            }
            tree_push(&t, sum);
        }
        y[i] = tree_join(&t);
    }
}

void step_expert_combine(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *pairs = slot_of(r, s->in[0]), *choice = slot_of(r, s->in[2]),
                      *out = slot_of(r, s->out);
    const struct plan *p = r->plan;
    struct index x = index_of(r, s->in[1], weight_of(r, s->in[3]));
    int8_t chunk[ROUTE_MAX_EXPERTS];
    int ep = p->opt.ep, group = p->opt.rank / plan_expert_slices(p), c0 = 0, c1 = YOKE_CHUNKS, begin, end;
    for (int32_t e = 0; e < p->graph->axis_n[AX_EXPERT]; e++)
        chunk[e] = (int8_t)chunk_of(p, e);
    if (YOKE_CHUNKS % ep == 0) {
        c0 = group * YOKE_CHUNKS / ep;
        c1 = c0 + YOKE_CHUNKS / ep;
    }
    pool_share(slot_rows(r, out), ith, nth, &begin, &end);
    for (int i = begin; i < end; i++)
        combine_row(r, &x, pairs, slot_row(r, choice, i), x.place + (size_t)i * (size_t)x.k, chunk, c0, c1,
                    slot_row(r, out, i), out->width);
}

/* --- spread experts ---
 *
 * Each replica has tokens of its own. Of a replica's ranks, rank i sends out tokens i, i + tp, ...: one row
 * for each chosen expert, to the ranks of the group that has it. Each of them computes with its slice of the
 * expert; the parts come back in the order in which the rows went, and whoever sent a token adds the parts of
 * each expert, by the tree that one rank has over the same columns, then the experts, by the same tree as
 * ever. Its replica's other ranks have zeros, and their all-reduce adds only those. No token is dropped; a
 * rank without work takes part with nothing.
 *
 * Rows go by rank: group after group and, in a group, once for each of its ranks. So a group's first copy
 * lies at (rows for the groups before it) x slices, and its further ones follow, each as long.
 */

static void fill_owners(const struct plan *p, int16_t *owner /* [experts]: the group that has it */)
{
    for (int o = 0; o < p->opt.ep; o++) {
        struct range r = plan_part(p, AX_EXPERT, o, p->opt.ep);
        for (int32_t e = r.begin; e < r.end; e++)
            owner[e] = (int16_t)o;
    }
}

/* Calls the body for each (token, choice) that this rank sends out, in one fixed order. */
#define FOR_EACH_SENT(r, t, j, k)                                                                            \
    for (int32_t t = (r)->plan->opt.rank; t < (r)->batch->n_tokens; t += (r)->plan->opt.tp)                  \
        for (int32_t j = 0; j < (k); j++)

/* The first copy of each group's rows is there: makes the others. */
static void copy_to_slices(const struct run *r, uint8_t *rows, size_t row_bytes)
{
    int slices = plan_expert_slices(r->plan);
    for (int o = 0; o < r->plan->opt.ep; o++) {
        size_t n = r->spread_send[o * slices] * row_bytes;
        for (int i = 1; i < slices; i++)
            memcpy(rows + (size_t)i * n, rows, n);
        rows += (size_t)slices * n;
    }
}

/* Fills x->place, and `sent` with the experts' numbers in the order of the rows. Returns how many. */
static int32_t number_rows(struct run *r, const struct slot *choice, const struct index *x, int32_t *sent)
{
    int slices = plan_expert_slices(r->plan), ep = r->plan->opt.ep;
    int16_t owner[ROUTE_MAX_EXPERTS];
    int32_t n[PLAN_MAX_RANKS] = {0}, at[PLAN_MAX_RANKS], all = 0;
    fill_owners(r->plan, owner);
    FOR_EACH_SENT(r, t, j, x->k)
    {
        n[owner[((const int32_t *)slot_row(r, choice, t))[j]]]++;
    }
    for (int o = 0; o < ep; o++) {
        at[o] = all;
        all += n[o] * slices;
        for (int i = 0; i < slices; i++)
            r->spread_send[o * slices + i] = (size_t)n[o];
    }
    FOR_EACH_SENT(r, t, j, x->k)
    {
        int32_t e = ((const int32_t *)slot_row(r, choice, t))[j];
        sent[x->place[t * x->k + j] = at[owner[e]]++] = e;
    }
    copy_to_slices(r, (uint8_t *)sent, sizeof(*sent));
    return all;
}

/* From spread_send of all ranks, each rank's spread_recv. */
static int swap_counts(struct run *r)
{
    size_t one[PLAN_MAX_RANKS];
    for (int i = 0; i < r->opt.experts->size; i++)
        one[i] = sizeof(r->spread_send[0]);
    return comm_alltoall(r->opt.experts, r->spread_send, one, r->spread_recv, one, &r->err);
}

/* One row for each rank of the group to and fro. */
static void swap_rows(struct run *r, const void *out, const size_t *n_out, void *in, const size_t *n_in,
                      size_t row_bytes)
{
    size_t send[PLAN_MAX_RANKS], recv[PLAN_MAX_RANKS];
    for (int i = 0; i < r->opt.experts->size; i++) {
        send[i] = n_out[i] * row_bytes;
        recv[i] = n_in[i] * row_bytes;
    }
    comm_alltoall(r->opt.experts, out, send, in, recv, &r->err);
}

void step_expert_spread(struct run *r, const struct step *s, int ith, int nth)
{
    if (ith)
        return;
    struct index x = index_of(r, s->out, weight_of(r, s->in[1]));
    memset(x.first, 0, sizeof(int32_t) * (size_t)(x.n + 2));
    for (int32_t i = 0; i < r->batch->n_tokens * x.k; i++)
        x.place[i] = -1;
    r->n_pairs = 0;
    if (r->err.code) /* the steps that follow find an index without pairs */
        return;
    int32_t *sent = slot_row(r, slot_of(r, s->tmp), 0);
    int32_t *got = sent + number_rows(r, slot_of(r, s->in[0]), &x, sent), n = 0;
    if (swap_counts(r))
        return;
    swap_rows(r, sent, r->spread_send, got, r->spread_recv, sizeof(*sent));
    if (r->err.code)
        return;
    for (int i = 0; i < r->opt.experts->size; i++)
        n += (int32_t)r->spread_recv[i];
    assert((size_t)(got + n - sent) * sizeof(*sent) <= slot_of(r, s->tmp)->bytes);
    for (int32_t i = 0; i < n; i++)
        x.first[got[i] - x.stack.begin + 2]++;
    for (int32_t e = 0; e < x.n; e++)
        x.first[e + 2] += x.first[e + 1];
    for (int32_t i = 0; i < n; i++)
        x.token[x.first[got[i] - x.stack.begin + 1]++] = i; /* "token": the row that came in */
    r->n_pairs = n;
    for (int32_t e = 0; e < x.n && r->expert_load; e++)
        r->expert_load[x.stack.begin + e] += (uint64_t)(x.first[e + 1] - x.first[e]);
    want_experts(r, weight_of(r, s->in[1]), &x);
}

void step_expert_exchange(struct run *r, const struct step *s, int ith, int nth)
{
    if (ith || r->err.code)
        return;
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out), *tmp = slot_of(r, s->tmp);
    struct index x = index_of(r, s->in[1], weight_of(r, s->in[2]));
    FOR_EACH_SENT(r, t, j, x.k)
    {
        memcpy(slot_row(r, tmp, x.place[t * x.k + j]), slot_row(r, in, t), in->row_bytes);
    }
    copy_to_slices(r, slot_row(r, tmp, 0), in->row_bytes);
    swap_rows(r, slot_row(r, tmp, 0), r->spread_send, slot_row(r, out, 0), r->spread_recv, in->row_bytes);
}

void step_expert_return(struct run *r, const struct step *s, int ith, int nth)
{
    if (ith || r->err.code)
        return;
    const struct slot *y = slot_of(r, s->in[0]), *out = slot_of(r, s->out), *tmp = slot_of(r, s->tmp);
    struct index x = index_of(r, s->in[1], weight_of(r, s->in[2]));
    for (int32_t i = 0; i < r->n_pairs; i++)
        memcpy(slot_row(r, tmp, x.token[i]), slot_row(r, y, i), y->row_bytes);
    swap_rows(r, slot_row(r, tmp, 0), r->spread_recv, slot_row(r, out, 0), r->spread_send, y->row_bytes);
}

/* The parts of one pair, into the first of them: the tree of kernels/sum.h, level by level. */
static void add_slices(const struct run *r, const struct slot *back, int32_t first, int32_t apart, int n,
                       int32_t width)
{
    for (int step = 1; step < n; step *= 2)
        for (int i = 0; i + step < n; i += 2 * step) {
            float *y = slot_row(r, back, first + i * apart);
            r->k.rows.add(y, slot_row(r, back, first + (i + step) * apart), width, y);
        }
}

/* A token's rows in `back` belong to the thread that has the token: it adds there. */
void step_expert_join(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *back = slot_of(r, s->in[0]), *choice = slot_of(r, s->in[2]), *out = slot_of(r, s->out);
    const struct plan *p = r->plan;
    struct index x = index_of(r, s->in[1], weight_of(r, s->in[3]));
    int slices = plan_expert_slices(p), begin, end;
    int16_t owner[ROUTE_MAX_EXPERTS];
    int8_t chunk[ROUTE_MAX_EXPERTS];
    fill_owners(p, owner);
    for (int32_t e = 0; e < p->graph->axis_n[AX_EXPERT]; e++)
        chunk[e] = (int8_t)chunk_of(p, e);
    pool_share(slot_rows(r, out), ith, nth, &begin, &end);
    for (int t = begin; t < end; t++) {
        const int32_t *expert = slot_row(r, choice, t), *place = x.place + (size_t)t * (size_t)x.k;
        for (int32_t j = 0; j < x.k && slices > 1; j++)
            if (place[j] >= 0)
                add_slices(r, back, place[j], (int32_t)r->spread_send[owner[expert[j]] * slices], slices,
                           out->width);
        combine_row(r, &x, back, slot_row(r, choice, t), place, chunk, 0, YOKE_CHUNKS, slot_row(r, out, t),
                    out->width);
    }
}
