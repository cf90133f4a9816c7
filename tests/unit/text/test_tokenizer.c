#include "tests/unit/text/golden.h"

#include <pthread.h>
#include <stdlib.h>
#include "base/buf.h"
#include "base/file.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

/* ---- against PyPI tokenizers ---- */

static uint64_t fnv(uint64_t h, const void *p, size_t n)
{
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001B3u;
    return h;
}

static uint64_t hash_ids(uint64_t h, const struct ids *ids)
{
    uint32_t bytes = (uint32_t)(4 * ids->n);
    return fnv(fnv(h, &bytes, 4), ids->id, 4 * ids->n);
}

static uint64_t hash_text(uint64_t h, const struct buf *b)
{
    uint32_t bytes = (uint32_t)b->len;
    return fnv(fnv(h, &bytes, 4), b->s, b->len);
}

/* Decoded at once and token by token: the same, and each part whole characters. */
static void decode(const struct tokenizer *t, const struct ids *ids, bool skip_special, struct buf *out)
{
    struct buf parts = BUF_INIT;
    buf_clear(out);
    tokenizer_decode(t, ids->id, ids->n, skip_special, out);
    struct detokenizer *d = detokenizer_new(t, skip_special);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = parts.len;
        detokenizer_add(d, ids->id[i], &parts);
        assert_true(utf8_valid(parts.s + before, parts.len - before));
    }
    size_t before = parts.len;
    detokenizer_flush(d, &parts);
    assert_true(utf8_valid(parts.s + before, parts.len - before));
    detokenizer_free(d);
    assert_int_equal(parts.len, out->len);
    assert_memory_equal(parts.s, out->s, out->len);
    buf_release(&parts);
}

static void check_text(const struct tokenizer *t, const char *kind, size_t i, const char *s, size_t n,
                       const char *expected)
{
    struct buf whole = BUF_INIT, skipped = BUF_INIT;
    struct ids special = encode(t, s, n, true, true), plain = encode(t, s, n, false, true),
               user = encode(t, s, n, false, false);
    decode(t, &special, false, &whole);
    decode(t, &special, true, &skipped);
    uint64_t h = 0xCBF29CE484222325u;
    h = hash_text(hash_text(hash_ids(hash_ids(hash_ids(h, &special), &plain), &user), &whole), &skipped);
    char *end;
    unsigned long want = strtoul(expected, &end, 16);
    for (size_t k = 0; *end == ' '; k++) {
        long id = strtol(end, &end, 10);
        if (k >= special.n || special.id[k] != id)
            fail_msg("%s, text %zu: token %zu should be %ld, but is %d", kind, i, k, id,
                     k < special.n ? special.id[k] : -1);
    }
    if ((uint32_t)(h >> 32 ^ h) != want)
        fail_msg("%s, text %zu \"%s\": not what tokenizers says (decoded \"%s\")", kind, i, s, whole.s);
    ids_release(&special);
    ids_release(&plain);
    ids_release(&user);
    buf_release(&whole);
    buf_release(&skipped);
}

static void test_golden(void **state)
{
    json_t *texts = golden_texts();
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tokenizer *t = open_kind(kinds[k]);
        struct buf expected = BUF_INIT;
        struct err e = {0};
        char *path = xasprintf(GOLDEN "%s/expected.txt", kinds[k]);
        if (file_slurp(path, 1 << 24, &expected, &e))
            fail_msg("%s", e.msg);
        char *line = expected.s;
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *v = json_array_get(texts, i);
            char *next = strchr(line, '\n');
            assert_non_null(next);
            *next = 0;
            check_text(t, kinds[k], i, json_string_value(v), json_string_length(v), line);
            line = next + 1;
        }
        assert_int_equal(*line, 0);
        xfree(path);
        buf_release(&expected);
        tokenizer_free(t);
    }
    json_decref(texts);
}

/* ---- ill-formed text ---- */

