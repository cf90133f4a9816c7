/* yoke bench: the constants of the cost model, measured here in some ten seconds.
 *
 * Everything is timed in short pieces (milliseconds) and the best piece counts: what else runs on the machine
 * makes pieces slower, never faster. Bandwidths are of memory, not of caches.
 */
#include "cli/command.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "cli/machine.h"
#include "comm/comm.h"
#include "exec/pool.h"
#include "kernels/kernels.h"

#define AREA   ((size_t)256 << 20) /* walked through in pieces, so that no cache has the next one */
#define PIECE  ((size_t)32 << 20)
#define COLS   4096
#define BUDGET 0.25 /* seconds a figure */

struct bench {
    struct kernels k;
    struct cost_machine m;
    enum cpu_level level;
    int threads;
    uint8_t *area;
    json_t *read; /* GB/s by threads */
};

/* A matrix over all of the area, and 64 tokens to multiply it with. */
struct product {
    struct wmat w;
    uint8_t *act;
    size_t stride;
    float *y;
    size_t y_bytes;
};

static int product_init(struct bench *b, enum dtype t, int cols, struct product *p, struct err *e)
{
    struct cuts cuts = {.n = YOKE_CHUNKS};
    for (int c = 0; c <= YOKE_CHUNKS; c++)
        cuts.at[c] = cols / YOKE_CHUNKS * c;
    struct scale_blocks blocks = scale_blocks_at(128, 128, 0, 0);
    for (int pass = 0, rows = WMAT_PANEL; pass < 2; pass++) { /* first to learn a panel's size */
        if (t == DT_F8_E4M3)
            wmat_init_f8(&p->w, rows, cols, &blocks, &cuts);
        else
            wmat_init(&p->w, t, rows, cols, 0, &cuts);
        rows = WMAT_PANEL * (int)MIN(AREA / p->w.panel_bytes, (size_t)1 << 15);
    }
    p->w.data = b->area;
    struct act_layout a;
    act_layout_init(&a, act_kind_of(t), cols, &cuts);
    p->stride = a.kind == ACT_F32 ? cols * sizeof(float) : a.row_bytes;
    p->y_bytes = sizeof(float) * 64 * (size_t)p->w.rows;
    p->y = big_alloc(p->y_bytes, "bench results", e);
    if (!p->y)
        return ERR_MEMORY;
    p->act = xaligned(64, 64 * p->stride);
    float *x;
    XNEW_N(x, cols);
    for (int k = 0; k < cols; k++)
        x[k] = (float)(k % 17 - 8) * 0.125f;
    for (size_t i = 0; i < 64; i++) {
        if (a.kind == ACT_F32)
            memcpy(p->act + i * p->stride, x, p->stride);
        else
            b->k.matmul.quantize(&a, x, p->act + i * p->stride);
    }
    xfree(x);
    return 0;
}

static void product_release(struct product *p)
{
    xfree(p->act);
    big_free(p->y, p->y_bytes);
}

/* --- memory --- */

/* Memory is read as the fastest multiplication reads it: int8 weights, one token. */
struct reader {
    struct bench *b;
    struct wmat w;
    const void *act;
    float *y;
    int at, panels; /* of this piece */
};

static void read_part(void *ctx, int ith, int nth)
{
    struct reader *r = ctx;
    int begin, end;
    pool_share(r->panels, ith, nth, &begin, &end);
    r->b->k.matmul.mul[r->w.dtype](&r->w, r->act, 0, 1, r->at + begin, r->at + end, r->y, 0);
}

static double read_speed(struct reader *r, struct pool *p)
{
    double best = INFINITY, until = clock_s() + 2 * BUDGET;
    r->at = 0;
    while (clock_s() < until) {
        double since = clock_s();
        pool_run(p, read_part, r);
        best = fmin(best, clock_s() - since);
        r->at = r->at + 2 * r->panels <= r->w.n_panels ? r->at + r->panels : 0;
    }
    return (double)r->panels * (double)r->w.panel_bytes / best;
}

enum { MEETINGS = 300, MEETINGS_OF = 10 };

struct meeting {
    struct pool *pool;
    double best; /* of MEETINGS_OF, on member 0 */
};

static void meet_often(void *ctx, int ith, int nth)
{
    struct meeting *x = ctx;
    (void)nth;
    for (int i = 0; i < MEETINGS; i++) {
        pool_barrier(x->pool);
        double since = clock_s();
        for (int k = 0; k < MEETINGS_OF; k++)
            pool_barrier(x->pool);
        if (ith == 0)
            x->best = fmin(x->best, clock_s() - since);
    }
}

