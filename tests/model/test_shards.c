/* Shard sets, end to end: what is mapped, and what is cut anew, has the bits of a load from the checkpoint.
 *
 * Weights are compared as whole images, byte by byte, for every format and family of models, from every
 * degree to every other one; logits on top of that for some. Then all that can be wrong with a set, as
 * sentences.
 */
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/shard.h"
#include "engine/slices.h"
#include "formats/source.h"
#include "tests/model/fixture.h"

/* --- places --- */

static char scratch[64];

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int setup(void **state)
{
    strcpy(scratch, "/dev/shm/yoke_shards_XXXXXX"); /* in memory, where syncing costs nothing */
    if (mkdtemp(scratch))
        return 0;
    strcpy(scratch, "/tmp/yoke_shards_XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state)
{
    remove_tree(scratch);
    return 0;
}

static char *place(const char *name) /* xfree() it */
{
    return path_join(scratch, name);
}

static void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* --- models --- */

struct model {
    struct checkpoint *c;
    struct graph *g;
    struct hparams h;
};

static void model_open(struct model *m, const char *path)
{
    struct err e;
    must(checkpoint_open(path, NULL, &m->c, &e), &e);
    must(model_build(checkpoint_config(m->c), NULL, &m->g, &m->h, &e), &e);
}

static void model_close(struct model *m)
{
    graph_free(m->g);
    hparams_release(&m->h);
    checkpoint_close(m->c);
}

static enum dtype all_bf16(const struct weight_source *s, const char *name)
{
    return DT_BF16;
}

/* A checkpoint of random weights for a configuration: a folder. The plan of one rank knows their shapes. */
static void make_model(const char *dir, const char *config)
{
    struct err e;
    json_t *c;
    json_error_t je;
    struct graph *g;
    struct hparams h;
    struct plan *p;
    c = json_loads(config, 0, &je);
    assert_non_null(c);
    must(model_build(c, NULL, &g, &h, &e), &e);
    struct weight_source source = {all_bf16};
    struct plan_options o = {.tp = 1, .source = &source, .max_tokens = 1, .max_out = 1, .page_tokens = 1};
    must(plan_make(g, &o, &p, &e), &e);
    struct buf head = BUF_INIT, data = BUF_INIT, file = BUF_INIT;
    uint32_t random = 1;
    buf_addc(&head, '{');
    for (int i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = &p->weights[i];
        const char *star = strstr(w->name, ".*");
        int64_t n = w->all_rows * w->all_cols * range_n(w->stack);
        size_t at = data.len;
        for (int64_t k = 0; k < n; k++) {
            random = random * 1664525 + 1013904223;
            uint16_t v = f32_to_bf16((float)((int32_t)(random >> 8) - (1 << 23)) * 0x1p-27f);
            buf_add(&data, &v, 2);
        }
        buf_addf(&head, "%s\"%.*s%s\":{\"dtype\":\"BF16\",\"shape\":[", i ? "," : "",
                 star ? (int)(star - w->name) : (int)strlen(w->name), w->name, star ? star + 2 : "");
        if (w->stacked)
            buf_addf(&head, "%d,", range_n(w->stack));
        if (w->matrix)
            buf_addf(&head, "%lld,", (long long)w->all_rows);
        buf_addf(&head, "%lld],\"data_offsets\":[%zu,%zu]}", (long long)w->all_cols, at, data.len);
    }
    buf_addc(&head, '}');
    uint64_t n = head.len;
    buf_add(&file, &n, 8);
    buf_add(&file, head.s, head.len);
    buf_add(&file, data.s, data.len);
    assert_int_equal(mkdir(dir, 0777), 0);
    char *path = path_join(dir, "config.json"), *weights = path_join(dir, "model.safetensors");
    write_file(path, config, strlen(config));
    write_file(weights, file.s, file.len);
    xfree(path);
    xfree(weights);
    buf_release(&head);
    buf_release(&data);
    buf_release(&file);
    plan_free(p);
    graph_free(g);
    hparams_release(&h);
    json_decref(c);
}

static const char moe_config[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"hidden_size\": 64,"
    "\"intermediate_size\": 256, \"moe_intermediate_size\": 256, \"num_hidden_layers\": 3, "
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 32, \"num_experts\": 8, "
    "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"decoder_sparse_step\": 1, "
    "\"mlp_only_layers\": [1], \"vocab_size\": 320, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, "
    "\"max_position_embeddings\": 512, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false}";

static const char latent_config[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", \"hidden_size\": 64,"
    "\"intermediate_size\": 256, \"moe_intermediate_size\": 256, \"num_hidden_layers\": 3, "
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"kv_lora_rank\": 32, \"q_lora_rank\": 64, "
    "\"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"n_routed_experts\": 8, "
    "\"n_shared_experts\": 1, \"num_experts_per_tok\": 2, \"n_group\": 2, \"topk_group\": 1, "
    "\"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", "
    "\"norm_topk_prob\": true, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, \"vocab_size\": 320, "
    "\"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, \"max_position_embeddings\": 512, "
    "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"attention_bias\": false}";

/* --- sets and images --- */

struct degrees {
    int tp, pp, ep, dp;
};

static int n_ranks(struct degrees d)
{
    return d.tp * d.pp * (d.dp ? d.dp : 1);
}

static int make_plan(const struct model *m, struct degrees d, enum quant q, int rank, struct plan **ret,
                     struct err *e)
{
    struct checkpoint_source source;
    checkpoint_source_init(&source, m->c);
    struct plan_options o = {.tp = d.tp,
                             .pp = d.pp,
                             .ep = d.ep,
                             .dp = d.dp,
                             .rank = rank % d.tp,
                             .stage = rank / d.tp % d.pp,
                             .lane = rank / (d.tp * d.pp),
                             .source = &source.base,
                             .quant = q,
                             .kv = KV_F32,
                             .max_tokens = 8,
                             .max_out = 2,
                             .page_tokens = 16};
    return plan_make(m->g, &o, ret, e);
}

static int write_set(const struct model *m, struct degrees d, enum quant q, const char *out, struct err *e)
{
    struct shard_options o = {
        .out = out, .yoke = "test", .tp = d.tp, .pp = d.pp, .dp = d.dp, .ep = d.ep, .quant = q, .threads = 2};
    return shard_write(m->c, m->g, &o, NULL, e);
}

/* What every rank must have: loaded from the checkpoint. */
struct images {
    struct degrees d;
    struct plan **plan; /* [n_ranks(d)] */
    struct weights **weights;
};

static void images_init(struct images *x, const struct model *m, struct degrees d, enum quant q)
{
    struct err e;
    struct load_options lo = {.threads = 2};
    x->d = d;
    XNEW_N(x->plan, (size_t)n_ranks(d));
    XNEW_N(x->weights, (size_t)n_ranks(d));
    for (int r = 0; r < n_ranks(d); r++) {
        must(make_plan(m, d, q, r, &x->plan[r], &e), &e);
        must(load_weights(m->c, x->plan[r], &lo, &x->weights[r], &e), &e);
    }
}

static void images_release(struct images *x)
{
    for (int r = 0; r < n_ranks(x->d); r++) {
        weights_free(x->weights[r]);
        plan_free(x->plan[r]);
    }
    xfree(x->plan);
    xfree(x->weights);
}

/* Rank by rank: the weights that the set yields are the ones wanted. mapped: they must be the file's own
 * pages. */
static void expect_images(const struct images *want, const char *set, enum quant q, bool mapped)
{
    struct model x;
    struct err e;
    struct degrees d = want->d;
    model_open(&x, set);
    assert_non_null(checkpoint_shardset(x.c));
    must(load_check(x.c, x.g, NULL, &e), &e);
    for (int r = 0; r < n_ranks(d); r++) {
        struct plan *plan;
        struct weights *got;
        struct load_options lo = {.threads = 2, .reslice = !mapped, .verify = r == 0};
        must(make_plan(&x, d, q, r, &plan, &e), &e);
        assert_true(plan_hash(want->plan[r]) == plan_hash(plan));
        must(load_weights(x.c, plan, &lo, &got, &e), &e);
        assert_true(mapped == (got->map != NULL));
        assert_int_equal(want->weights[r]->bytes, got->bytes);
        if (memcmp(want->weights[r]->memory, got->memory, got->bytes))
            fail_msg("%s: rank %d of tp %d, pp %d, ep %d, dp %d differs", set, r, d.tp, d.pp, d.ep, d.dp);
        weights_free(got);
        plan_free(plan);
    }
    model_close(&x);
}

static void expect_same_images(const struct model *m, const char *set, struct degrees d, enum quant q,
                               bool mapped)
{
    struct images want;
    images_init(&want, m, d, q);
    expect_images(&want, set, q, mapped);
    images_release(&want);
}

static const struct subject {
    const char *path; /* of the repository */
    enum quant quant;
    int tp[5]; /* degrees, up to a 0 */
} subjects[] = {
    {"tests/golden/models/llama-h8kv8", QUANT_NONE, {1, 2, 4, 8, 3}}, /* bf16 */
    {"tests/golden/models/llama-bias-f32", QUANT_NONE, {1, 2, 4}},
    {"tests/golden/models/llama-mha-tied-f16", QUANT_NONE, {1, 2}},
    {"tests/golden/models/llama-h8d32", QUANT_W8A8, {1, 2, 4, 8}},
    {"tests/golden/models/llama-h8d32", QUANT_W4, {1, 2, 4, 8, 3}},
    {"tests/golden/models/llama-sharded", QUANT_NONE, {1, 2}},
    {"tests/golden/models/qwen2-h14kv2", QUANT_NONE, {1, 2, 8}}, /* uneven heads, KV heads on several ranks */
    {"tests/golden/models/qwen3-tied", QUANT_NONE, {1, 2, 4}},
    {"tests/golden/moe/deepseek-v3-fp8", QUANT_NONE, {1, 2, 4}}, /* float8 with scales of blocks */
    {"tests/golden/moe/deepseek-v3-fp8-128", QUANT_NONE, {1, 2}},
    {"tests/golden/moe/deepseek-v3-fp8", QUANT_W8A8, {1}},
    {"tests/golden/moe_gguf/deepseek2-v3-mixed.gguf", QUANT_NONE, {1}}, /* kv_b's parts from a block format */
    {"tests/golden/moe_gguf/mixtral-q4_0.gguf", QUANT_NONE, {1}},
    {"tests/golden/moe/qwen2moe", QUANT_NONE, {1, 2}},
    {"tests/golden/moe/mixtral-fused-f32", QUANT_NONE, {1, 2}},
    {"tests/golden/gguf/llama-q8_0.gguf", QUANT_NONE, {1, 2}},
    {"tests/golden/gguf/llama-q4_0.gguf", QUANT_NONE, {1, 2}},
    {"tests/golden/gguf/llama-q4_1.gguf", QUANT_NONE, {1, 2}},
    {"tests/golden/gguf/llama-q5_0.gguf", QUANT_NONE, {1, 2}},
    {"tests/golden/gguf/llama-q5_1.gguf", QUANT_NONE, {1, 2}},
    {"tests/golden/gguf/llama-q4_k_m.gguf", QUANT_NONE, {1, 2, 4, 8}}, /* slices begin inside blocks of 256 */
    {"tests/golden/gguf/llama-q5_k_m.gguf", QUANT_NONE, {1, 4, 8}},
    {"tests/golden/gguf/llama-q6_k.gguf", QUANT_NONE, {1, 2, 8}},
};

/* A set of each degree, mapped, and cut anew for the next `reach` ones in the list. */
static void check_subject(const char *path, enum quant q, const struct degrees *d, int n, int reach)
{
    struct model m;
    struct err e;
    struct images *want;
    XNEW_N(want, (size_t)n);
    model_open(&m, path);
    for (int i = 0; i < n; i++)
        images_init(&want[i], &m, d[i], q);
    for (int i = 0; i < n; i++) {
        char *set = place("set"), *again = place("again");
        must(write_set(&m, d[i], q, set, &e), &e);
        expect_images(&want[i], set, q, true);
        for (int k = 1; k <= reach; k++)
            expect_images(&want[(i + k) % n], set, q, false);
        /* a set made of a set is the set made of the model */
        struct model s;
        int to = (i + 1) % n;
        model_open(&s, set);
        must(write_set(&s, d[to], q, again, &e), &e);
        model_close(&s);
        expect_images(&want[to], again, q, true);
        remove_tree(set);
        remove_tree(again);
        xfree(set);
        xfree(again);
    }
    for (int i = 0; i < n; i++)
        images_release(&want[i]);
    xfree(want);
    model_close(&m);
}

static void test_formats(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        const struct subject *x = &subjects[i];
        char *path = golden_path(x->path);
        struct degrees d[5];
        int n = 0;
        for (; n < 5 && x->tp[n]; n++)
            d[n] = (struct degrees){x->tp[n], 1, 1};
        check_subject(path, x->quant, d, n, n - 1);
        xfree(path);
    }
}

/* Experts within a replica and spread over several, whole and in slices. From every degree to every other one
 * with int8 weights, whose scales are particular about where they are cut; in the other formats to the next
 * two. */
static void test_experts_and_stages(void **state)
{
    static const struct degrees d[] = {{1, 1, 1},    {4, 1, 4},    {1, 1, 2, 4}, {4, 1, 1},
                                       {2, 1, 2},    {1, 2, 2, 4}, {4, 1, 2},    {2, 2, 1},
                                       {2, 1, 4, 4}, {1, 3, 1},    {1, 1, 4, 4}, {2, 1, 4, 2}};
    const int n = (int)ARRAY_LEN(d);
    static const enum quant quants[] = {QUANT_NONE, QUANT_W8A8, QUANT_W4};
    static const char *const configs[] = {moe_config, latent_config};
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        char *dir = place("model");
        make_model(dir, configs[i]);
        for (size_t q = 0; q < ARRAY_LEN(quants); q++)
            check_subject(dir, quants[q], d, n, quants[q] == QUANT_W8A8 ? n - 1 : 2);
        remove_tree(dir);
        xfree(dir);
    }
}

/* --- logits --- */

static float *logits_of(const char *path, struct fixture_options o, size_t *ret_n)
{
    static const int32_t ids[] = {1, 17, 5, 99, 3, 42, 7, 7, 64, 23, 11};
    struct fixture f;
    struct sequence s = {ids, (int32_t)ARRAY_LEN(ids), NULL};
    fixture_open(&f, path, o);
    *ret_n = ARRAY_LEN(ids) * (size_t)f.vocab;
    XNEW_N(s.logits, *ret_n);
    fixture_run(&f, &s, 1, 4);
    fixture_close(&f);
    return s.logits;
}

static void test_logits(void **state)
{
    static const struct {
        const char *path;
        enum quant quant;
    } x[] = {{"tests/golden/models/llama-bias-f32", QUANT_NONE},
             {"tests/golden/models/llama-h8kv8", QUANT_NONE},
             {"tests/golden/models/llama-h8d32", QUANT_W8A8},
             {"tests/golden/models/llama-h8d32", QUANT_W4},
             {"tests/golden/gguf/llama-q4_k_m.gguf", QUANT_NONE}};
    for (size_t i = 0; i < ARRAY_LEN(x); i++)
        for (int tp = 1; tp <= 4; tp *= 2) {
            struct model m;
            struct err e;
            char *path = golden_path(x[i].path), *set = place("set");
            struct fixture_options o = {
                .tp = tp, .threads = 2, .quant = x[i].quant, .kv = KV_F32, .level = cpu_level_native()};
            model_open(&m, path);
            must(write_set(&m, (struct degrees){tp, 1, 1}, x[i].quant, set, &e), &e);
            model_close(&m);
            size_t n, n_set;
            float *want = logits_of(x[i].path, o, &n), *got = logits_of(set, o, &n_set);
            assert_int_equal(n, n_set);
            assert_memory_equal(want, got, n * sizeof(float));
            xfree(want);
            xfree(got);
            remove_tree(set);
            xfree(set);
            xfree(path);
        }
}

/* Spread experts, from a set written for them: one rank's logits, with up to 8 slices of each expert. The
 * other replicas are idle. */
static void test_spread_logits(void **state)
{
    static const struct degrees d[] = {{1, 1, 2, 4}, {1, 1, 4, 8}, {1, 1, 2, 8}, {1, 1, 2, 16}, {2, 2, 4, 4}};
    static const enum quant quants[] = {QUANT_NONE, QUANT_W8A8, QUANT_W4};
    char *dir = place("model"), *set = place("set");
    make_model(dir, moe_config);
    for (size_t q = 0; q < ARRAY_LEN(quants); q++) {
        struct model m;
        struct err e;
        size_t n, n_set;
        struct fixture_options o = {.quant = quants[q], .kv = KV_F32, .level = cpu_level_native()};
        float *want = logits_of(dir, o, &n);
        model_open(&m, dir);
        for (size_t i = 0; i < ARRAY_LEN(d); i++) {
            must(write_set(&m, d[i], quants[q], set, &e), &e);
            o.tp = d[i].tp;
            o.pp = d[i].pp;
            o.ep = d[i].ep;
            o.dp = d[i].dp;
            float *got = logits_of(set, o, &n_set);
            assert_int_equal(n, n_set);
            if (memcmp(want, got, n * sizeof(float)))
                fail_msg("quant %d, tp %d, pp %d, ep %d, dp %d: other logits", quants[q], o.tp, o.pp, o.ep,
                         o.dp);
            xfree(got);
            remove_tree(set);
        }
        xfree(want);
        model_close(&m);
    }
    remove_tree(dir);
    xfree(dir);
    xfree(set);
}

/* --- what can be wrong --- */

struct damaged { /* a set of two ranks, w8a8, and its model */
    struct model m;
    char *path, *set, *rank1, *manifest;
};

static void damaged_init(struct damaged *x)
{
    struct err e;
    x->path = golden_path("tests/golden/models/llama-h8d32");
    x->set = place("set");
    x->rank1 = path_join(x->set, "rank_0001_of_0002.yoke");
    x->manifest = path_join(x->set, "manifest.json");
    model_open(&x->m, x->path);
    must(write_set(&x->m, (struct degrees){2, 1, 1}, QUANT_W8A8, x->set, &e), &e);
}

static void damaged_release(struct damaged *x)
{
    model_close(&x->m);
    remove_tree(x->set);
    xfree(x->path);
    xfree(x->set);
    xfree(x->rank1);
    xfree(x->manifest);
}

/* Loads rank 1 of these degrees; the error's sentence must hold `words`. NULL: no error. */
static void expect(const struct damaged *x, struct degrees d, enum quant q, struct load_options lo, int code,
                   const char *words)
{
    struct model s;
    struct err e = {0};
    struct plan *p = NULL;
    struct weights *w = NULL;
    lo.threads = 1;
    model_open(&s, x->set);
    int rc = make_plan(&s, d, q, d.tp * d.pp - 1, &p, &e);
    if (!rc)
        rc = load_weights(s.c, p, &lo, &w, &e);
    if (rc != code || (words && !strstr(e.msg, words)))
        fail_msg("expected %d \"%s\", but got %d \"%s\"", code, words ? words : "", rc, e.msg);
    weights_free(w);
    plan_free(p);
    model_close(&s);
}

static void test_mismatch(void **state)
{
    struct damaged x;
    const struct degrees d2 = {2, 1, 1}, d1 = {1, 1, 1}, d4 = {4, 1, 1}, d3 = {3, 1, 1}, p2 = {1, 2, 1};
    struct load_options plain = {0}, reslice = {.reslice = true};
    damaged_init(&x);
    expect(&x, d2, QUANT_W8A8, plain, 0, NULL);
    expect(&x, d1, QUANT_W8A8, plain, ERR_SPLIT,
           "was written for --tp 2 --pp 1 --ep 1 (2 ranks), but --tp 1 --pp 1 --ep 1 (1 ranks)");
    expect(&x, d4, QUANT_W8A8, plain, ERR_SPLIT, "but --tp 4");
    expect(&x, p2, QUANT_W8A8, plain, ERR_SPLIT, "but --tp 1 --pp 2");
    expect(&x, p2, QUANT_W8A8, reslice, 0, NULL);
    expect(&x, d4, QUANT_W8A8, reslice, 0, NULL);
    expect(&x, d3, QUANT_W8A8, reslice, 0, NULL); /* 8 units: chunks of one each, wherever they are cut */
    expect(&x, d2, QUANT_NONE, plain, ERR_SPLIT, "is i8c (made from");
    expect(&x, d1, QUANT_W4, reslice, ERR_SPLIT, "can be split anew, not converted");
    damaged_release(&x);
}

static const char odd_config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 64,"
    "\"intermediate_size\": 352, \"num_hidden_layers\": 1, \"num_attention_heads\": 8, "
    "\"num_key_value_heads\": 4, \"head_dim\": 32, \"vocab_size\": 320, \"rms_norm_eps\": 1e-06, "
    "\"rope_theta\": 10000.0, \"max_position_embeddings\": 512, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": false}";

/* 11 groups of columns: a chunk of one or two. Three ranks cut one of two in the middle, and its int8 scale
 * with it; formats with scales of groups do not mind. */
static void test_chunks_cut(void **state)
{
    struct damaged x = {.set = place("set"), .path = place("model")};
    struct err e;
    const struct degrees d3 = {3, 1, 1}, d2 = {2, 1, 1};
    struct load_options reslice = {.reslice = true};
    make_model(x.path, odd_config);
    model_open(&x.m, x.path);
    must(write_set(&x.m, d2, QUANT_W8A8, x.set, &e), &e);
    expect(&x, d3, QUANT_W8A8, reslice, ERR_SPLIT, "degrees that divide 8 can be made of each other");
    must(write_set(&x.m, d2, QUANT_W4, x.set, &e), &e);
    expect_same_images(&x.m, x.set, d3, QUANT_W4, false);
    model_close(&x.m);
    remove_tree(x.path);
    remove_tree(x.set);
    xfree(x.path);
    xfree(x.set);
}

static void flip(const char *path, long at)
{
    int fd = open(path, O_RDWR);
    unsigned char c;
    assert_true(fd >= 0);
    off_t where = at >= 0 ? at : lseek(fd, at, SEEK_END);
    assert_int_equal(pread(fd, &c, 1, where), 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, where), 1);
    close(fd);
}

