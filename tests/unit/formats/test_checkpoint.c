#include "tests/unit/formats/helpers.h"

#include <pthread.h>
#include <sys/stat.h>
#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "formats/gguf_names.h"

static struct checkpoint *open_ok(const char *path, struct warn_sink *warn)
{
    struct checkpoint *c = NULL;
    struct err e = {0};
    if (checkpoint_open(path, warn, &c, &e))
        fail_msg("%s", e.msg);
    return c;
}

static void open_bad(const char *path, int code, const char *const *words)
{
    struct checkpoint *c = NULL;
    struct err e = {0};
    assert_error(checkpoint_open(path, NULL, &c, &e), &e, code, words);
    assert_null(c);
}

/* -- slices -----------------------------------------------------------------------------------------------
 */

/* One slice against the whole file's bytes. */
static void check_slice(const struct checkpoint *c, const struct tensor *t, const uint8_t *file, int64_t row0,
                        int64_t row1, int64_t col0, int64_t col1)
{
    struct err e = {0};
    int64_t cols = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    size_t stride = dtype_bytes(t->dtype, (size_t)cols), skip = dtype_bytes(t->dtype, (size_t)col0);
    size_t piece = dtype_bytes(t->dtype, (size_t)(col1 - col0)), n = piece * (size_t)(row1 - row0);
    uint8_t *dst = xmalloc(n + 1);
    memset(dst, 0xa5, n + 1);
    if (checkpoint_read(c, t, row0, row1, col0, col1, dst, &e))
        fail_msg("%s", e.msg);
    for (int64_t r = row0; r < row1; r++)
        if (memcmp(dst + (size_t)(r - row0) * piece, file + t->offset + (size_t)r * stride + skip, piece))
            fail_msg("%s: row %d of [%d, %d) x [%d, %d) differs", t->name, (int)r, (int)row0, (int)row1,
                     (int)col0, (int)col1);
    assert_int_equal(dst[n], 0xa5);
    xfree(dst);
}

static void check_all_slices(const struct checkpoint *c, const char *path)
{
    struct buf file = BUF_INIT;
    struct err e = {0};
    if (file_slurp(path, 1 << 20, &file, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        int64_t rows = 1, cols = t->n_dims ? t->dim[t->n_dims - 1] : 1, block = dtype_info(t->dtype)->block;
        if (!dtype_info(t->dtype)->block_bytes)
            continue;
        for (int d = 0; d < t->n_dims - 1; d++)
            rows *= t->dim[d];
        int64_t step = MAX(block, cols / 4 / block * block);
        for (int64_t r0 = 0; r0 <= rows; r0++)
            for (int64_t r1 = r0; r1 <= rows; r1++)
                for (int64_t c0 = 0; c0 <= cols; c0 += step)
                    for (int64_t c1 = c0; c1 <= cols; c1 += step)
                        check_slice(c, t, (const uint8_t *)file.s, r0, r1, c0, c1);
    }
    buf_release(&file);
}

static void test_slices_of_every_type(void **state)
{
    struct checkpoint *c = open_ok(GOLDEN("every_type.gguf"), NULL);
    bool seen[DT_COUNT] = {false};
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        seen[checkpoint_tensor(c, i)->dtype] = true;
    for (int t = DT_F32; t <= DT_Q6_K; t++)
        assert_true(seen[t]);
    check_all_slices(c, GOLDEN("every_type.gguf"));
    checkpoint_close(c);

    c = open_ok(GOLDEN("one_file"), NULL);
    check_all_slices(c, GOLDEN("one_file/model.safetensors"));
    checkpoint_close(c);
    checkpoint_close(NULL);
}

struct big {
    struct checkpoint *c;
    struct buf file;
    int failed;
};

static void *read_in_thread(void *arg)
{
    struct big *b = arg;
    const struct tensor *t = checkpoint_find(b->c, "short_rows");
    uint8_t *dst = xmalloc(3000 * 400);
    for (int k = 0; k < 4; k++) {
        int64_t col = 100 * k;
        struct err e;
        if (checkpoint_read(b->c, t, 0, 3000, col, col + 100, dst, &e))
            b->failed = 1;
        for (size_t r = 0; r < 3000 && !b->failed; r++)
            b->failed = memcmp(dst + r * 400, b->file.s + t->offset + r * 4000 + (size_t)col * 4, 400) != 0;
    }
    xfree(dst);
    return NULL;
}

/* Sizes beyond the scratch buffer: batches of short rows, pieces long enough to be read alone, rows longer
 * than the buffer; and several threads at once. */
static void test_large_slices(void **state)
{
    static const struct {
        const char *name;
        size_t rows, cols;
    } shapes[] = {{"short_rows", 3000, 1000}, {"long_pieces", 5, 50000}, {"huge_rows", 3, 1100000}};
    struct buf json = BUF_INIT;
    struct big b = {.file = BUF_INIT};
    struct err e = {0};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        size_t bytes = shapes[i].rows * shapes[i].cols * 4;
        buf_addf(&json, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}",
                 i ? "," : "{", shapes[i].name, shapes[i].rows, shapes[i].cols, n, n + bytes);
        n += bytes;
    }
    buf_addc(&json, '}');
    put_u64(&b.file, json.len);
    buf_add(&b.file, json.s, json.len);
    buf_reserve(&b.file, n);
    for (uint32_t i = 0; i < n / 4; i++) {
        uint32_t v = i * 2654435761u;
        buf_add(&b.file, &v, 4);
    }
    char *folder = temp_folder();
    write_text(folder, "config.json", "{\"model_type\":\"llama\"}");
    write_file(folder, "model.safetensors", b.file.s, b.file.len);
    b.c = open_ok(folder, NULL);
    const uint8_t *f = (const uint8_t *)b.file.s;
    const struct tensor *t = checkpoint_find(b.c, "short_rows");
    check_slice(b.c, t, f, 0, 3000, 0, 1000);
    check_slice(b.c, t, f, 0, 3000, 999, 1000);
    check_slice(b.c, t, f, 1, 2999, 0, 1);
    check_slice(b.c, t, f, 1000, 2048, 250, 500); /* 1048 rows are one batch, nearly */
    t = checkpoint_find(b.c, "long_pieces");
    check_slice(b.c, t, f, 0, 5, 1, 40000);
    check_slice(b.c, t, f, 1, 4, 25000, 50000);
    t = checkpoint_find(b.c, "huge_rows");
    check_slice(b.c, t, f, 0, 3, 1099999, 1100000);
    check_slice(b.c, t, f, 1, 3, 3, 5);
    check_slice(b.c, t, f, 0, 3, 0, 1100000);

    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_in_thread, &b), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    assert_false(b.failed);

    /* a file that shrinks under us is an error, not a crash */
    char *path = path_join(folder, "model.safetensors");
    assert_int_equal(truncate(path, 5000), 0);
    float x[1000];
    t = checkpoint_find(b.c, "short_rows");
    assert_error(checkpoint_read(b.c, t, 100, 101, 0, 1000, x, &e), &e, ERR_FORMAT,
                 WORDS("model.safetensors", "ended"));
    assert_error(checkpoint_read(b.c, t, 2, 9, 0, 10, x, &e), &e, ERR_FORMAT,
                 WORDS("model.safetensors", "ended"));
    xfree(path);
    checkpoint_close(b.c);
    remove_folder(folder);
    buf_release(&b.file);
    buf_release(&json);
}