static double meet_time(struct pool *p)
{
    struct meeting x = {p, INFINITY};
    pool_run(p, meet_often, &x);
    return x.best / MEETINGS_OF;
}

static int bench_threads(struct bench *b, struct reader *r, struct err *e)
{
    b->read = json_array();
    for (int n = 1;; n = MIN(2 * n, b->threads)) {
        struct pool *p;
        int rc = pool_new(n, false, NULL, &p, e);
        if (rc)
            return rc;
        double speed = read_speed(r, p);
        if (n == 1)
            b->m.core_read = speed;
        b->m.host_read = n == 1 ? speed : MAX(speed, b->m.host_read);
        json_array_append_new(b->read, json_pack("{s:i, s:f}", "threads", n, "bytes_s", speed));
        printf("%-34s %8.1f GB/s\n", n > 1 ? "" : "memory read, by threads", speed * 1e-9);
        if (n > 1 && n == b->threads)
            b->m.barrier_s = meet_time(p) / log2(n);
        pool_free(p);
        if (n == b->threads)
            return 0;
    }
}

/* --- kernels --- */

/* Seconds of one pass over so many panels, the best. */
static double mul_time(struct bench *b, struct product *p, int tokens, int panels)
{
    double best = INFINITY, until = clock_s() + BUDGET;
    int at = 0;
    do {
        double since = clock_s();
        b->k.matmul.mul[p->w.dtype](&p->w, p->act, p->stride, tokens, at, at + panels, p->y,
                                    (size_t)p->w.rows);
        best = fmin(best, clock_s() - since);
        if (tokens == 1) /* many tokens: arithmetic alone, out of the cache */
            at = at + 2 * panels <= p->w.n_panels ? at + panels : 0;
    } while (clock_s() < until);
    return best;
}

static int bench_matmul(struct bench *b, enum dtype t, struct err *e)
{
    struct product p;
    int rc = product_init(b, t, COLS, &p, e);
    if (rc)
        return rc;
    int panels = (int)(PIECE / p.w.panel_bytes), few = MIN(64, panels);
    double macs = (double)WMAT_PANEL * COLS;
    double one = mul_time(b, &p, 1, panels) / panels, many = mul_time(b, &p, 64, few) / few;
    b->m.one[t] = (double)p.w.panel_bytes / one;
    b->m.many[t] = 64 * macs / many;
    b->m.core_read = MAX(b->m.core_read, b->m.one[t]);
    b->m.host_read = MAX(b->m.host_read, b->m.core_read);
    printf("matmul %-9s 1 token %6.1f GB/s, %6.1f GMAC/s; 64 tokens %6.1f GMAC/s\n", dtype_name(t),
           b->m.one[t] * 1e-9, macs / one * 1e-9, 64 * macs / many * 1e-9);
    fflush(stdout);
    product_release(&p);
    return 0;
}

/* What the ends of short chunks cost: the same number of products in rows an eighth as long. */
static int bench_ends(struct bench *b, struct err *e)
{
    enum { SHORT = COLS / 8 };
    double one[2], many[2];
    for (int i = 0; i < 2; i++) {
        struct product p;
        int cols = i ? SHORT : COLS, rc = product_init(b, DT_Q4_0, cols, &p, e);
        if (rc)
            return rc;
        int panels = (int)(PIECE / p.w.panel_bytes), few = MIN(64 * COLS / cols, panels);
        double macs = (double)WMAT_PANEL * cols;
        one[i] = mul_time(b, &p, 1, panels) / panels / macs; /* seconds a MAC */
        many[i] = mul_time(b, &p, 64, few) / few / macs / 64;
        product_release(&p);
    }
    double ends = (double)YOKE_CHUNKS / SHORT - (double)YOKE_CHUNKS / COLS; /* more of them a MAC */
    b->m.end_one_s = MAX((one[1] - one[0]) / ends, 1e-12);
    b->m.end_many_s = MAX((many[1] - many[0]) / ends, 1e-12);
    printf("end of a chunk of columns          1 token %.2f ns, 64 tokens %.2f ns each\n",
           b->m.end_one_s * 1e9, b->m.end_many_s * 1e9);
    return 0;
}

