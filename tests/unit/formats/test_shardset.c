/* Shard sets as files: what is written is what is read, and every way in which a manifest can be wrong has
 * its sentence. (tests/model/test_shards.c has what they are for, and damaged payloads.) With YOKE_SEEDS set
 * to a folder, seeds for the fuzzer are left there. */
#include <sys/mman.h>
#include "tests/unit/formats/helpers.h"

#include "formats/shardset.h"
#include "formats/shardset_impl.h"

struct entry {
    struct shard_tensor t;
    struct shard_part p[2]; /* bytes 0: the rank does not hold it */
    bool record;            /* with its neighbours */
};

#define CUTS(...)                                                                                            \
    {                                                                                                        \
        sizeof((int32_t[]){0, __VA_ARGS__}) / 4 - 1,                                                         \
        {                                                                                                    \
            0, __VA_ARGS__                                                                                   \
        }                                                                                                    \
    }

/* Each kind of part once: vectors, floats, scales by chunk, stacks, records, K-quants that begin inside a
 * block, float8. */
static struct entry entries[] = {
    {{.name = "norm.weight",
      .layout = "whole",
      .src = DT_BF16,
      .dtype = DT_F32,
      .experts = 1,
      .rows = 1,
      .cols = 20},
     {{.row = {0, 1}, .col = {0, 20}, .stack = {0, 1}}, {.row = {0, 1}, .col = {0, 20}, .stack = {0, 1}}}},
    {{.name = "q.weight",
      .layout = "split(head)",
      .src = DT_BF16,
      .dtype = DT_BF16,
      .matrix = true,
      .experts = 1,
      .rows = 21,
      .cols = 12},
     {{.row = {0, 10}, .col = {0, 12}, .stack = {0, 1}, .cuts = CUTS(5, 12)},
      {.row = {10, 21}, .col = {0, 12}, .stack = {0, 1}, .cuts = CUTS(5, 12)}}},
    {{.name = "o.weight",
      .layout = "split(head)",
      .src = DT_F32,
      .dtype = DT_I8C,
      .matrix = true,
      .experts = 1,
      .rows = 9,
      .cols = 150},
     {{.row = {0, 9}, .col = {0, 64}, .stack = {0, 1}, .cuts = CUTS(32, 64)},
      {.row = {0, 9}, .col = {64, 150}, .stack = {0, 1}, .cuts = CUTS(64, 86)}}},
    {{.name = "experts.*.up.weight",
      .layout = "split(expert)",
      .src = DT_Q4_0,
      .dtype = DT_Q4_0,
      .matrix = true,
      .stacked = true,
      .experts = 5,
      .rows = 8,
      .cols = 64},
     {{.row = {0, 8}, .col = {0, 64}, .stack = {0, 2}, .cuts = CUTS(64)},
      {.row = {0, 8}, .col = {0, 64}, .stack = {2, 5}, .cuts = CUTS(64)}}},
    {{.name = "ffn.*.gate",
      .layout = "split(expert)",
      .src = DT_Q4_0,
      .dtype = DT_Q4_0,
      .matrix = true,
      .stacked = true,
      .experts = 5,
      .rows = 8,
      .cols = 64},
     {{.row = {0, 8}, .col = {0, 64}, .stack = {0, 3}, .cuts = CUTS(64)},
      {.row = {0, 8}, .col = {0, 64}, .stack = {3, 5}, .cuts = CUTS(64)}},
     .record = true},
    {{.name = "ffn.*.up",
      .layout = "split(expert)",
      .src = DT_Q4_0,
      .dtype = DT_Q4_0,
      .matrix = true,
      .stacked = true,
      .experts = 5,
      .rows = 8,
      .cols = 64},
     {{.row = {0, 8}, .col = {0, 64}, .stack = {0, 3}, .cuts = CUTS(64)},
      {.row = {0, 8}, .col = {0, 64}, .stack = {3, 5}, .cuts = CUTS(64)}},
     .record = true},
    {{.name = "ffn.*.down",
      .layout = "split(expert)",
      .src = DT_BF16,
      .dtype = DT_BF16,
      .matrix = true,
      .stacked = true,
      .experts = 5,
      .rows = 21,
      .cols = 8},
     {{.row = {0, 21}, .col = {0, 8}, .stack = {0, 3}, .cuts = CUTS(3, 8)},
      {.row = {0, 21}, .col = {0, 8}, .stack = {3, 5}, .cuts = CUTS(3, 8)}},
     .record = true},
    {{.name = "down.weight",
      .layout = "split(ffn)",
      .src = DT_Q6_K,
      .dtype = DT_Q6_K,
      .matrix = true,
      .experts = 1,
      .rows = 8,
      .cols = 512},
     {{.row = {0, 8}, .col = {0, 160}, .stack = {0, 1}, .cuts = CUTS(160)},
      {.row = {0, 8}, .col = {160, 512}, .stack = {0, 1}, .cuts = CUTS(96, 352)}}},
    {{.name = "kv.weight",
      .layout = "whole",
      .src = DT_F8_E4M3,
      .dtype = DT_F8_E4M3,
      .matrix = true,
      .experts = 1,
      .rows = 10,
      .cols = 300,
      .scale_rows = 128,
      .scale_cols = 128},
     {{.row = {0, 10}, .col = {0, 300}, .stack = {0, 1}, .cuts = CUTS(100, 300)}}},
    {{.name = "last.weight",
      .layout = "whole",
      .src = DT_F32,
      .dtype = DT_F32,
      .matrix = true,
      .experts = 1,
      .rows = 3,
      .cols = 5}, /* of the second stage only */
     {{.bytes = 0}, {.row = {0, 3}, .col = {0, 5}, .stack = {0, 1}, .cuts = CUTS(0, 0, 1, 5)}}},
};