static void test_bad_slices(void **state)
{
    struct checkpoint *c = open_ok(GOLDEN("every_type.gguf"), NULL);
    struct err e = {0};
    uint8_t b[8192];
    const struct tensor *t = checkpoint_find(c, "model.layers.1.self_attn.k_proj.weight");
    assert_int_equal(t->dtype, DT_Q6_K);
    assert_error(checkpoint_read(c, t, 0, 3, 0, 128, b, &e), &e, ERR_SPLIT,
                 WORDS("columns 0 to 128", "q6_k", "blocks of 256", "every_type.gguf", t->name));
    assert_error(checkpoint_read(c, t, 0, 3, 32, 256, b, &e), &e, ERR_SPLIT, WORDS("blocks of 256"));
    assert_error(checkpoint_read(c, t, 0, 4, 0, 512, b, &e), &e, ERR_SPLIT,
                 WORDS("rows 0 to 4", "3 rows of 512"));
    assert_error(checkpoint_read(c, t, 0, 3, 0, 768, b, &e), &e, ERR_SPLIT, WORDS("columns 0 to 768"));
    assert_error(checkpoint_read(c, t, -1, 3, 0, 512, b, &e), &e, ERR_SPLIT, WORDS("rows -1"));
    assert_error(checkpoint_read(c, t, 2, 1, 0, 512, b, &e), &e, ERR_SPLIT, WORDS("rows 2 to 1"));
    assert_error(checkpoint_read(c, t, 0, 1, 512, 256, b, &e), &e, ERR_SPLIT, WORDS("columns 512 to 256"));
    checkpoint_close(c);

    c = open_ok(GOLDEN("one_file"), NULL);
    t = checkpoint_find(c, "g.f8_e5m2");
    assert_int_equal(t->dtype, DT_NONE);
    assert_error(checkpoint_read(c, t, 0, 1, 0, 5, b, &e), &e, ERR_UNSUPPORTED,
                 WORDS("g.f8_e5m2", "dtype F8_E5M2"));
    checkpoint_close(c);
}

/* -- folders ----------------------------------------------------------------------------------------------
 */

static int64_t config_int(const struct checkpoint *c, const char *key)
{
    return json_integer_value(json_object_get(checkpoint_config(c), key));
}
static const char *config_string(const struct checkpoint *c, const char *key)
{
    return json_string_value(json_object_get(checkpoint_config(c), key));
}

static void test_one_file(void **state)
{
    struct warnings w = WARNINGS;
    struct checkpoint *c = open_ok(GOLDEN("one_file"), &w.sink);
    assert_int_equal(w.n, 0);
    assert_string_equal(checkpoint_path(c), GOLDEN("one_file"));
    assert_null(checkpoint_gguf(c));
    assert_int_equal(config_int(c, "hidden_size"), 16);
    assert_int_equal(json_array_size(json_object_get(checkpoint_generation_config(c), "eos_token_id")), 2);
    assert_int_equal(checkpoint_n_tensors(c), 10);
    assert_int_equal(checkpoint_n_bytes(c), 240 + 120 + 120 + 48 + 48 + 60 + 60 + 4 + 0 + 2);
    const struct tensor *t = checkpoint_find(c, "c.bf16");
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->dim[1], 4);
    assert_string_equal(checkpoint_file_name(c, t->file), "model.safetensors");
    assert_null(checkpoint_find(c, "no.such"));
    checkpoint_close(c);

    c = open_ok(GOLDEN("one_file/model.safetensors"), &w.sink); /* by the file's own path */
    assert_int_equal(checkpoint_n_tensors(c), 10);
    assert_int_equal(config_int(c, "vocab_size"), 8);
    checkpoint_close(c);
    assert_int_equal(w.n, 0);
    buf_release(&w.text);
}

static void test_sharded(void **state)
{
    struct warnings w = WARNINGS;
    struct err e = {0};
    float x[8];
    struct checkpoint *c = open_ok(GOLDEN("sharded"), &w.sink);
    assert_int_equal(w.n, 0);
    assert_null(checkpoint_generation_config(c));
    /* config.json has a model_type only */
    const json_t *a = json_object_get(checkpoint_config(c), "architectures");
    assert_string_equal(json_string_value(json_array_get(a, 0)), "LlamaForCausalLM");
    assert_int_equal(checkpoint_n_tensors(c), 3);
    const struct tensor *t = checkpoint_find(c, "y");
    assert_int_equal(checkpoint_read(c, t, 0, 1, 2, 5, x, &e), 0);
    assert_true(x[0] == 2 && x[2] == 4);
    t = checkpoint_find(c, "z");
    assert_int_equal(t->dtype, DT_BF16);
    assert_string_equal(checkpoint_file_name(c, t->file), "model-00002-of-00002.safetensors");
    checkpoint_close(c);
    open_bad(GOLDEN("sharded/model-00001-of-00002.safetensors"), ERR_FORMAT,
             WORDS("one of 2 files", "only 1"));
    buf_release(&w.text);
}

static void put_tensor(const char *folder, const char *file, const char *tensor)
{
    char *json = xasprintf("{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", tensor);
    struct buf b = safetensors_bytes(json, 8);
    write_file(folder, file, b.s, b.len);
    buf_release(&b);
    xfree(json);
}