static void test_invalid_utf8(void **state)
{
    /* Unicode's own examples (table 3-8 and its neighbours), and a truncated end. */
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF"
                                                 "\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF"
                                                 "\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42",
         "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41\xEF\xBF\xBD\xEF\xBF\xBD\x42"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41"},
        {"hello \xF0\x9F\x98", "hello \xEF\xBF\xBD"},
        {"<|im_\xFFstart|>", "<|im_\xEF\xBF\xBDstart|>"},
    };
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tokenizer *t = open_kind(kinds[k]);
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            struct ids bad = encode(t, cases[i].bad, strlen(cases[i].bad), true, true);
            struct ids good = encode(t, cases[i].good, strlen(cases[i].good), true, true);
            assert_same_ids(&bad, &good);
            ids_release(&bad);
            ids_release(&good);
        }
        tokenizer_free(t);
    }
}

/* ---- special tokens ---- */

static void test_special_in_user_text(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tokenizer *t = open_kind(kinds[k]);
        int n_special = 0;
        for (int id = 0; id < tokenizer_n_vocab(t); id++) {
            if (!tokenizer_is_special(t, id))
                continue;
            n_special++;
            const char *s = tokenizer_token(t, id);
            assert_int_equal(tokenizer_id(t, s), id);
            struct ids parsed = encode(t, s, strlen(s), false, true);
            assert_int_equal(parsed.n, 1);
            assert_int_equal(parsed.id[0], id);
            char *around = xasprintf("x%s %s%s\n%s", s, s, s, s);
            struct ids user = encode(t, around, strlen(around), false, false);
            for (size_t i = 0; i < user.n; i++)
                if (tokenizer_is_special(t, user.id[i]))
                    assert_int_equal(user.id[i], t->bpe.unk); /* an unknown character may be <unk> */
            xfree(around);
            ids_release(&parsed);
            ids_release(&user);
        }
        assert_true(n_special > 0);
        tokenizer_free(t);
    }
}

/* A merge or a whole pre-token that spells a special token stays apart in user text. */
static void test_special_by_merging(void **state)
{
    static const char *const models[] = {
        "\"ignore_merges\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"c\":3,\"abc\":4},"
        "\"merges\":[\"a b\",\"ab c\"]",
        "\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"c\":3,\"abc\":4},\"merges\":[\"a b\"]",
    };
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        char *json =
            xasprintf("{\"model\":{\"type\":\"BPE\",%s},\"added_tokens\":[{\"content\":\"abc\",\"special\":"
                      "true},{\"content\":\"b\",\"special\":true}]}",
                      models[i]);
        assert_int_equal(tokenizer_from_json(json, strlen(json), NULL, 0, "test", &t, &e), 0);
        struct ids user = encode(t, "abc", 3, false, false), parsed = encode(t, "abc", 3, false, true);
        static const int32_t apart[] = {2, 3};
        assert_int_equal(user.n, 2);
        assert_memory_equal(user.id, apart, sizeof(apart));
        assert_int_equal(parsed.n, 1);
        assert_int_equal(parsed.id[0], 4);
        ids_release(&user);
        ids_release(&parsed);
        tokenizer_free(t);
        xfree(json);
    }
}

/* An added token of white space that strips white space: the second line feed is gone before its turn. */
static void test_stripping_added(void **state)
{
    static const char json[] =
        "{\"model\":{\"vocab\":{\"a\":0,\"\\n\":1},\"merges\":[]},\"added_tokens\":[{\"content\":"
        "\"\\n\",\"lstrip\":true,\"rstrip\":true,\"normalized\":false},{\"content\":\"in\",\"single_word\":"
        "true,"
        "\"normalized\":false}]}";
    static const struct {
        const char *text;
        int n, ids[6];
    } cases[] = {{"\n\n", 1, {1}}, {"a \n \n a", 3, {0, 1, 0}}, {"in", 1, {2}}, {"ain ina in", 3, {0, 0, 2}}};
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_from_json(json, strlen(json), NULL, 0, "test", &t, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ids ids = encode(t, cases[i].text, strlen(cases[i].text), false, true);
        assert_int_equal(ids.n, cases[i].n);
        assert_memory_equal(ids.id, cases[i].ids, ids.n * sizeof(*ids.id));
        ids_release(&ids);
    }
    tokenizer_free(t);
}