static void test_damage(void **state)
{
    struct damaged x;
    struct err e;
    struct stat st;
    const struct degrees d2 = {2, 1, 1}, d1 = {1, 1, 1};
    struct load_options plain = {0}, verify = {.verify = true}, both = {.verify = true, .reslice = true};
    damaged_init(&x);
    assert_int_equal(stat(x.rank1, &st), 0);
    flip(x.rank1, -1000); /* in the payload */
    expect(&x, d2, QUANT_W8A8, plain, 0, NULL);
    expect(&x, d2, QUANT_W8A8, verify, ERR_FORMAT, "are not what was written");
    expect(&x, d1, QUANT_W8A8, both, ERR_FORMAT, "are not what was written");
    flip(x.rank1, -1000);
    expect(&x, d2, QUANT_W8A8, verify, 0, NULL);
    for (long at = 8; at < 200; at += 7) { /* anywhere in the header */
        flip(x.rank1, at);
        expect(&x, d2, QUANT_W8A8, plain,
               at < 12 || (at >= 12 && at < 16) || (at >= 20 && at < 24) ? ERR_UNSUPPORTED : ERR_FORMAT,
               x.rank1);
        flip(x.rank1, at);
    }
    flip(x.rank1, 0);
    expect(&x, d2, QUANT_W8A8, plain, ERR_FORMAT, "is no rank's file");
    flip(x.rank1, 0);
    assert_int_equal(truncate(x.rank1, st.st_size - 1), 0);
    expect(&x, d2, QUANT_W8A8, plain, ERR_FORMAT, "cut short");
    assert_int_equal(truncate(x.rank1, 100), 0);
    expect(&x, d2, QUANT_W8A8, plain, ERR_FORMAT, "cut short");
    assert_int_equal(truncate(x.rank1, 0), 0);
    expect(&x, d2, QUANT_W8A8, plain, ERR_FORMAT, "is no rank's file");
    unlink(x.rank1);
    expect(&x, d2, QUANT_W8A8, plain, ERR_IO, x.rank1);
    /* the same rank of another set: as large, other weights' sums */
    char *other = place("other"), *model = golden_path("tests/golden/models/llama-h8d32");
    must(write_set(&x.m, d2, QUANT_W4, other, &e), &e);
    char *from = path_join(other, "rank_0001_of_0002.yoke");
    assert_int_equal(rename(from, x.rank1), 0);
    expect(&x, d2, QUANT_W8A8, plain, ERR_FORMAT, "one of them is from another set");
    remove_tree(other);
    xfree(from);
    xfree(other);
    xfree(model);
    damaged_release(&x);
}