static void remove_in(const char *folder, const char *name)
{
    char *path = path_join(folder, name);
    assert_int_equal(remove(path), 0);
    xfree(path);
}

static void test_folders_one_after_the_other(void **state)
{
    struct warnings w = WARNINGS;
    char *d = temp_folder();
    open_bad("/nonexistent/model", ERR_IO, WORDS("/nonexistent/model"));
    open_bad(d, ERR_FORMAT, WORDS(d, "no config.json", "GGUF"));
    write_text(d, "config.json", "[]");
    open_bad(d, ERR_FORMAT, WORDS("config.json should be a JSON object"));
    write_text(d, "config.json", "{\"a\":");
    open_bad(d, ERR_FORMAT, WORDS("config.json", "line 1"));
    write_text(d, "config.json", "{}");
    open_bad(d, ERR_FORMAT, WORDS("config.json", "neither \"architectures\" nor \"model_type\""));
    write_text(d, "config.json", "{\"model_type\":\"llama\"}");
    open_bad(d, ERR_FORMAT, WORDS("no weights", "model.safetensors.index.json", "config.json"));
    write_text(d, "pytorch_model.bin", "PK\3\4");
    open_bad(d, ERR_FORMAT, WORDS("no weights", "pytorch_model.bin", "convert it to safetensors"));
    write_text(d, "model-q4.gguf", "GGUF");
    open_bad(d, ERR_FORMAT, WORDS("no weights", "model-q4.gguf", "give its own path"));

    put_tensor(d, "weights.safetensors", "a"); /* any one file will do */
    struct checkpoint *c = open_ok(d, &w.sink);
    assert_int_equal(checkpoint_n_tensors(c), 1);
    assert_int_equal(w.n, 0);
    checkpoint_close(c);

    put_tensor(d, "more.safetensors", "b"); /* two: both, with a warning */
    c = open_ok(d, &w.sink);
    assert_int_equal(checkpoint_n_tensors(c), 2);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text.s, "2 safetensors files, but no model.safetensors.index.json"));
    checkpoint_close(c);
    put_tensor(d, "more.safetensors", "a");
    open_bad(d, ERR_FORMAT, WORDS("\"a\" is there twice", "more.safetensors", "weights.safetensors"));

    put_tensor(d, "model.safetensors", "c"); /* the name that counts; the others are mentioned */
    buf_clear(&w.text);
    w.n = 0;
    c = open_ok(d, &w.sink);
    assert_non_null(checkpoint_find(c, "c"));
    assert_int_equal(checkpoint_n_tensors(c), 1);
    assert_int_equal(w.n, 2);
    assert_non_null(strstr(w.text.s, "more.safetensors is not part of the model"));
    checkpoint_close(c);

    write_text(d, "generation_config.json", "nonsense");
    open_bad(d, ERR_FORMAT, WORDS("generation_config.json"));
    write_text(d, "generation_config.json", "{\"top_k\":5}");
    c = open_ok(d, NULL);
    assert_int_equal(json_integer_value(json_object_get(checkpoint_generation_config(c), "top_k")), 5);
    checkpoint_close(c);

    write_text(d, "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n");
    open_bad(d, ERR_FORMAT, WORDS("model.safetensors", "Git LFS pointer"));
    write_text(d, "model.safetensors", "");
    open_bad(d, ERR_FORMAT, WORDS("model.safetensors", "0 bytes"));
    remove_in(d, "model.safetensors");
    remove_in(d, "weights.safetensors");
    remove_in(d, "more.safetensors");
    put_tensor(d, "model-00001-of-00003.safetensors", "a");
    put_tensor(d, "model-00003-of-00003.safetensors", "b");
    open_bad(d, ERR_FORMAT, WORDS("one of 3 files", "only 2", "incomplete download"));

    char *readme = path_join(d, "README.md");
    write_text(d, "README.md", "<html>");
    open_bad(readme, ERR_FORMAT, WORDS("README.md", "web page", "a GGUF file"));
    write_text(d, "README.md", "hello");
    open_bad(readme, ERR_FORMAT, WORDS("README.md is no model", "a GGUF file"));
    xfree(readme);
    buf_release(&w.text);
    remove_folder(d);
}

/* A file in the current folder, by its bare name. */
static void test_bare_name(void **state)
{
    char old[4096];
    assert_non_null(getcwd(old, sizeof(old)));
    assert_int_equal(chdir(GOLDEN("one_file")), 0);
    struct checkpoint *c = open_ok("model.safetensors", NULL);
    assert_int_equal(checkpoint_n_tensors(c), 10);
    checkpoint_close(c);
    c = open_ok(".", NULL);
    assert_int_equal(checkpoint_n_tensors(c), 10);
    checkpoint_close(c);
    assert_int_equal(chdir(old), 0);
}

static void test_five_dimensions(void **state)
{
    char *d = temp_folder();
    write_text(d, "config.json", "{\"model_type\":\"llama\"}");
    struct buf b =
        safetensors_bytes("{\"conv\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}", 8);
    write_file(d, "model.safetensors", b.s, b.len);
    open_bad(d, ERR_UNSUPPORTED, WORDS("\"conv\" has 5 dimensions", "up to 4"));
    buf_release(&b);
    remove_folder(d);
}

