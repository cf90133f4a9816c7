/* sampler.c: top-k, top-p and min-p are all thresholds in one order of tokens (higher logit first, then lower
 * id), so nothing is ever sorted: a selection finds the last token that survives, and one pass in order of id
 * keeps what is not behind it. The draw walks the survivors in order of id, too. A vocabulary has 150 000
 * entries, and all this happens once a token on one thread: hence the two bounds below that shrink the field
 * before anything is selected.
 */
#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/kernels.h"

#define LANES 1024 /* of the bound for top-k */

/* A candidate: its weight and its place among the candidates, which is their order by id. */
struct entry {
    float w;
    int32_t at;
};

struct sampler {
    int32_t n_vocab;
    struct kernels k;
    float *row;           /* [n_vocab] logits after penalties */
    uint32_t *count;      /* [n_vocab] all zero between calls */
    int32_t *id;          /* [n_vocab] candidates, increasing */
    float *w;             /* [n_vocab] their weights: exp((logit - highest) / temperature) */
    int32_t *pick;        /* [n_vocab] some of the candidates */
    float *value;         /* [n_vocab] room to select in */
    struct entry *ranked; /* [n_vocab] the same */
};

struct sampler *sampler_new(int32_t n_vocab)
{
    struct sampler *s;
    XNEW(s);
    size_t n = (size_t)n_vocab;
    s->n_vocab = n_vocab;
    kernels_init(&s->k, cpu_level_native()); /* exp has the same bits at each level */
    XNEW_N(s->row, n);
    XNEW_N(s->count, n);
    XNEW_N(s->id, n);
    XNEW_N(s->w, n);
    XNEW_N(s->pick, n);
    XNEW_N(s->value, n + LANES);
    XNEW_N(s->ranked, n);
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    xfree(s->row);
    xfree(s->count);
    xfree(s->id);
    xfree(s->w);
    xfree(s->pick);
    xfree(s->value);
    xfree(s->ranked);
    xfree(s);
}

int sampling_check(const struct sampling *p, struct err *e)
{
    /* written so that NaN fails */
    if (!(p->temperature >= 0 && p->temperature <= 1e6))
        return err_set(e, ERR_USAGE, "temperature is %g; legal are 0 (greedy) to 1e6", p->temperature);
    if (p->top_k < 0)
        return err_set(e, ERR_USAGE, "top_k is %d; legal are 0 (off) and above", p->top_k);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return err_set(e, ERR_USAGE, "top_p is %g; legal are 0 to 1 (off)", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return err_set(e, ERR_USAGE, "min_p is %g; legal are 0 (off) to 1", p->min_p);
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 1e6))
        return err_set(e, ERR_USAGE, "repetition_penalty is %g; legal is above 0, up to 1e6; 1 is off",
                       p->repetition_penalty);
    if (!(fabs(p->presence_penalty) <= 1e6) || !(fabs(p->frequency_penalty) <= 1e6))
        return err_set(e, ERR_USAGE,
                       "presence_penalty is %g and frequency_penalty %g; legal are -1e6 to 1e6; 0 is off",
                       p->presence_penalty, p->frequency_penalty);
    return 0;
}

/* --- penalties --- */

static bool in_vocab(const struct sampler *s, int32_t id)
{
    return id >= 0 && id < s->n_vocab;
}

/* transformers' RepetitionPenaltyLogitsProcessor, in float as there: once for each token seen, however often.
 */
static void penalise_repetition(struct sampler *s, float penalty, const int32_t *tokens, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t t = tokens[i];
        if (in_vocab(s, t) && !s->count[t]++)
            s->row[t] = s->row[t] < 0 ? s->row[t] * penalty : s->row[t] / penalty;
    }
    for (int32_t i = 0; i < n; i++)
        if (in_vocab(s, tokens[i]))
            s->count[tokens[i]] = 0;
}

/* OpenAI's: logit -= count * frequency + (count > 0) * presence. */
static void penalise_output(struct sampler *s, const struct sampling *p, const int32_t *output, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (in_vocab(s, output[i]))
            s->count[output[i]]++;
    for (int32_t i = 0; i < n; i++) {
        int32_t t = output[i];
        if (!in_vocab(s, t) || !s->count[t])
            continue;
        s->row[t] -= (float)(s->count[t] * p->frequency_penalty + p->presence_penalty);
        s->count[t] = 0;
    }
}