/* Seconds a score: queries that share a KV head against 4096 positions of f16, in pages. */
static double attend_time(struct bench *b, int n_q, int d, int page)
{
    enum { POSITIONS = 4096 };
    const struct attention_kernels *k = &b->k.attention;
    float *q, *s, *o, *sum, m, l;
    XNEW_N(q, (size_t)n_q * (size_t)d);
    XNEW_N(o, (size_t)n_q * (size_t)d);
    XNEW_N(sum, (size_t)n_q * (size_t)d);
    XNEW_N(s, (size_t)n_q * ATTN_BLOCK);
    size_t stride = 2 * (size_t)d;
    const uint8_t *keys = b->area, *values = b->area + POSITIONS * stride;
    double best = INFINITY, until = clock_s() + BUDGET;
    while (clock_s() < until) {
        double since = clock_s();
        float all_m = -INFINITY, all_l = 0;
        for (int at = 0; at < POSITIONS; at += ATTN_BLOCK) {
            for (int j = 0; j < ATTN_BLOCK; j += page)
                k->scores[KV_F16](q, (size_t)d, n_q, keys + (size_t)(at + j) * stride, stride, page, d, 0.1f,
                                  s + j);
            for (int i = 0; i < n_q; i++)
                k->softmax(s + i * ATTN_BLOCK, 0, ATTN_BLOCK, ATTN_BLOCK, &m, &l);
            memset(o, 0, sizeof(float) * (size_t)n_q * (size_t)d);
            for (int j = 0; j < ATTN_BLOCK; j += page)
                k->values[KV_F16](s + j, n_q, values + (size_t)(at + j) * stride, stride, page, d, o,
                                  (size_t)d);
            for (int i = 0; i < n_q; i++)
                k->join(&all_m, &all_l, sum + (size_t)i * (size_t)d, m, l, o + (size_t)i * (size_t)d, d);
        }
        best = fmin(best, clock_s() - since);
    }
    xfree(q);
    xfree(o);
    xfree(sum);
    xfree(s);
    return best / POSITIONS / n_q;
}

static double row_speed(struct bench *b)
{
    float *x, *w, *y;
    struct act_layout a;
    struct cuts cuts = {.n = 1, .at = {0, COLS}};
    act_layout_init(&a, ACT_Q32, COLS, &cuts);
    void *record = xaligned(64, a.row_bytes);
    XNEW_N(x, COLS);
    XNEW_N(w, COLS);
    XNEW_N(y, COLS);
    for (int i = 0; i < COLS; i++)
        x[i] = w[i] = 0.5f;
    double best = INFINITY, until = clock_s() + BUDGET;
    while (clock_s() < until) {
        double since = clock_s();
        for (int i = 0; i < 20; i++) {
            b->k.rows.rms_norm(x, w, COLS, 1e-5f, y);
            b->k.rows.glu[GLU_SILU](y, w, COLS, y);
            b->k.rows.add(x, y, COLS, y);
            b->k.matmul.quantize(&a, y, record);
        }
        best = fmin(best, (clock_s() - since) / 20);
    }
    xfree(x);
    xfree(w);
    xfree(y);
    xfree(record);
    return (9.0 * COLS * sizeof(float) + a.row_bytes) / best;
}

/* --- all-reduce --- */

struct rank {
    struct comm *c;
    float *x;
    double small, large; /* seconds a call */
    struct err e;
    int rc;
};

static double reduce_time(struct rank *r, size_t n, int calls)
{
    double best = INFINITY;
    for (int i = 0; i < 12 && !r->rc; i++) {
        r->rc = comm_barrier(r->c, &r->e);
        double since = clock_s();
        for (int j = 0; j < calls && !r->rc; j++)
            r->rc = comm_allreduce(r->c, r->x, n, &r->e);
        best = fmin(best, (clock_s() - since) / calls);
    }
    return best;
}

enum { SMALL = 4 << 10, LARGE = 1 << 20 }; /* floats: 16 KiB, 4 MiB */

static void *rank_main(void *p)
{
    struct rank *r = p;
    r->small = reduce_time(r, SMALL, 50);
    r->large = reduce_time(r, LARGE, 2);
    return NULL;
}