static void test_index(void **state)
{
    struct warnings w = WARNINGS;
    static const char name[] = "model.safetensors.index.json";
    char *d = temp_folder();
    write_text(d, "config.json", "{\"model_type\":\"llama\"}");
    put_tensor(d, "one.safetensors", "a");
    put_tensor(d, "two.safetensors", "b");

    write_text(d, name, "{\"weight_map\":");
    open_bad(d, ERR_FORMAT, WORDS(name, "line 1"));
    write_text(d, name, "[]");
    open_bad(d, ERR_FORMAT, WORDS(name, "weight_map"));
    write_text(d, name, "{\"weight_map\":{}}");
    open_bad(d, ERR_FORMAT, WORDS(name, "weight_map"));
    write_text(d, name, "{\"weight_map\":{\"a\":3}}");
    open_bad(d, ERR_FORMAT, WORDS(name, "\"a\" should be given the name of a file"));
    static const char *const outside[] = {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..",
                                          ""};
    for (size_t i = 0; i < ARRAY_LEN(outside); i++) {
        char *s = xasprintf("{\"weight_map\":{\"a\":\"%s\"}}", outside[i]);
        write_text(d, name, s);
        open_bad(d, ERR_FORMAT, WORDS(name, "in the same folder"));
        xfree(s);
    }
    write_text(
        d, name,
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}");
    open_bad(d, ERR_FORMAT, WORDS(name, "2 files that are not there: x.safetensors, y.safetensors"));
    struct buf many = BUF_INIT;
    for (int i = 0; i < 20; i++)
        buf_addf(&many, "%s\"t%d\":\"absent-%02d\"", i ? "," : "{\"weight_map\":{", i, i);
    buf_adds(&many, "}}");
    write_text(d, name, many.s);
    open_bad(d, ERR_FORMAT,
             WORDS("20 files that are not there: absent-00, absent-01", "absent-07 and 12 more"));
    buf_release(&many);
    write_text(d, name, "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    open_bad(d, ERR_FORMAT, WORDS("\"c\" is in two.safetensors, but it is in none"));
    write_text(d, name, "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}");
    open_bad(d, ERR_FORMAT, WORDS("\"a\" is in two.safetensors, but it is in one.safetensors"));

    /* a tensor that the index does not name is there, with a warning; so is a file, but not read */
    struct buf b = safetensors_bytes("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                     "\"more\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
                                     4);
    write_file(d, "two.safetensors", b.s, b.len);
    buf_release(&b);
    put_tensor(d, "consolidated.safetensors", "a");
    write_text(d, name, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    struct checkpoint *c = open_ok(d, &w.sink);
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_non_null(checkpoint_find(c, "more"));
    assert_int_equal(w.n, 2);
    assert_non_null(strstr(w.text.s, "does not name 1 tensor that the files hold: more"));
    assert_non_null(strstr(w.text.s, "consolidated.safetensors is not part of the model"));
    checkpoint_close(c);

    put_tensor(d, "two.safetensors", "a"); /* duplicate across shards */
    open_bad(d, ERR_FORMAT, WORDS("\"a\" is there twice, in one.safetensors and in two.safetensors"));
    buf_release(&w.text);
    remove_folder(d);
}

/* -- GGUF -------------------------------------------------------------------------------------------------
 */

/* Metadata as small as it may be. */
static struct gguf_spec minimal(const char *arch)
{
    struct gguf_spec s = GGUF_SPEC;
    static const struct {
        const char *key;
        uint32_t v;
    } ints[] = {{"embedding_length", 32},
                {"block_count", 2},
                {"attention.head_count", 4},
                {"feed_forward_length", 64},
                {"context_length", 128}};
    char key[64];
    key_str(&s, "general.architecture", arch);
    for (size_t i = 0; i < ARRAY_LEN(ints); i++) {
        snprintf(key, sizeof(key), "%s.%s", arch, ints[i].key);
        key_u32(&s, key, ints[i].v);
    }
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", arch);
    key_f32(&s, key, 1e-6f);
    tensor_f32(&s, "token_embd.weight", 32, 10);
    tensor_f32(&s, "output_norm.weight", 32, 0);
    return s;
}

static char *test_folder, *test_path; /* of a GGUF; main makes and removes them */

static void write_spec(struct gguf_spec *s)
{
    struct buf b = gguf_bytes(s);
    write_file(test_folder, "model.gguf", b.s, b.len);
    buf_release(&b);
}

static struct checkpoint *spec_ok(struct gguf_spec s)
{
    write_spec(&s);
    return open_ok(test_path, NULL);
}

static void spec_bad(struct gguf_spec s, int code, const char *const *words)
{
    write_spec(&s);
    open_bad(test_path, code, words);
}

static void assert_config(const json_t *config, const char *want)
{
    json_error_t je;
    json_t *w = json_loads(want, JSON_DECODE_ANY, &je);
    assert_non_null(w);
    if (!json_equal(config, w)) {
        char *s = json_dumps(config, JSON_SORT_KEYS | JSON_COMPACT);
        fail_msg("the configuration is %s", s);
    }
    json_decref(w);
}

static void test_gguf_minimal(void **state)
{
    struct checkpoint *c = spec_ok(minimal("llama"));
    assert_config(
        checkpoint_config(c),
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":8,"
        "\"intermediate_size\":64,\"vocab_size\":10,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
        "\"rope_interleaved\":true,\"max_position_embeddings\":128,\"tie_word_embeddings\":true,"
        "\"attention_bias\":false,\"mlp_bias\":false,\"dtype\":\"float32\",\"hidden_act\":\"silu\"}");
    assert_null(checkpoint_generation_config(c));
    assert_non_null(checkpoint_gguf(c));
    assert_int_equal(checkpoint_n_tensors(c), 2);
    const struct tensor *t = checkpoint_find(c, "model.embed_tokens.weight");
    assert_int_equal(t->dim[0], 10);
    assert_int_equal(t->dim[1], 32);
    float x[64];
    struct err e;
    assert_int_equal(checkpoint_read(c, t, 1, 3, 0, 32, x, &e), 0);
    assert_true(x[0] == 33 && x[63] == 96);
    checkpoint_close(c);
}

/* Without embeddings (a part of a model?), the tokens tell the size of the vocabulary. */
static void test_gguf_vocabulary_from_tokens(void **state)
{
    struct gguf_spec s = minimal("llama");
    buf_clear(&s.tensors);
    s.n_tensors = 0;
    tensor_f32(&s, "output_norm.weight", 32, 0);
    key_array(&s, "tokenizer.ggml.tokens", 8, 3);
    put_str(&s.keys, "a");
    put_str(&s.keys, "b");
    put_str(&s.keys, "c");
    struct checkpoint *c = spec_ok(s);
    assert_int_equal(config_int(c, "vocab_size"), 3);
    checkpoint_close(c);
}