/* The logits to choose from: the input itself if nothing changes them. */
static const float *penalised(struct sampler *s, const struct sampling *p, const struct sampler_input *in)
{
    bool repetition = p->repetition_penalty != 1 && in->n_prompt + in->n_output > 0;
    bool openai = (p->presence_penalty != 0 || p->frequency_penalty != 0) && in->n_output > 0;
    if (!repetition && !openai && !in->n_banned)
        return in->logits;
    memcpy(s->row, in->logits, sizeof(float) * (size_t)s->n_vocab);
    if (repetition)
        penalise_repetition(s, (float)p->repetition_penalty, in->tokens, in->n_prompt + in->n_output);
    if (openai)
        penalise_output(s, p, in->tokens + in->n_prompt, in->n_output);
    for (int32_t i = 0; i < in->n_banned; i++)
        if (in_vocab(s, in->banned[i]))
            s->row[in->banned[i]] = -INFINITY;
    return s->row;
}

/* --- selecting --- */

/* The highest finite logit of each lane j: ids j, j + lanes, ... Elementwise, for the vectoriser. */
static void lane_maxima(const float *x, int32_t n, float *max, int32_t lanes)
{
    for (int32_t j = 0; j < lanes; j++)
        max[j] = -INFINITY;
    for (int32_t i = 0; i < n; i += lanes) {
        int32_t m = MIN(lanes, n - i);
        for (int32_t j = 0; j < m; j++) {
            float v = x[i + j] <= FLT_MAX ? x[i + j] : -INFINITY;
            max[j] = v > max[j] ? v : max[j];
        }
    }
}

static float highest(const float *x, int32_t n)
{
    float max[64], m = -INFINITY;
    lane_maxima(x, n, max, (int32_t)ARRAY_LEN(max));
    for (size_t j = 0; j < ARRAY_LEN(max); j++)
        m = max[j] > m ? max[j] : m;
    return m;
}

#define BLOCK 32

static bool reaches(const float *x /* [BLOCK] */, float bound)
{
    int any = 0;
    for (int i = 0; i < BLOCK; i++)
        any |= x[i] >= bound;
    return any;
}

/* Where x is finite and at least `bound`: the places, increasing. Mostly these are few, so blocks are skipped
 * whole. */
static int32_t gather(const float *x, int32_t n, float bound, int32_t *at)
{
    int32_t m = 0;
    bound = MAX(bound, -FLT_MAX);
    for (int32_t i = 0; i < n; i += BLOCK) {
        if (n - i >= BLOCK && !reaches(x + i, bound))
            continue;
        for (int32_t j = i; j < MIN(i + BLOCK, n); j++)
            if (x[j] >= bound && x[j] <= FLT_MAX)
                at[m++] = j;
    }
    return m;
}

/* A pivot's place. Pseudo-random, so that no row is a bad one; the same each time, so that sums are, too. */
static int32_t pivot_in(uint32_t *state, int32_t lo, int32_t hi)
{
    *state = *state * 1664525u + 1013904223u;
    return lo + (int32_t)(((uint64_t)*state * (uint64_t)(hi - lo)) >> 32);
}

/* The k-th highest of x[0..n), 1 <= k <= n; permutes x (Hoare's selection: equals are shared between both
 * sides). */
static float select_highest(float *x, int32_t n, int32_t k)
{
    uint32_t state = 1;
    int32_t lo = 0, hi = n - 1, want = k - 1;
    while (lo < hi) {
        float pivot = x[pivot_in(&state, lo, hi + 1)];
        int32_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (want <= j)
            hi = j;
        else if (want >= i)
            lo = i;
        else
            break;
    }
    return x[want];
}

/* Logits below this one are out by top-k; -inf if none are. */
static float top_k_bound(struct sampler *s, const float *row, int32_t k)
{
    if (!k || k >= s->n_vocab)
        return -INFINITY;
    /* Each lane's highest is a token of its own: at least k tokens reach the k-th highest of those. */
    float at_least = -INFINITY;
    if (k <= LANES / 2) {
        lane_maxima(row, s->n_vocab, s->value, LANES);
        at_least = select_highest(s->value, LANES, k);
    }
    int32_t n = gather(row, s->n_vocab, at_least, s->pick);
    for (int32_t i = 0; i < n; i++)
        s->value[i] = row[s->pick[i]];
    return n <= k ? at_least : select_highest(s->value, n, k);
}

static bool before(struct entry a, struct entry b)
{
    return a.w > b.w || (a.w == b.w && a.at < b.at);
}

/* The last of x[0..n) that is kept when the sum of those before each must be below `mass`; permutes x. */
static struct entry select_mass(struct entry *x, int32_t n, double mass)
{
    uint32_t state = 1;
    double above = 0; /* the weight of all that lies before x[lo] */
    struct entry last = x[0];
    for (int32_t lo = 0, hi = n; lo < hi;) {
        int32_t at = pivot_in(&state, lo, hi), mid = lo;
        struct entry pivot = x[at];
        double sum = 0;
        x[at] = x[hi - 1];
        for (int32_t i = lo; i < hi - 1; i++) {
            struct entry t = x[i];
            bool first = before(t, pivot);
            sum += first ? (double)t.w : 0;
            x[i] = x[mid];
            x[mid] = t;
            mid += first;
        }
        x[hi - 1] = x[mid];
        x[mid] = pivot;
        if (mid > lo && above + sum >= mass) {
            hi = mid;
        } else { /* the pivot is kept */
            last = pivot;
            above += sum + (double)pivot.w;
            lo = above >= mass ? hi : mid + 1;
        }
    }
    return last;
}