/* ---- work ---- */

static const char *const hostile[] = {"a",
                                      " ",
                                      "\n",
                                      "1",
                                      ".",
                                      "\t",
                                      "\xF0\x9F\x98\x80" /* emoji */,
                                      "\xF0\x9F\x87\xA9" /* flags */,
                                      "\xE6\xBC\xA2",
                                      "\xCC\x81" /* marks */,
                                      "\xCD\x85\xCC\xB4" /* marks out of order */,
                                      " \n",
                                      "<|",
                                      "'s",
                                      "ab ",
                                      "_",
                                      "\xE2\x96\x81",
                                      "\xC5\xBF",
                                      "aA",
                                      "<mask> ",
                                      "\xFF"};

static char *repeat(const char *s, size_t n, const char *tail)
{
    size_t len = strlen(s);
    char *text = xmalloc(n + len + 2);
    for (size_t i = 0; i < n; i += len)
        memcpy(text + i, s, len);
    strcpy(text + n / len * len, tail);
    return text;
}

static uint64_t work_of(const struct tokenizer *t, const char *s, size_t n, const char *tail)
{
    struct ids ids = {0};
    struct err e = {0};
    uint64_t work;
    char *text = repeat(s, n, tail);
    if (tokenizer_encode_counted(t, text, strlen(text), (struct encode_options){true, true}, &ids, &work, &e))
        fail_msg("%s", e.msg);
    ids_release(&ids);
    xfree(text);
    return work;
}

/* Four times the text, four times the work, on every kind of repetitive text, for every kind of tokenizer. */
static void test_linear(void **state)
{
    const size_t n = 8192;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tokenizer *t = open_kind(kinds[k]);
        for (size_t i = 0; i < ARRAY_LEN(hostile); i++)
            for (int tail = 0; tail < 2; tail++) {
                uint64_t once = work_of(t, hostile[i], n, tail ? "x" : "");
                uint64_t more = work_of(t, hostile[i], 4 * n, tail ? "x" : "");
                if (more > 5 * once + 4096 || more > 400 * n)
                    fail_msg("%s: \"%s\": %llu steps for %zu bytes, %llu for four times as many", kinds[k],
                             hostile[i], (unsigned long long)once, n, (unsigned long long)more);
            }
        tokenizer_free(t);
    }
}

static void test_megabytes(void **state)
{
    static const char *const some[] = {"qwen2", "deepseek_llm", "llama2"};
    for (size_t k = 0; k < ARRAY_LEN(some); k++) {
        struct tokenizer *t = open_kind(some[k]);
        for (size_t i = 0; i < 7; i++) /* letters, spaces, line feeds, digits, dots, tabs, emoji */
            assert_true(work_of(t, hostile[i], 1 << 20, "x") < 100u << 20);
        tokenizer_free(t);
    }
}

static void test_absurd_length(void **state)
{
    struct tokenizer *t = open_kind("gpt2");
    struct ids ids = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, "", SIZE_MAX / 2, (struct encode_options){0}, &ids, &e), ERR_LIMIT);
    assert_int_equal(ids.n, 0);
    tokenizer_free(t);
}

/* ---- incremental decoding ---- */

static void test_random_ids(void **state)
{
    uint64_t r = 88172645463325252u;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tokenizer *t = open_kind(kinds[k]);
        int n = tokenizer_n_vocab(t);
        for (int round = 0; round < 300; round++) {
            struct ids ids = {0};
            struct buf out = BUF_INIT;
            for (int i = 0; i < 40; i++) {
                r ^= r << 13, r ^= r >> 7, r ^= r << 17;
                XGROW(ids.id, ids.n, ids.cap);
                /* now and then no token at all; often the low ids, where bytes are */
                ids.id[ids.n++] = (int32_t)(r >> 33) % (r & 4 ? 300 : n + 20) - (r & 0x700 ? 0 : 5);
            }
            decode(t, &ids, round & 1, &out);
            ids_release(&ids);
            buf_release(&out);
        }
        tokenizer_free(t);
    }
}