static void test_gguf_llama_with_everything(void **state)
{
    struct gguf_spec s = minimal("llama");
    key_array(&s, "llama.attention.head_count_kv", 4, 2); /* per layer, but the same */
    put_u32(&s.keys, 2);
    put_u32(&s.keys, 2);
    key_u32(&s, "llama.attention.key_length", 16);
    key_u32(&s, "llama.attention.value_length", 16);
    key_u32(&s, "llama.rope.dimension_count", 8);
    key_f32(&s, "llama.rope.freq_base", 500000);
    key_u32(&s, "llama.attention.sliding_window", 64);
    key_str(&s, "llama.rope.scaling.type", "yarn");
    key_f32(&s, "llama.rope.scaling.factor", 4);
    key_u32(&s, "llama.rope.scaling.original_context_length", 32);
    key_f32(&s, "llama.rope.scaling.yarn_beta_fast", 16);
    key_u32(&s, "tokenizer.ggml.bos_token_id", 1);
    key_u32(&s, "tokenizer.ggml.eos_token_id", 2);
    key_u32(&s, "tokenizer.ggml.eot_token_id", 2);
    key_u32(&s, "tokenizer.ggml.eom_token_id", 7);
    key_f32(&s, "general.sampling.temp", 0.6f);
    key_u32(&s, "general.sampling.top_k", 20);
    key_f32(&s, "general.sampling.top_p", 0.95f);
    tensor_f32(&s, "output.weight", 32, 10);
    tensor_f32(&s, "rope_freqs.weight", 4, 0); /* 673 to 676, see gguf_bytes */
    tensor_f32(&s, "blk.0.attn_q.weight", 32, 64);
    tensor_f32(&s, "blk.0.attn_q.bias", 64, 0);
    tensor_f32(&s, "blk.0.ffn_up.bias", 64, 0);
    tensor_f32(&s, "blk.1.ffn_norm.weight", 32, 0);
    tensor_f32(&s, "blk.1.something.else", 32, 0);
    struct checkpoint *c = spec_ok(s);
    assert_config(
        checkpoint_config(c),
        "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"hidden_size\":32,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
        "\"intermediate_size\":64,\"vocab_size\":10,\"rms_norm_eps\":1e-6,\"rope_theta\":500000.0,"
        "\"rope_interleaved\":true,\"max_position_embeddings\":128,\"tie_word_embeddings\":false,"
        "\"attention_bias\":true,\"mlp_bias\":true,\"dtype\":\"float32\",\"hidden_act\":\"silu\","
        "\"partial_rotary_factor\":0.5,\"sliding_window\":64,\"bos_token_id\":1,\"eos_token_id\":2,"
        "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32,"
        "\"beta_fast\":16.0},\"rope_freq_factors\":[673.0,674.0,675.0,676.0]}");
    assert_config(
        checkpoint_generation_config(c),
        "{\"eos_token_id\":[2,7],\"bos_token_id\":1,\"temperature\":0.6,\"do_sample\":true,\"top_k\":20,"
        "\"top_p\":0.95}");
    assert_null(checkpoint_find(c, "rope_freqs.weight"));
    assert_non_null(checkpoint_find(c, "lm_head.weight"));
    assert_non_null(checkpoint_find(c, "model.layers.0.self_attn.q_proj.bias"));
    assert_non_null(checkpoint_find(c, "model.layers.1.post_attention_layernorm.weight"));
    assert_non_null(checkpoint_find(c, "blk.1.something.else")); /* the loader will say that it is extra */
    checkpoint_close(c);
}

static void test_gguf_rope(void **state)
{
    struct gguf_spec s = minimal("qwen2");
    key_str(&s, "qwen2.rope.scaling.type", "linear");
    key_f32(&s, "qwen2.rope.scaling.factor", 2.5f);
    struct checkpoint *c = spec_ok(s);
    assert_config(json_object_get(checkpoint_config(c), "rope_scaling"),
                  "{\"rope_type\":\"linear\",\"factor\":2.5}");
    assert_null(json_object_get(checkpoint_config(c), "rope_interleaved"));
    checkpoint_close(c);

    s = minimal("qwen2");
    key_f32(&s, "qwen2.rope.scale_linear", 4); /* as old files say it */
    c = spec_ok(s);
    assert_config(json_object_get(checkpoint_config(c), "rope_scaling"),
                  "{\"rope_type\":\"linear\",\"factor\":4.0}");
    checkpoint_close(c);

    s = minimal("qwen2");
    key_str(&s, "qwen2.rope.scaling.type", "none");
    key_f32(&s, "qwen2.rope.scaling.factor", 4);
    c = spec_ok(s);
    assert_null(json_object_get(checkpoint_config(c), "rope_scaling"));
    checkpoint_close(c);

    s = minimal("qwen2");
    key_str(&s, "qwen2.rope.scaling.type", "yarn");
    key_f32(&s, "qwen2.rope.scaling.factor", 1);
    key_f32(&s, "qwen2.rope.scaling.yarn_attn_factor", 0.5f);
    c = spec_ok(s); /* the usual 0.1 ln(1) + 1, halved */
    assert_config(json_object_get(checkpoint_config(c), "rope_scaling"),
                  "{\"rope_type\":\"yarn\",\"factor\":1.0,\"attention_factor\":0.5}");
    checkpoint_close(c);

    s = minimal("qwen2");
    key_str(&s, "qwen2.rope.scaling.type", "longrope");
    spec_bad(s, ERR_UNSUPPORTED, WORDS("rope.scaling.type is \"longrope\"", "none, linear, yarn"));
    s = minimal("qwen2");
    key_u32(&s, "qwen2.rope.scaling.type", 1);
    spec_bad(s, ERR_FORMAT, WORDS("\"qwen2.rope.scaling.type\" should be a string"));
    s = minimal("qwen2");
    key_f32(&s, "qwen2.rope.freq_base", -1);
    spec_bad(s, ERR_FORMAT, WORDS("rope.freq_base (-1)", "positive"));
}

static struct gguf_spec deepseek_v2(uint32_t key_length, uint32_t value_length)
{
    struct gguf_spec s = minimal("deepseek2");
    key_u32(&s, "deepseek2.expert_count", 16);
    key_u32(&s, "deepseek2.expert_used_count", 4);
    key_u32(&s, "deepseek2.expert_feed_forward_length", 24);
    key_u32(&s, "deepseek2.expert_shared_count", 1);
    key_u32(&s, "deepseek2.leading_dense_block_count", 1);
    key_u32(&s, "deepseek2.attention.kv_lora_rank", 16);
    key_u32(&s, "deepseek2.attention.key_length", key_length);
    key_u32(&s, "deepseek2.attention.value_length", value_length);
    key_u32(&s, "deepseek2.rope.dimension_count", 8);
    return s;
}