static double sum_of(const float *w, int32_t n)
{
    double lane[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int32_t j = 0; j < 8; j++)
            lane[j] += (double)w[i + j];
    for (int32_t j = 0; i + j < n; j++)
        lane[j] += (double)w[i + j];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* Where top-p ends among the n candidates. */
static struct entry top_p_end(struct sampler *s, int32_t n, double top_p)
{
    double total = sum_of(s->w, n);
    /* Those below this weight sum to less than what top-p drops from the bottom, so they are all dropped. */
    double at_least = (1 - top_p) * total / n * 0.999; /* less a hair: rounding must not empty the field */
    int32_t m = gather(s->w, n, (float)at_least, s->pick);
    for (int32_t i = 0; i < m; i++)
        s->ranked[i] = (struct entry){s->w[s->pick[i]], s->pick[i]};
    return select_mass(s->ranked, m, top_p * total);
}

/* Fills id and w with the survivors in order of id; returns how many. */
static int32_t survivors(struct sampler *s, const struct sampling *p, const float *row)
{
    float top = highest(row, s->n_vocab);
    if (top == -INFINITY)
        return 0;
    float bound = p->top_k == 1 ? top : top_k_bound(s, row, p->top_k);
    /* Differences before division: no temperature, however low, can overflow. */
    float inverse = (float)MIN(1 / p->temperature, (double)FLT_MAX);
    int32_t n = gather(row, s->n_vocab, bound, s->id);
    for (int32_t i = 0; i < n; i++)
        s->value[i] = (row[s->id[i]] - top) * inverse;
    s->k.rows.exp(s->value, n, s->w);
    struct entry end = {0, n};
    if (p->top_p < 1)
        end = top_p_end(s, n, p->top_p);
    float at_least =
        MAX(MAX(end.w, (float)p->min_p), FLT_MIN); /* what is too small for a float is never drawn */
    int32_t m = gather(s->w, n, at_least, s->pick), kept = 0;
    for (int32_t i = 0; i < m; i++) {
        int32_t at = s->pick[i];
        if (s->w[at] == end.w && at > end.at)
            continue; /* equals the last one kept, but comes after it */
        s->id[kept] = s->id[at];
        s->w[kept++] = s->w[at];
    }
    return kept;
}

/* --- choosing --- */

static bool is_greedy(const struct sampling *p)
{
    return p->greedy || p->temperature == 0;
}

static int32_t argmax(const float *x, int32_t n)
{
    float top = highest(x, n);
    if (top == -INFINITY)
        return -1;
    int32_t i = 0;
    while (x[i] != top)
        i++;
    return i;
}

int32_t sampler_draw(struct sampler *s, const struct sampling *p, const struct sampler_input *in)
{
    const float *row = penalised(s, p, in);
    if (is_greedy(p))
        return argmax(row, s->n_vocab);
    int32_t n = survivors(s, p, row);
    if (!n)
        return -1;
    double u = sampler_uniform(p->seed, (uint64_t)in->n_prompt + (uint64_t)in->n_output);
    double target = u * sum_of(s->w, n), sum = 0;
    int32_t i = 0;
    while (i < n - 1 && (sum += (double)s->w[i]) <= target)
        i++;
    return s->id[i];
}

int32_t sampler_distribution(struct sampler *s, const struct sampling *p, const struct sampler_input *in,
                             int32_t *ret_ids, double *ret_probs)
{
    const float *row = penalised(s, p, in);
    if (is_greedy(p)) {
        ret_ids[0] = argmax(row, s->n_vocab);
        ret_probs[0] = 1;
        return ret_ids[0] >= 0;
    }
    int32_t n = survivors(s, p, row);
    double total = sum_of(s->w, n);
    for (int32_t i = 0; i < n; i++) {
        ret_ids[i] = s->id[i];
        ret_probs[i] = (double)s->w[i] / total;
    }
    return n;
}

/* --- random numbers --- */

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)b;
        c2 = n2;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

double sampler_uniform(uint64_t seed, uint64_t position)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    philox4x32(counter, key, r);
    uint64_t bits = (uint64_t)r[1] << 32 | r[0];
    return (double)(bits >> 11) * 0x1p-53;
}