static int bench_comm(struct bench *b, struct err *e)
{
    int n = MIN(b->threads, 8), rc = 0;
    if (n < 2)
        return 0;
    struct comm *c[8];
    struct rank r[8] = {0};
    pthread_t id[8];
    rc = comm_threads_new(n, LARGE * sizeof(float), c, e);
    if (rc)
        return rc;
    int started = 0;
    for (int i = 0; i < n; i++) {
        r[i].c = c[i];
        XNEW_N(r[i].x, LARGE);
    }
    for (; started < n; started++)
        if (pthread_create(&id[started], NULL, rank_main, &r[started])) {
            rc = err_set(e, ERR_FAIL, "cannot start a thread");
            comm_abort(c[started], "no thread for this rank");
            break;
        }
    for (int i = 0; i < started; i++)
        pthread_join(id[i], NULL);
    for (int i = 0; i < n; i++) {
        if (r[i].rc && !rc)
            rc = err_set(e, r[i].rc, "%s", r[i].e.msg);
        comm_close(c[i]);
        xfree(r[i].x);
    }
    if (rc)
        return rc;
    double wire = 2.0 * (n - 1) / n * LARGE * sizeof(float), wire_small = wire * SMALL / LARGE;
    b->m.local.bytes_s = wire / MAX(r[0].large - r[0].small, r[0].large / 2);
    b->m.local.latency_s = MAX(r[0].small - wire_small / b->m.local.bytes_s, r[0].small / 4) / log2(n);
    printf("all-reduce, %d ranks               16 KiB %.1f us, 4 MiB %.0f us\n", n, r[0].small * 1e6,
           r[0].large * 1e6);
    return 0;
}

static int run_all(struct bench *b, struct err *e)
{
    static const enum dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_F8_E4M3, DT_Q8_0, DT_Q4_0, DT_Q4_1,
                                       DT_Q5_0, DT_Q5_1, DT_Q4_K, DT_Q5_K,    DT_Q6_K, DT_I8C,  DT_I4G};
    struct product p;
    int rc = product_init(b, DT_I8C, COLS, &p, e);
    if (rc)
        return rc;
    struct reader r = {b, p.w, p.act, p.y, 0, (int)(PIECE / p.w.panel_bytes)};
    rc = bench_threads(b, &r, e);
    product_release(&p);
    for (size_t i = 0; i < ARRAY_LEN(types) && !rc; i++)
        rc = bench_matmul(b, types[i], e);
    if (rc)
        return rc;
    rc = bench_ends(b, e);
    if (rc)
        return rc;
    /* seconds a score, of heads of 64 and 128: 128 and 256 MACs, and the softmax */
    double one = attend_time(b, 4, 64, 32), many = attend_time(b, 64, 128, 32),
           narrow = attend_time(b, 64, 64, 32);
    b->m.attend_many = 128 / MAX(many - narrow, many / 4);
    b->m.score_macs = MAX(many * b->m.attend_many - 256, 1);
    b->m.attend_one = (128 + b->m.score_macs) / one;
    b->m.row_bytes_s = row_speed(b);
    printf("attention                          4 queries %.1f GMAC/s, 64 %.1f GMAC/s\n",
           b->m.attend_one * 1e-9, b->m.attend_many * 1e-9);
    printf("norms and gates                    %.1f GB/s\n", b->m.row_bytes_s * 1e-9);
    if (b->threads > 1)
        printf("%d threads meet                     %.2f us\n", b->threads,
               b->m.barrier_s * log2(b->threads) * 1e6);
    return bench_comm(b, e);
}

int command_bench(struct settings *s, struct warn_sink *warn, struct err *e)
{
    (void)warn;
    struct bench b = {.level = s->cpu == CPU_AUTO ? cpu_level_native() : (enum cpu_level)s->cpu,
                      .threads = s->threads ? (int)s->threads : cpu_count()};
    kernels_init(&b.k, b.level);
    cost_machine_default(&b.m, 1, b.threads, 0);
    b.area = big_alloc(AREA, "bench", e);
    if (!b.area)
        return ERR_MEMORY;
    memset(b.area, 0x11, AREA); /* a small, normal number in every format */
    printf("%s, level %s, %d core%s\n", cpu_model_name(), cpu_level_name(b.level), b.threads,
           b.threads > 1 ? "s" : "");
    int rc = run_all(&b, e);
    if (!rc) {
        json_t *o = machine_json(&b.m);
        json_object_set_new(o, "cpu", json_string(cpu_model_name()));
        json_object_set_new(o, "level", json_string(cpu_level_name(b.level)));
        json_object_set_new(o, "read", json_incref(b.read));
        char *path = s->output ? xstrdup(s->output) : machine_default_path();
        if (path && !(rc = machine_write(path, o, e)))
            printf("written to %s\n", path);
        xfree(path);
        json_decref(o);
    }
    json_decref(b.read);
    big_free(b.area, AREA);
    return rc;
}