/* Without its manifest a folder is no set, whatever else is there. */
static void test_no_manifest(void **state)
{
    struct damaged x;
    struct checkpoint *c;
    struct err e;
    damaged_init(&x);
    unlink(x.manifest);
    assert_int_equal(checkpoint_open(x.set, NULL, &c, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "was not finished or has lost its manifest.json"));
    must(write_set(&x.m, (struct degrees){4, 1, 1}, QUANT_W8A8, x.set, &e),
         &e);                            /* and may be written again */
    assert_false(path_is_file(x.rank1)); /* the rest of the old one goes */
    damaged_release(&x);
}

/* --- the source --- */

static int compare(const char *set, bool full, enum source_state *state, struct err *e)
{
    struct shardset *s;
    must(shardset_open(set, &s, e), e);
    assert_non_null(shardset_info(s)->source);
    int rc = source_compare(shardset_info(s)->source, set, full, state, e);
    shardset_close(s);
    return rc;
}

static void test_source(void **state)
{
    struct model m;
    struct err e = {0};
    enum source_state is;
    char *dir = place("model"), *set = place("set"), *file = path_join(dir, "model.safetensors"),
         *config = path_join(dir, "config.json"), *moved = place("moved");
    make_model(dir, moe_config);
    model_open(&m, dir);
    struct shard_options o = {.out = set, .yoke = "test", .tp = 2, .threads = 1, .full = true};
    must(shard_write(m.c, m.g, &o, NULL, &e), &e);
    model_close(&m);
    must(compare(set, true, &is, &e), &e);
    assert_int_equal(is, SOURCE_SAME);

    struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0); /* touched, not changed */
    must(compare(set, false, &is, &e), &e);
    assert_int_equal(is, SOURCE_SAME);

    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    flip(file,
         -(long)st.st_size / 2 + 1); /* one byte somewhere: only the full comparison is sure to see it */
    assert_int_equal(compare(set, true, &is, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "SHA-256 differs"));
    flip(file, -(long)st.st_size / 2 + 1);

    /* other weights of the same shapes: every tensor's middle is looked at */
    for (long at = -1; at > -(long)st.st_size + 20000; at -= 100)
        flip(file, at);
    assert_int_equal(compare(set, false, &is, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "other weights"));
    for (long at = -1; at > -(long)st.st_size + 20000; at -= 100)
        flip(file, at);
    must(compare(set, true, &is, &e), &e);

    FILE *f = fopen(file, "ab");
    fputc(0, f);
    fclose(f);
    assert_int_equal(compare(set, false, &is, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "bytes, and had"));
    assert_int_equal(truncate(file, st.st_size), 0);
    must(compare(set, false, &is, &e), &e);

    struct buf other = BUF_INIT;
    buf_adds(&other, moe_config);
    memcpy(strstr(other.s, "10000.0"), "50000.0", 7);
    write_file(config, other.s, other.len);
    assert_int_equal(compare(set, false, &is, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "another configuration"));
    buf_release(&other);

    assert_int_equal(rename(dir, moved), 0);
    must(compare(set, true, &is, &e), &e);
    assert_int_equal(is, SOURCE_AWAY);
    remove_tree(moved);
    remove_tree(set);
    xfree(dir);
    xfree(set);
    xfree(file);
    xfree(config);
    xfree(moved);
}