static bool holds(const struct entry *x, int rank)
{
    return x->p[rank].col[1] > 0;
}

static size_t bytes_of(const struct entry *x, int rank)
{
    struct wmat m;
    size_t bytes = 4 * (size_t)x->t.cols;
    if (x->t.matrix)
        shard_part_matrix(&x->t, &x->p[rank], &m, &bytes);
    return bytes * (size_t)(x->p[rank].stack[1] - x->p[rank].stack[0]);
}

static uint8_t byte_of(size_t entry, int rank, size_t i)
{
    return (uint8_t)(17 * entry + 101 * (size_t)rank + i * 7 + (i >> 8));
}

static void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

/* Three entries from i on, expert by expert. */
static void add_records(struct shardset_writer *w, size_t i, int rank)
{
    struct shard_tensor t[3];
    struct shard_part p[3];
    struct err e;
    size_t at[3] = {0}, member[3], end = 0;
    int32_t n = entries[i].p[rank].stack[1] - entries[i].p[rank].stack[0];
    uint8_t record[4096] = {0};
    for (size_t k = 0; k < 3; k++) {
        struct entry *x = &entries[i + k];
        x->p[rank].bytes = bytes_of(x, rank);
        member[k] = (size_t)x->p[rank].bytes / (size_t)n;
        t[k] = x->t;
        p[k] = x->p[rank];
        at[k] = end;
        end += member[k];
    }
    assert_true(end <= sizeof(record));
    must(shardset_begin_records(w, 3, t, p, at, sizeof(record), &e), &e);
    for (int32_t m = 0; m < n; m++) {
        for (size_t k = 0; k < 3; k++)
            for (size_t b = 0; b < member[k]; b++)
                record[at[k] + b] = byte_of(i + k, rank, (size_t)m * member[k] + b);
        must(shardset_add_records(w, 1, record, &e), &e);
    }
}