static void expect_piece(struct detokenizer *d, const struct tokenizer *t, const char *token,
                         const char *piece)
{
    struct buf b = BUF_INIT;
    int id = tokenizer_id(t, token);
    assert_true(id >= 0);
    detokenizer_add(d, id, &b);
    assert_string_equal(b.s, piece);
    buf_release(&b);
}

static void expect_flush(struct detokenizer *d, const char *piece)
{
    struct buf b = BUF_INIT;
    detokenizer_flush(d, &b);
    assert_string_equal(b.s, piece);
    buf_release(&b);
    detokenizer_free(d);
}

/* Nothing is late without need. */
static void test_promptness(void **state)
{
    struct tokenizer *t = open_kind("gpt2");
    struct detokenizer *d = detokenizer_new(t, true);
    expect_piece(d, t, "a", "a");
    expect_piece(d, t, "\xC4\xA0", " ");        /* Ġ */
    expect_piece(d, t, "\xC3\x83", "");         /* C3: the first byte of é */
    expect_piece(d, t, "\xC2\xA9", "\xC3\xA9"); /* A9 */
    expect_piece(d, t, "\xC3\x83", "");         /* C3, then no continuation: now it is known bad */
    expect_piece(d, t, "a",
                 "\xEF\xBF\xBD"
                 "a");
    expect_piece(d, t, "<|endoftext|>", "");
    expect_piece(d, t, "\xC3\xB0", ""); /* F0 */
    expect_flush(d, "\xEF\xBF\xBD");
    tokenizer_free(t);

    t = open_kind("llama2");
    d = detokenizer_new(t, true);
    expect_piece(d, t, "\xE2\x96\x81", ""); /* the space that encoding put in front */
    expect_piece(d, t, "a", "a");
    expect_piece(d, t, "\xE2\x96\x81", " "); /* a space by itself is no longer the first */
    expect_piece(d, t, "<0xC3>", "");
    expect_piece(d, t, "<0xA9>", ""); /* é, unless the next byte spoils the run */
    expect_piece(d, t, "<s>", "");    /* skipped: does not end it */
    expect_piece(d, t, "b",
                 "\xC3\xA9"
                 "b");
    expect_piece(d, t, "<0xC3>", "");
    expect_piece(d, t, "<0xA9>", "");
    expect_piece(d, t, "<0xA9>", "");
    expect_piece(d, t, "a",
                 "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                 "a");
    expect_piece(d, t, "<0x41>", "");
    expect_flush(d, "A");
    tokenizer_free(t);
}

/* ---- threads ---- */

struct worker {
    const struct tokenizer *t;
    json_t *texts;
    const struct ids *expected;
    int wrong;
};

static void *encode_all(void *p)
{
    struct worker *w = p;
    for (size_t i = 0; i < json_array_size(w->texts); i += 3) {
        const json_t *v = json_array_get(w->texts, i);
        struct ids ids = {0};
        struct encode_options o = {true, true};
        if (tokenizer_encode(w->t, json_string_value(v), json_string_length(v), o, &ids, NULL) ||
            ids.n != w->expected[i].n ||
            (ids.n && memcmp(ids.id, w->expected[i].id, ids.n * sizeof(*ids.id))))
            w->wrong++;
        ids_release(&ids);
    }
    return NULL;
}

static void test_threads(void **state)
{
    json_t *texts = golden_texts();
    struct tokenizer *t = open_kind("qwen3");
    size_t n = json_array_size(texts);
    struct ids *expected;
    pthread_t thread[4];
    struct worker w[4];
    XNEW_N(expected, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(texts, i);
        expected[i] = encode(t, json_string_value(v), json_string_length(v), true, true);
    }
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){t, texts, expected, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_all, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(w[i].wrong, 0);
    }
    for (size_t i = 0; i < n; i++)
        ids_release(&expected[i]);
    xfree(expected);
    tokenizer_free(t);
    json_decref(texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_special_in_user_text),
        cmocka_unit_test(test_special_by_merging),
        cmocka_unit_test(test_stripping_added),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_megabytes),
        cmocka_unit_test(test_absurd_length),
        cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_promptness),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