/* --- writing --- */

static int count_files(const char *dir)
{
    struct buf line = BUF_INIT;
    buf_addf(&line, "ls -A %s | wc -l", dir);
    FILE *f = popen(line.s, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    buf_release(&line);
    return n;
}

static void test_output_folder(void **state)
{
    struct damaged x;
    struct err e;
    damaged_init(&x);
    assert_int_equal(write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_NONE, x.path, &e), ERR_USAGE);
    assert_non_null(strstr(e.msg, "is the model itself"));
    char *dir = place("mine"), *file = path_join(dir, "diary.txt"), *deep = place("no/such");
    assert_int_equal(mkdir(dir, 0777), 0);
    write_file(file, "dear", 4);
    assert_int_equal(write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_NONE, dir, &e), ERR_USAGE);
    assert_non_null(strstr(e.msg, "it holds diary.txt"));
    assert_int_equal(count_files(dir), 1);
    assert_int_equal(write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_NONE, deep, &e), ERR_IO);
    /* a folder that was made for a set that failed is gone again */
    char *fresh = place("fresh");
    assert_int_equal(write_set(&x.m, (struct degrees){64, 1, 1}, QUANT_NONE, fresh, &e), ERR_SPLIT);
    assert_false(path_is_dir(fresh));
    xfree(fresh);
    xfree(deep);
    remove_tree(dir);
    xfree(file);
    xfree(dir);
    damaged_release(&x);
}