static void write_tiny(const char *dir)
{
    struct err e;
    struct shardset_writer *w;
    json_t *source = json_pack("{s:s}", "path", "/nowhere");
    struct shardset_info info = {.ranks = 2,
                                 .tp = 2,
                                 .ep = 1,
                                 .pp = 1,
                                 .quant = "w8a8",
                                 .yoke = "0 \"test\"",
                                 .graph = "abc",
                                 .source = source};
    must(shardset_create(dir, &info, 0, &w, &e), &e);
    for (int r = 1; r >= 0; r--) { /* in any order */
        int32_t n = 0;
        for (size_t i = 0; i < ARRAY_LEN(entries); i++)
            n += holds(&entries[i], r);
        must(shardset_begin_rank(w, r, n, &e), &e);
        for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
            struct entry *x = &entries[i];
            if (x->record) {
                add_records(w, i, r);
                i += 2;
                continue;
            }
            if (!holds(x, r))
                continue;
            x->p[r].bytes = bytes_of(x, r);
            uint8_t *data = xmalloc((size_t)x->p[r].bytes);
            for (size_t k = 0; k < x->p[r].bytes; k++)
                data[k] = byte_of(i, r, k);
            must(shardset_add(w, &x->t, &x->p[r], data, &e), &e);
            xfree(data);
        }
        must(shardset_end_rank(w, &e), &e);
    }
    must(shardset_add_file(w, "config.json", "{}", 2, &e), &e);
    must(shardset_commit(w, &e), &e);
    json_decref(source);
}

static void test_round(void **state)
{
    char *dir = temp_folder(), *set = path_join(dir, "set");
    struct shardset *s;
    struct err e;
    write_tiny(set);
    assert_true(shardset_is(set));
    assert_false(shardset_is(dir));
    must(shardset_open(set, &s, &e), &e);
    const struct shardset_info *i = shardset_info(s);
    assert_int_equal(i->ranks, 2);
    assert_int_equal(i->tp, 2);
    assert_string_equal(i->quant, "w8a8");
    assert_string_equal(i->yoke, "0 \"test\"");
    assert_string_equal(json_string_value(json_object_get(i->source, "path")), "/nowhere");
    must(shardset_verify(s, -1, NULL, NULL, &e), &e);
    for (int r = 0; r < 2; r++) {
        int32_t n, at = 0;
        void *map;
        size_t bytes, payload_at;
        const struct shard_part *const *part = shardset_parts(s, r, &n);
        must(shardset_map(s, r, &map, &bytes, &payload_at, &e), &e);
        assert_int_equal(payload_at % 4096, 0);
        for (size_t k = 0; k < ARRAY_LEN(entries); k++) {
            const struct entry *x = &entries[k];
            if (!holds(x, r))
                continue;
            const struct shard_part *p = part[at++];
            const struct shard_tensor *t = shardset_tensor(s, p->tensor);
            assert_string_equal(t->name, x->t.name);
            assert_string_equal(t->layout, x->t.layout);
            assert_int_equal(t->src, x->t.src);
            assert_int_equal(t->dtype, x->t.dtype);
            assert_int_equal(t->matrix, x->t.matrix);
            assert_int_equal(t->stacked, x->t.stacked);
            assert_int_equal(t->rows, x->t.rows);
            assert_int_equal(t->cols, x->t.cols);
            assert_int_equal(t->experts, x->t.experts);
            assert_int_equal(t->scale_cols, x->t.scale_cols);
            assert_memory_equal(p->stack, x->p[r].stack, sizeof(p->stack));
            assert_memory_equal(p->row, x->p[r].row, sizeof(p->row));
            assert_memory_equal(p->col, x->p[r].col, sizeof(p->col));
            assert_memory_equal(&p->cuts, &x->p[r].cuts, sizeof(p->cuts));
            assert_int_equal(p->offset % 64, 0);
            const uint8_t *data = (const uint8_t *)map + payload_at + p->offset;
            size_t member = (size_t)p->bytes / (size_t)(p->stack[1] - p->stack[0]);
            assert_int_equal(p->stride, x->record ? 4096 : member);
            for (size_t b = 0; b < p->bytes; b++)
                if (data[b / member * p->stride + b % member] != byte_of(k, r, b))
                    fail_msg("rank %d, %s: byte %zu differs", r, t->name, b);
        }
        assert_int_equal(at, n);
        munmap(map, bytes);
    }
    shardset_close(s);
    xfree(set);
    remove_folder(dir);
}