static void test_gguf_architectures(void **state)
{
    static const struct {
        const char *arch, *model_type, *architecture;
    } dense[] = {{"llama", "llama", "LlamaForCausalLM"},
                 {"qwen2", "qwen2", "Qwen2ForCausalLM"},
                 {"qwen3", "qwen3", "Qwen3ForCausalLM"}};
    for (size_t i = 0; i < ARRAY_LEN(dense); i++) {
        struct checkpoint *c = spec_ok(minimal(dense[i].arch));
        assert_string_equal(config_string(c, "model_type"), dense[i].model_type);
        const json_t *a = json_object_get(checkpoint_config(c), "architectures");
        assert_string_equal(json_string_value(json_array_get(a, 0)), dense[i].architecture);
        checkpoint_close(c);
    }
    struct gguf_spec s = minimal("llama");
    key_u32(&s, "llama.expert_count", 8);
    struct checkpoint *c = spec_ok(s);
    assert_string_equal(config_string(c, "model_type"),
                        "mixtral"); /* which yoke does not know, and will say so */
    checkpoint_close(c);

    s = minimal("qwen3moe");
    key_u32(&s, "qwen3moe.expert_count", 128);
    key_u32(&s, "qwen3moe.expert_used_count", 8);
    spec_bad(s, ERR_FORMAT, WORDS("no metadata key \"qwen3moe.expert_feed_forward_length\""));
    s = minimal("qwen3moe");
    key_u32(&s, "qwen3moe.expert_count", 128);
    key_u32(&s, "qwen3moe.expert_used_count", 8);
    key_u32(&s, "qwen3moe.expert_feed_forward_length", 48);
    c = spec_ok(s);
    assert_string_equal(config_string(c, "model_type"), "qwen3_moe");
    assert_int_equal(config_int(c, "num_experts"), 128);
    assert_int_equal(config_int(c, "moe_intermediate_size"), 48);
    assert_true(json_is_true(json_object_get(checkpoint_config(c), "norm_topk_prob")));
    checkpoint_close(c);

    s = deepseek_v2(24, 16); /* of the compressed form; V3's true ones and its gating: */
    key_u32(&s, "deepseek2.attention.head_count_kv", 1);
    key_u32(&s, "deepseek2.attention.key_length_mla", 20);
    key_u32(&s, "deepseek2.attention.value_length_mla", 12);
    key_u32(&s, "deepseek2.expert_gating_func", 2);
    key_bool(&s, "deepseek2.expert_weights_norm", 1);
    key_f32(&s, "deepseek2.expert_weights_scale", 2.5f);
    key_str(&s, "deepseek2.rope.scaling.type", "yarn");
    key_f32(&s, "deepseek2.rope.scaling.factor", 40);
    key_u32(&s, "deepseek2.rope.scaling.original_context_length", 4096);
    key_f32(&s, "deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
    c = spec_ok(s);
    assert_config(
        checkpoint_config(c),
        "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"hidden_size\":32,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
        "\"qk_rope_head_dim\":8,\"qk_nope_head_dim\":12,\"v_head_dim\":12,\"kv_lora_rank\":16,"
        "\"intermediate_size\":64,\"vocab_size\":10,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
        "\"max_position_embeddings\":128,\"tie_word_embeddings\":true,\"attention_bias\":false,"
        "\"n_routed_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":24,"
        "\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"norm_topk_prob\":true,"
        "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\","
        "\"dtype\":\"float32\",\"hidden_act\":\"silu\",\"rope_scaling\":{\"rope_type\":\"yarn\","
        "\"factor\":40.0,\"original_max_position_embeddings\":4096,\"mscale\":0.707,"
        "\"mscale_all_dim\":0.707}}");
    checkpoint_close(c);

    /* V2, an older file, without compressed lengths */
    s = deepseek_v2(24, 16);
    c = spec_ok(s);
    assert_string_equal(config_string(c, "model_type"), "deepseek_v2");
    assert_int_equal(config_int(c, "qk_nope_head_dim"), 16);
    assert_int_equal(config_int(c, "v_head_dim"), 16);
    assert_string_equal(config_string(c, "topk_method"), "greedy");
    checkpoint_close(c);
    s = deepseek_v2(24, 16);
    key_u32(&s, "deepseek2.expert_group_count", 8);
    c = spec_ok(s);
    assert_string_equal(config_string(c, "topk_method"), "group_limited_greedy");
    checkpoint_close(c);
    s = deepseek_v2(24, 16);
    key_u32(&s, "deepseek2.expert_weights_norm", 1);
    spec_bad(s, ERR_FORMAT, WORDS("\"deepseek2.expert_weights_norm\" should be of type bool"));
    spec_bad(deepseek_v2(8, 16), ERR_FORMAT, WORDS("attention.key_length (8)", "rope.dimension_count (8)"));
}

static void test_gguf_names(void **state)
{
    static const struct {
        const char *arch, *gguf, *hf;
    } v[] = {
        {"llama", "token_embd.weight", "model.embed_tokens.weight"},
        {"llama", "output_norm.weight", "model.norm.weight"},
        {"llama", "output.weight", "lm_head.weight"},
        {"llama", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
        {"llama", "blk.10.attn_q.weight", "model.layers.10.self_attn.q_proj.weight"},
        {"llama", "blk.10.attn_k.bias", "model.layers.10.self_attn.k_proj.bias"},
        {"llama", "blk.10.attn_v.weight", "model.layers.10.self_attn.v_proj.weight"},
        {"llama", "blk.123.attn_output.weight", "model.layers.123.self_attn.o_proj.weight"},
        {"llama", "blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
        {"llama", "blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"},
        {"llama", "blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"},
        {"llama", "blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"},
        {"qwen3", "blk.2.attn_q_norm.weight", "model.layers.2.self_attn.q_norm.weight"},
        {"qwen3", "blk.2.attn_k_norm.weight", "model.layers.2.self_attn.k_norm.weight"},
        {"qwen2moe", "blk.2.ffn_gate_inp.weight", "model.layers.2.mlp.gate.weight"},
        {"qwen2moe", "blk.2.ffn_gate_exps.weight", "model.layers.2.mlp.experts.gate_proj.weight"},
        {"qwen2moe", "blk.2.ffn_down_shexp.weight", "model.layers.2.mlp.shared_expert.down_proj.weight"},
        {"qwen2moe", "blk.2.ffn_gate_inp_shexp.weight", "model.layers.2.mlp.shared_expert_gate.weight"},
        {"deepseek2", "blk.2.ffn_down_shexp.weight", "model.layers.2.mlp.shared_experts.down_proj.weight"},
        {"deepseek2", "blk.2.exp_probs_b.bias", "model.layers.2.mlp.gate.e_score_correction_bias"},
        {"deepseek2", "blk.2.attn_kv_a_mqa.weight", "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"},
        {"deepseek2", "blk.2.attn_q_a_norm.weight", "model.layers.2.self_attn.q_a_layernorm.weight"},
        /* in no table, or not the table's form: as they are */
        {"qwen3", "blk.2.ffn_down_shexp.weight", "blk.2.ffn_down_shexp.weight"},
        {"llama", "blk.07.attn_q.weight", "blk.07.attn_q.weight"},
        {"llama", "blk..attn_q.weight", "blk..attn_q.weight"},
        {"llama", "blk.1.weight", "blk.1.weight"},
        {"llama", "blk.1", "blk.1"},
        {"llama", "blk.", "blk."},
        {"llama", "blk.weight", "blk.weight"},
        {"llama", "blk.1..weight", "blk.1..weight"},
        {"llama", "blk.-1.attn_q.weight", "blk.-1.attn_q.weight"},
        {"llama", "output", "output"},
        {"llama", "output.weight.weight", "output.weight.weight"},
        {"llama", "attn_q.weight", "attn_q.weight"},
        {"llama", ".weight", ".weight"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct gguf_spec s = GGUF_SPEC;
        struct buf out = BUF_INIT, b;
        struct gguf *g;
        const struct gguf_arch *a;
        struct err e;
        key_str(&s, "general.architecture", v[i].arch);
        b = gguf_bytes(&s);
        assert_int_equal(gguf_open_bytes(b.s, b.len, "mem", &g, &e), 0);
        assert_int_equal(gguf_arch_find(g, &a, &e), 0);
        gguf_hf_name(a, v[i].gguf, &out);
        assert_string_equal(out.s, v[i].hf);
        gguf_close(g);
        buf_release(&out);
        buf_release(&b);
    }
}

static void test_gguf_bad_models(void **state)
{
    struct gguf_spec s = GGUF_SPEC;
    tensor_f32(&s, "t", 4, 0);
    spec_bad(s, ERR_FORMAT, WORDS("no metadata key \"general.architecture\""));
    spec_bad(minimal("gpt2"), ERR_UNSUPPORTED, WORDS("architecture \"gpt2\"", "llama, qwen2, qwen3"));
    spec_bad(minimal("clip"), ERR_UNSUPPORTED, WORDS("architecture \"clip\""));

    s = minimal("llama");
    s.keys.s[s.keys.len - 9]++; /* spoils the last key's name: ...epsilon -> ...epsiloo */
    spec_bad(s, ERR_FORMAT,
             WORDS("no metadata key \"llama.attention.layer_norm_rms_epsilon\"", "llama need"));

    s = minimal("llama");
    key_array(&s, "llama.attention.head_count_kv", 5, 2);
    put_u32(&s.keys, 2);
    put_u32(&s.keys, 4);
    spec_bad(s, ERR_UNSUPPORTED, WORDS("\"llama.attention.head_count_kv\" differs from layer to layer"));
    s = minimal("llama");
    key_array(&s, "llama.attention.head_count_kv", 8, 1);
    put_str(&s.keys, "2");
    spec_bad(s, ERR_FORMAT, WORDS("\"llama.attention.head_count_kv\" should be an integer"));
    s = minimal("llama");
    key_array(&s, "llama.attention.head_count_kv", 5, 0);
    spec_bad(s, ERR_FORMAT, WORDS("\"llama.attention.head_count_kv\" should be an integer"));
    s = minimal("llama");
    key_u32(&s, "llama.attention.head_count_kv", UINT32_MAX);
    spec_bad(s, ERR_FORMAT, WORDS("\"llama.attention.head_count_kv\"", "0 to 2^31-1"));
    s = minimal("llama");
    key_f32(&s, "llama.rope.freq_base", 0.0f / 0.0f);
    spec_bad(s, ERR_FORMAT, WORDS("\"llama.rope.freq_base\" should be a finite number"));
    s = minimal("llama");
    key_u32(&s, "llama.attention.key_length", 16);
    key_u32(&s, "llama.attention.value_length", 8);
    spec_bad(s, ERR_UNSUPPORTED, WORDS("keys of length 16", "values of length 8"));
    s = minimal("llama");
    key_u32(&s, "llama.rope.dimension_count", 7);
    spec_bad(s, ERR_FORMAT, WORDS("rope.dimension_count is 7", "even"));
    s = minimal("llama");
    key_u32(&s, "llama.rope.dimension_count", 16);
    spec_bad(s, ERR_FORMAT, WORDS("rope.dimension_count is 16", "8"));

    s = minimal("llama");
    s.n_keys = 0;
    buf_clear(&s.keys);
    key_str(&s, "general.architecture", "llama");
    key_u32(&s, "llama.embedding_length", 32);
    key_u32(&s, "llama.block_count", 2);
    key_u32(&s, "llama.attention.head_count", 0);
    spec_bad(s, ERR_FORMAT, WORDS("\"llama.attention.head_count\" is 0", "at least 1"));
    s = minimal("llama");
    for (size_t i = 0; i + 24 < s.keys.len; i++)
        if (!memcmp(s.keys.s + i, "attention.head_count\4\0\0\0\4", 25))
            s.keys.s[i + 24] = 5;
    spec_bad(s, ERR_FORMAT, WORDS("embedding_length of 32", "head_count of 5", "attention.key_length"));

    s = minimal("llama"); /* two GGUF names, one name after mapping */
    tensor_f32(&s, "model.embed_tokens.weight", 4, 4);
    spec_bad(s, ERR_FORMAT, WORDS("\"model.embed_tokens.weight\" is there twice"));
    s = minimal("llama");
    tensor_f32(&s, "rope_freqs.weight", 4, 2);
    spec_bad(s, ERR_FORMAT, WORDS("\"rope_freqs.weight\" should be a vector"));
    s = minimal("llama");
    tensor_f32(&s, "rope_freqs.weight", 4, 0);
    struct buf b = gguf_bytes(&s);
    float zero = 0;
    memcpy(b.s + b.len - 8, &zero, 4);
    write_file(test_folder, "model.gguf", b.s, b.len);
    buf_release(&b);
    open_bad(test_path, ERR_FORMAT, WORDS("element 2 of \"rope_freqs.weight\" is 0", "positive"));
    s = minimal("llama");
    s.n_data = ROUND_UP(s.n_data, 32);
    tensor_at(&s, "rope_freqs.weight", 26, 4, 0, s.n_data); /* i32 */
    s.n_data += 16;
    spec_bad(s, ERR_FORMAT, WORDS("\"rope_freqs.weight\" should be a vector", "f32"));

    struct gguf_spec empty = GGUF_SPEC;
    s = minimal("llama");
    struct buf keys = s.keys;
    buf_release(&s.tensors);
    empty.keys = keys;
    empty.n_keys = s.n_keys;
    spec_bad(empty, ERR_FORMAT, WORDS("token_embd.weight", "tokenizer.ggml.tokens"));
}

static void copy_golden(const char *folder, const char *from, const char *to)
{
    struct buf b = BUF_INIT;
    struct err e;
    char *path = xasprintf("%s/%s", GOLDEN(""), from);
    assert_int_equal(file_slurp(path, 1 << 20, &b, &e), 0);
    write_file(folder, to, b.s, b.len);
    buf_release(&b);
    xfree(path);
}

static void test_gguf_split(void **state)
{
    struct err e = {0};
    float x[32];
    for (int part = 1; part <= 2; part++) { /* either opens both */
        struct checkpoint *c = open_ok(
            part == 1 ? GOLDEN("split-00001-of-00002.gguf") : GOLDEN("split-00002-of-00002.gguf"), NULL);
        assert_int_equal(checkpoint_n_tensors(c), 3);
        assert_int_equal(config_int(c, "num_hidden_layers"), 2);
        assert_int_equal(config_int(c, "vocab_size"), 4);
        const struct tensor *t = checkpoint_find(c, "model.norm.weight");
        assert_string_equal(checkpoint_file_name(c, t->file), "split-00002-of-00002.gguf");
        assert_int_equal(checkpoint_read(c, t, 0, 1, 0, 32, x, &e), 0);
        t = checkpoint_find(c, "model.embed_tokens.weight");
        assert_int_equal(t->file, 0);
        float y[32];
        assert_int_equal(checkpoint_read(c, t, 0, 1, 0, 32, y, &e), 0);
        assert_memory_equal(x, y, sizeof(x)); /* made so */
        checkpoint_close(c);
    }
    char *d = temp_folder();
    char *p1 = path_join(d, "m-00001-of-00002.gguf"), *p = path_join(d, "renamed.gguf");
    copy_golden(d, "split-00001-of-00002.gguf", "renamed.gguf");
    open_bad(p, ERR_FORMAT, WORDS("one of 2 parts", "-NNNNN-of-00002.gguf"));
    copy_golden(d, "split-00001-of-00002.gguf", "m-00001-of-00002.gguf");
    open_bad(p1, ERR_FORMAT, WORDS("part 1 of 2", "m-00002-of-00002.gguf is not there"));
    copy_golden(d, "split-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    open_bad(p1, ERR_FORMAT, WORDS("m-00002-of-00002.gguf", "split.no 1 of 2", "says 0 of 2"));
    copy_golden(d, "every_type.gguf", "m-00002-of-00002.gguf");
    open_bad(p1, ERR_FORMAT, WORDS("m-00002-of-00002.gguf", "split.no 1 of 2"));

    struct gguf_spec s = minimal("llama");
    key_u32(&s, "split.count", 99999);
    spec_bad(s, ERR_LIMIT, WORDS("one of 99999 parts", "at most 10000"));
    s = (struct gguf_spec)GGUF_SPEC; /* a part with a tensor too few */
    key_u32(&s, "split.no", 1);
    key_u32(&s, "split.count", 2);
    tensor_f32(&s, "output_norm.weight", 32, 0);
    struct buf b = gguf_bytes(&s);
    write_file(d, "m-00002-of-00002.gguf", b.s, b.len);
    open_bad(p1, ERR_FORMAT, WORDS("should have 3 tensors together, but have 2"));
    buf_release(&b);
    xfree(p1);
    xfree(p);
    remove_folder(d);
}

/* Without extension, as caches of other programs name their blobs; cut short. */
static void test_gguf_by_content(void **state)
{
    char *d = temp_folder();
    char *p = path_join(d, "sha256-0123"), *q = path_join(d, "x.gguf");
    copy_golden(d, "every_type.gguf", "sha256-0123");
    struct checkpoint *c = open_ok(p, NULL);
    assert_int_equal(checkpoint_n_tensors(c), 11);
    checkpoint_close(c);
    assert_int_equal(truncate(p, 17000), 0);
    open_bad(p, ERR_FORMAT, WORDS("truncated", "blk."));
    write_text(d, "x.gguf", "GG");
    open_bad(q, ERR_FORMAT, WORDS("x.gguf", "ends after 2 bytes"));
    write_text(d, "x.gguf", "");
    open_bad(q, ERR_FORMAT, WORDS("x.gguf", "ends after 0 bytes"));
    xfree(p);
    xfree(q);
    remove_folder(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_of_every_type),
        cmocka_unit_test(test_large_slices),
        cmocka_unit_test(test_bad_slices),
        cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_folders_one_after_the_other),
        cmocka_unit_test(test_bare_name),
        cmocka_unit_test(test_five_dimensions),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_gguf_minimal),
        cmocka_unit_test(test_gguf_vocabulary_from_tokens),
        cmocka_unit_test(test_gguf_llama_with_everything),
        cmocka_unit_test(test_gguf_rope),
        cmocka_unit_test(test_gguf_architectures),
        cmocka_unit_test(test_gguf_names),
        cmocka_unit_test(test_gguf_bad_models),
        cmocka_unit_test(test_gguf_split),
        cmocka_unit_test(test_gguf_by_content),
    };
    test_folder = temp_folder();
    test_path = path_join(test_folder, "model.gguf");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    xfree(test_path);
    remove_folder(test_folder);
    return failed;
}