/* A set in place of another: those who map the old one keep it. */
static void test_replace(void **state)
{
    struct damaged x;
    struct err e;
    damaged_init(&x);
    struct model s;
    struct plan *p;
    struct weights *old, *copy;
    struct load_options lo = {.threads = 1};
    model_open(&s, x.set);
    must(make_plan(&s, (struct degrees){2, 1, 1}, QUANT_W8A8, 1, &p, &e), &e);
    must(load_weights(s.c, p, &lo, &old, &e), &e);
    must(load_weights(x.m.c, p, &lo, &copy, &e), &e);
    must(write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_W4, x.set, &e), &e);
    assert_memory_equal(old->memory, copy->memory, copy->bytes);
    weights_free(old);
    weights_free(copy);
    plan_free(p);
    model_close(&s);
    expect_same_images(&x.m, x.set, (struct degrees){2, 1, 1}, QUANT_W4, true);
    damaged_release(&x);
}

static void test_lock(void **state)
{
    struct damaged x;
    struct err e;
    struct shardset_writer *w;
    struct shardset_info info = {
        .ranks = 1, .tp = 1, .ep = 1, .pp = 1, .quant = "none", .yoke = "t", .graph = "g"};
    damaged_init(&x);
    must(shardset_create(x.set, &info, 0, &w, &e), &e);
    assert_int_equal(write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_W4, x.set, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "another yoke shard is writing to it"));
    shardset_abort(w);
    expect_same_images(&x.m, x.set, (struct degrees){2, 1, 1}, QUANT_W8A8, true); /* untouched */
    must(write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_W4, x.set, &e), &e);
    damaged_release(&x);
}