static void replace(struct buf *b, const char *from, const char *to)
{
    char *at = strstr(b->s, from);
    if (!at)
        fail_msg("the manifest has no %s", from);
    struct buf out = BUF_INIT;
    buf_add(&out, b->s, (size_t)(at - b->s));
    buf_adds(&out, to);
    buf_adds(&out, at + strlen(from));
    buf_release(b);
    *b = out;
}

static const struct wrong {
    const char *from, *to;
    int code;
    const char *words;
} wrongs[] = {
    {"\"yoke shard set\"", "\"something\"", ERR_FORMAT, "\"format\" should be \"yoke shard set\""},
    {"\"version\": 2", "\"version\": 1", ERR_UNSUPPORTED,
     "of version 1 (by yoke 0 \"test\"); this yoke reads version 2"},
    {"\"version\": 2", "\"version\": true", ERR_FORMAT, "\"version\" should be an integer"},
    {"\"packing\": 1", "\"packing\": 77", ERR_UNSUPPORTED, "packed in layout 77"},
    {"\"yoke\":", "\"yolk\":", ERR_FORMAT, "\"yoke\" should be a text"},
    {"\"w8a8\"", "\"w8\\u0007\"", ERR_FORMAT, "\"quant\" should be a text without control characters"},
    {"\"tp\": 2", "\"tp\": 0", ERR_FORMAT, "\"tp\" is 0"},
    {"\"tp\": 2, ", "", ERR_FORMAT, "\"tp\" should be an integer"},
    {"\"split\"", "\"spilt\"", ERR_FORMAT, "\"tp\" should be an integer"},
    {"{\n \"path\": \"/nowhere\"\n}", "7", ERR_FORMAT, "\"source\" should be an object"},
    {"rank_0001_of_0002.yoke", "../../etc/passwd", ERR_FORMAT, "\"file\" should be rank_0001_of_0002.yoke"},
    {"rank_0001_of_0002.yoke", "rank_0000_of_0002.yoke", ERR_FORMAT, "\"file\" should be rank_0001"},
    {"\"payload\": ", "\"payload\": 1", ERR_FORMAT, "but \"payload\" is 1"},
    {"\"sum\": \"", "\"sum\": \"x", ERR_FORMAT, "\"sum\" should be 32 hexadecimal digits"},
    {"\"ranks\": [\n", "\"ranks\": [], \"other\": [\n", ERR_FORMAT, "\"ranks\" should be a list"},
    {"\"tensors\": [\n", "\"tensors\": {}, \"other\": [\n", ERR_FORMAT, "\"tensors\" should be a list"},
    {"\"name\": \"q.weight\"", "\"name\": \"\"", ERR_FORMAT, "\"name\" should be a text"},
    {"\"name\": \"q.weight\"", "\"name\": \"q.*.weight\"", ERR_FORMAT, "if, and only if, there are experts"},
    {"\"name\": \"q.weight\"", "\"name\": \"o.weight\"", ERR_FORMAT,
     "\"o.weight split(head)\" is there twice"},
    {"\"src\": \"bf16\"", "\"src\": \"i64\"", ERR_FORMAT, "\"src\" should be the name of a weight format"},
    {"\"dtype\": \"i8c\"", "\"dtype\": \"i9c\"", ERR_FORMAT, "\"dtype\" should be the name"},
    {"\"dtype\": \"f32\"", "\"dtype\": \"bf16\"", ERR_FORMAT, "\"dtype\" should be f32 for a vector"},
    {"\"matrix\": false", "\"matrix\": 0", ERR_FORMAT, "\"matrix\" should be true or false"},
    {"\"matrix\": true", "\"matrix\": false", ERR_FORMAT, "should be f32 for a vector"},
    {"\"rows\": 21", "\"rows\": 20", ERR_FORMAT, "\"rows\" should be [begin, end] within 0 to 20"},
    {"\"rows\": 21", "\"rows\": 99999999999", ERR_FORMAT, "\"rows\" is 99999999999"},
    {"\"rows\": [0, 10]", "\"rows\": [11, 10]", ERR_FORMAT, "\"rows\" should be [begin, end]"},
    {"\"rows\": [0, 10]", "\"rows\": [-1, 10]", ERR_FORMAT, "\"rows\" should be [begin, end]"},
    {"\"rows\": [0, 10]", "\"rows\": [0, 10, 11]", ERR_FORMAT, "\"rows\" should be [begin, end]"},
    {"\"rows\": [0, 10]", "\"rows\": [0, 21]", ERR_FORMAT, "by its shape the part has"},
    {"\"columns\": [64, 150]", "\"columns\": [65, 150]", ERR_FORMAT, "\"cuts\" should ascend"},
    {"\"columns\": [160, 512]", "\"columns\": [160, 500]", ERR_FORMAT, "\"cuts\" should ascend"},
    {"\"experts\": [2, 5]", "\"experts\": [2, 6]", ERR_FORMAT,
     "\"experts\" should be [begin, end] within 0 to 5"},
    {"\"experts\": 5", "\"experts\": 0", ERR_FORMAT, "\"experts\" is 0"},
    {"\"cuts\": [0, 32, 64]", "\"cuts\": [0, 33, 64]", ERR_FORMAT, "in multiples of 32"},
    {"\"cuts\": [0, 32, 64]", "\"cuts\": [0, 64, 32]", ERR_FORMAT, "\"cuts\" should ascend"},
    {"\"cuts\": [0, 32, 64]", "\"cuts\": [0, 32]", ERR_FORMAT, "\"cuts\" should ascend"},
    {"\"cuts\": [0, 32, 64]", "\"cuts\": [0]", ERR_FORMAT, "\"cuts\" should ascend"},
    {"\"cuts\": [0, 32, 64]", "\"cuts\": [0, 0, 0, 0, 0, 0, 0, 0, 0, 64]", ERR_FORMAT,
     "\"cuts\" should ascend"},
    {"\"cuts\": [0, 5, 12]", "\"cuts\": [0, 5, 7, 12]", ERR_FORMAT,
     ""}, /* legal by itself, but the header... */
    {"\"scale_block\": [128, 128]", "\"scale_block\": [0, 128]", ERR_FORMAT, "\"scale_block\" should be"},
    {"\"scale_block\": [128, 128]", "\"scale_block\": [128, 8]", ERR_FORMAT, "by its shape the part has"},
    {"\"rank\": 1", "\"rank\": 0", ERR_FORMAT, "\"rank\" is 0, which is outside 1..1"},
    {"\"rank\": 1", "\"rank\": 2", ERR_FORMAT, "\"rank\" is 2"},
    {"\"offset\": 0", "\"offset\": 64", ERR_FORMAT, "is at offset 64"},
    {"\"offset\": 0", "\"offset\": -1", ERR_FORMAT, "\"offset\" is -1"},
    {"\"bytes\": 80", "\"bytes\": 81", ERR_FORMAT, "\"bytes\" is 81, but by its shape the part has 80"},
    {"\"stride\": 4096", "\"stride\": 4095", ERR_FORMAT, "\"stride\" is 4095"},
    {"\"stride\": 4096", "\"stride\": 4160", ERR_FORMAT, "\"stride\" should be a multiple of 4096"},
    {"\"stride\": 4096", "\"stride\": 8192", ERR_FORMAT, "\"ffn.*.up\" of rank 0 is at offset"},
    {"\"stride\": 4096", "\"stride\": 9223372036854771712", ERR_FORMAT,
     "\"ffn.*.gate\" of rank 0 is at offset"},
    {"\"stride\": 4096, ", "", ERR_FORMAT, "\"ffn.*.gate\" of rank 0 is at offset"},
    {"\"parts\": [\n", "\"parts\": [], \"x\": [\n", ERR_FORMAT, "\"parts\" should be a list"},
    {"]}\n", "]\n", ERR_FORMAT, "line"},
};