/* The disk is full after ever more bytes: a clear error, the old set is whole, nothing else is left. */
static void test_full_disk(void **state)
{
    struct damaged x;
    struct err e;
    struct rlimit was, now;
    damaged_init(&x);
    int files = count_files(x.set);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    int failed = 0;
    for (rlim_t limit = 1; limit < 4 << 20; limit = limit * 2 + 61) {
        now = (struct rlimit){limit, was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
        int rc = write_set(&x.m, (struct degrees){2, 1, 1}, QUANT_W4, x.set, &e);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
        if (!rc)
            break;
        failed++;
        assert_int_equal(rc, ERR_IO);
        assert_non_null(strstr(e.msg, "the file gets too large"));
        assert_int_equal(count_files(x.set), files);
        expect_same_images(&x.m, x.set, (struct degrees){2, 1, 1}, QUANT_W8A8, true);
    }
    assert_true(failed > 5);
    damaged_release(&x);
}

/* The same on a real disk that is too small, if this process may mount one. */
static void test_small_disk(void **state)
{
    struct model m;
    struct err e;
    char *disk = place("disk"), *set = place("disk/set"), *ballast = place("disk/ballast"),
         *path = golden_path("tests/golden/models/llama-h8kv8");
    assert_int_equal(mkdir(disk, 0777), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=1m")) {
        rmdir(disk);
        xfree(disk);
        xfree(set);
        xfree(ballast);
        xfree(path);
        skip();
    }
    model_open(&m, path);
    struct degrees d = {2, 1, 1};
    FILE *f = fopen(ballast, "wb"); /* nearly full: refused before the first byte */
    for (int i = 0; i < (1 << 20) - 8192; i++)
        fputc(1, f);
    fclose(f);
    int rc = write_set(&m, d, QUANT_NONE, set, &e);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.msg, "its disk has room for"));
    assert_int_equal(count_files(disk), 1);
    /* room for the ranks, not for the rest: it shows while writing */
    struct shardset_writer *w;
    struct shardset_info info = {
        .ranks = 1, .tp = 1, .ep = 1, .pp = 1, .quant = "none", .yoke = "t", .graph = "g"};
    struct shard_tensor t = {
        .name = "t", .layout = "whole", .src = DT_F32, .dtype = DT_F32, .rows = 1, .cols = 1 << 14};
    struct shard_part p = {.row = {0, 1}, .col = {0, 1 << 14}, .stack = {0, 1}, .bytes = 4 << 14};
    void *data = xcalloc(1, 4 << 14);
    must(shardset_create(set, &info, 0, &w, &e), &e);
    must(shardset_begin_rank(w, 0, 1, &e), &e);
    assert_int_equal(shardset_add(w, &t, &p, data, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "there is not enough room"));
    shardset_abort(w);
    assert_int_equal(count_files(disk), 1);
    unlink(ballast);
    model_close(&m);
    xfree(data);
    umount(disk);
    rmdir(disk);
    xfree(disk);
    xfree(set);
    xfree(ballast);
    xfree(path);
}