static void test_wrong_manifests(void **state)
{
    char *dir = temp_folder(), *set = path_join(dir, "set");
    struct buf good = BUF_INIT;
    struct err e;
    write_tiny(set);
    char *path = path_join(set, "manifest.json");
    must(file_slurp(path, 1 << 20, &good, &e), &e);
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        struct buf b = BUF_INIT;
        struct shardset *s;
        buf_add(&b, good.s, good.len);
        if (!strcmp(wrongs[i].from, "]}\n"))
            b.s[b.len -= 2] = 0; /* the last brace */
        else
            replace(&b, wrongs[i].from, wrongs[i].to);
        int rc = shardset_open_bytes(b.s, b.len, "here", &s, &e);
        if (!*wrongs[i].words) {
            must(rc, &e);
            shardset_close(s);
        } else if (rc != wrongs[i].code || !strstr(e.msg, wrongs[i].words)) {
            fail_msg("%s -> %s: expected %d \"%s\", but got %d \"%s\"", wrongs[i].from, wrongs[i].to,
                     wrongs[i].code, wrongs[i].words, rc, rc ? e.msg : "");
        } else {
            assert_null(strchr(e.msg, '\n'));
        }
        buf_release(&b);
    }
    /* cut anywhere: an error, never a smaller set */
    for (size_t n = 0; n + 2 < good.len; n += 13) {
        struct shardset *s;
        assert_int_equal(shardset_open_bytes(good.s, n, "here", &s, &e), ERR_FORMAT);
    }
    buf_release(&good);
    xfree(path);
    xfree(set);
    remove_folder(dir);
}

/* A manifest that was changed in a way that is legal by itself: the header has its sum from before. */
static void test_changed_manifest(void **state)
{
    char *dir = temp_folder(), *set = path_join(dir, "set"), *path = path_join(set, "manifest.json");
    struct buf b = BUF_INIT;
    struct shardset *s;
    struct err e;
    void *map;
    size_t bytes, payload_at;
    write_tiny(set);
    must(file_slurp(path, 1 << 20, &b, &e), &e);
    char *first = strstr(strstr(b.s, "\"tensors\""), "\"sum\": \"");
    char digit = first[8];
    first[8] = 'G';
    assert_int_equal(shardset_open_bytes(b.s, b.len, "here", &s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "32 hexadecimal digits"));
    first[8] = digit == '0' ? '1' : '0';
    write_text(set, "manifest.json", b.s);
    must(shardset_open(set, &s, &e), &e);
    assert_int_equal(shardset_map(s, 0, &map, &bytes, &payload_at, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "differ about \"norm.weight\""));
    shardset_close(s);
    buf_release(&b);
    xfree(path);
    xfree(set);
    remove_folder(dir);
}

/* For the fuzzer: the manifest, and a rank's header behind a 0. */
static void test_seeds(void **state)
{
    const char *to = getenv("YOKE_SEEDS");
    if (!to)
        skip();
    char *dir = temp_folder(), *set = path_join(dir, "set"), *path = path_join(set, "manifest.json"),
         *rank = path_join(set, "rank_0000_of_0002.yoke");
    struct buf b = BUF_INIT, head = BUF_INIT;
    struct err e;
    write_tiny(set);
    must(file_slurp(path, 1 << 20, &b, &e), &e);
    must(file_slurp(rank, 1 << 24, &head, &e), &e);
    write_file(to, "manifest", b.s, b.len);
    buf_addc(&b, 0);
    buf_add(&b, head.s, 4096);
    write_file(to, "manifest_and_header", b.s, b.len);
    buf_release(&b);
    buf_release(&head);
    xfree(rank);
    xfree(path);
    xfree(set);
    remove_folder(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_wrong_manifests),
        cmocka_unit_test(test_changed_manifest),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests_name("shardset", tests, NULL, NULL);
}