/* Killed at any moment: what is there is the old set or none or the new one, never a mixture; the next run
 * clears up. */
static void test_killed(void **state)
{
    struct damaged x;
    struct err e;
    damaged_init(&x);
    const struct degrees d = {2, 1, 1};
    int finished = 0;
    for (int us = 0; us < 40000 && finished < 3; us += 500) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid)
            _exit(write_set(&x.m, d, QUANT_W4, x.set, NULL) ? 1 : 0);
        usleep((useconds_t)us);
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        finished += WIFEXITED(status);
        if (!shardset_is(x.set))
            continue;
        struct shardset *s;
        must(shardset_open(x.set, &s, &e), &e);
        must(shardset_verify(s, -1, NULL, NULL, &e), &e);
        shardset_close(s);
    }
    must(write_set(&x.m, d, QUANT_W4, x.set, &e), &e);
    expect_same_images(&x.m, x.set, d, QUANT_W4, true);
    char *tmp = path_join(x.set, ".rank_0000_of_0002.yoke.tmp");
    assert_false(path_is_file(tmp));
    xfree(tmp);
    damaged_release(&x);
}

/* Several processes on one set at once, some cutting it anew. */
static void test_readers(void **state)
{
    struct damaged x;
    pid_t pid[6];
    damaged_init(&x);
    for (int i = 0; i < 6; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (!pid[i]) {
            for (int k = 0; k < 5; k++)
                expect_same_images(&x.m, x.set, (struct degrees){i % 2 ? 4 : 2, 1, 1}, QUANT_W8A8,
                                   i % 2 == 0);
            _exit(0);
        }
    }
    for (int i = 0; i < 6; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    damaged_release(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),   cmocka_unit_test(test_experts_and_stages),
        cmocka_unit_test(test_logits),    cmocka_unit_test(test_spread_logits),
        cmocka_unit_test(test_mismatch),  cmocka_unit_test(test_chunks_cut),
        cmocka_unit_test(test_damage),    cmocka_unit_test(test_no_manifest),
        cmocka_unit_test(test_source),    cmocka_unit_test(test_output_folder),
        cmocka_unit_test(test_replace),   cmocka_unit_test(test_lock),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_small_disk),
        cmocka_unit_test(test_killed),    cmocka_unit_test(test_readers),
    };
    return cmocka_run_group_tests_name("shards", tests, setup, teardown);
}
