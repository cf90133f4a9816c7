#include "tests/unit/text/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/file.h"
#include "formats/gguf.h"

/* ---- tokenizer.json that is wrong, or not ours ---- */

#define MODEL(more)                                                                                          \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]" more "}"

#define LEVEL  "{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}"
#define LEVELS LEVEL "," LEVEL "," LEVEL
#define GROW   "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"

static void test_bad_json(void **state)
{
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"", "here: line 1, column 0"},
        {"[1]", "here should hold an object"},
        {"{}", "here: model should be an object"},
        {"{\"model\":{\"type\":\"Unigram\"}}",
         "here: model: model \"Unigram\" is not supported; supported is BPE"},
        {"{\"model\":{\"type\":3}}", "\"type\" should be a string"},
        {"{\"model\":{\"type\":\"BPE\"}}", "should have \"vocab\" (an object) and \"merges\" (an array)"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}",
         "the id of token \"a\" is not an integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
         "has id -1, which is outside 0..4194303"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}}",
         "has id 4194304, which is outside"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "tokens \"a\" and \"b\" have the same id 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
         "the merge \"a\" + \"b\" needs a token \"b\" that is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"xyz\":2},\"merges\":[[\"a\",\"b\"]]}}",
         "the merge \"a\" + \"b\" needs a token \"ab\" that is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a  a\"]}}",
         "merges[0] should be two tokens with one space between, but is \"a  a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
         "merges[0] should be \"left right\" or [\"left\", \"right\"]"},
        {"{" MODEL(",\"byte_fallback\":1") "}",
         "\"byte_fallback\" should be true or false, but is an integer"},
        {"{" MODEL(",\"continuing_subword_prefix\":\"####\"") "}",
         "is shorter than continuing_subword_prefix"},
        {"{" MODEL("") ",\"normalizer\":{\"type\":\"Precompiled\"}}",
         "here: normalizer: normalizer \"Precompiled\" is not supported; supported are NFC"},
        {"{" MODEL("") ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
                       "\"Nmt\"}]}}",
         "here: normalizer: normalizers[1]: normalizer \"Nmt\" is not supported"},
        {"{" MODEL("") ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}}",
         "\"pattern\" should be {\"String\""},
        {"{" MODEL(
             "") ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}}",
         "the pattern is empty"},
        {"{" MODEL("") ",\"normalizer\":[]}", "here: normalizer should be an object or null"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}",
         "here: pre_tokenizer: pre_tokenizer \"UnicodeScripts\" is not supported; supported are ByteLevel, "
         "Split"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":"
                       "\"Isolated\"}}",
         "in the pattern \"(a\", an unmatched \"(\" at byte 2 is not supported"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
                       "\"Shuffled\"}}",
         "behavior \"Shuffled\" is unknown; known are Isolated, Removed"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}",
         "\"replacement\" should be one character, but is \"ab\""},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"often\"}}",
         "prepend_scheme \"often\" is unknown; known are always, first and never"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Sequence\"}}", "\"pretokenizers\" should be an array"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[null]}}",
         "here: post_processor: processors[0] is null"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"Wrap\"}}",
         "here: post_processor: post_processor \"Wrap\" is not supported; supported are TemplateProcessing"},
        {"{" MODEL(
             "") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                 "\"<s>\"}}],\"special_tokens\":{}}}",
         "names the special token \"<s>\", which \"special_tokens\" does not define"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{"
                       "\"id\":\"B\"}}]}}",
         "single[0] should be a SpecialToken or the Sequence A"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",0]}}",
         "\"sep\" should be [\"token\", id]"},
        {"{" MODEL("") ",\"decoder\":{\"type\":\"WordPiece\"}}",
         "here: decoder: decoder \"WordPiece\" is not supported; supported are ByteLevel, ByteFallback"},
        {"{" MODEL("") ",\"decoder\":{\"type\":\"Strip\",\"content\":\"\"}}",
         "\"content\" should be one character"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{"
                       "\"id\":\"A\"}},"
                       "{\"Sequence\":{\"id\":\"A\"}}]}}",
         "\"single\" has the text more than once"},
        {"{" MODEL("") ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" GROW "," GROW "," GROW "," GROW
                       "]}}",
         "here: decoder: decoders[3]: the decoder's replacements can make text more than 4096 times longer"},
        {"{" MODEL("") ",\"added_tokens\":{}}", "here: added_tokens should be an array"},
        {"{" MODEL("") ",\"added_tokens\":[{\"id\":3}]}",
         "added_tokens[0] should be an object with a string"},
        {"{" MODEL("") ",\"added_tokens\":[{\"content\":\"<s>\",\"id\":7}]}",
         "the added token \"<s>\" is said to have id 7, but its place gives it id 3"},
        {"{" MODEL("") ",\"added_tokens\":[{\"content\":\"ab\",\"id\":3}]}",
         "the added token \"ab\" is said to have id 3, but its place gives it id 2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        if (!tokenizer_from_json(cases[i].json, strlen(cases[i].json), NULL, 0, "here", &t, &e))
            fail_msg("%s was accepted", cases[i].json);
        assert_null(t);
        if (!strstr(e.msg, cases[i].message))
            fail_msg("%s: \"%s\" should say \"%s\"", cases[i].json, e.msg, cases[i].message);
    }
}

static struct tokenizer *from_json(const char *json, const char *config)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_from_json(json, strlen(json), config, config ? strlen(config) : 0, "test", &t, &e))
        fail_msg("%s", e.msg);
    return t;
}

/* Characters outside the vocabulary: the unknown token; or an error, if there is to be one and is none. */
static void test_unknown(void **state)
{
    struct tokenizer *t =
        from_json("{\"model\":{\"unk_token\":\"?\",\"vocab\":{\"a\":0,\"?\":1,\"ab\":2,\"b\":3},"
                  "\"merges\":[\"a b\"]}}",
                  NULL);
    struct ids ids = encode(t, "axxab", 5, false, true);
    static const int32_t expected[] = {0, 1, 1, 2};
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.id, expected, sizeof(expected));
    ids_release(&ids);
    tokenizer_free(t);

    t = from_json("{" MODEL(",\"unk_token\":\"?\"") "}", NULL);
    struct err e = {0};
    struct ids none = {0};
    assert_int_equal(tokenizer_encode(t, "axb", 3, (struct encode_options){0}, &none, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "U+0078"));
    assert_int_equal(none.n, 0);
    ids_release(&none);
    tokenizer_free(t);
}

/* Steps that multiply the text are stopped when it is encoded. */
static void test_growth(void **state)
{
    static const char *const parts[] = {
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" GROW "," GROW "," GROW "," GROW "," GROW
        "," GROW "]}",
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" LEVELS "," LEVELS "," LEVELS "," LEVELS
        "]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        char *json = xasprintf("{" MODEL("") ",%s}", parts[i]);
        struct tokenizer *t = from_json(json, NULL);
        struct buf text = BUF_INIT;
        struct ids ids = {0};
        struct err e = {0};
        for (int k = 0; k < 2000; k++)
            buf_adds(&text, "a\xC3\xA9");
        assert_int_equal(tokenizer_encode(t, text.s, text.len, (struct encode_options){0}, &ids, &e),
                         ERR_LIMIT);
        assert_non_null(strstr(e.msg, "the text grows more than 64-fold"));
        ids_release(&ids);
        buf_release(&text);
        tokenizer_free(t);
        xfree(json);
    }
}

/* ---- what lies beside tokenizer.json ---- */

static const char with_ends[] =
    "{" MODEL("") ",\"added_tokens\":[{\"content\":\"<s>\",\"id\":3,\"special\":true},"
                  "{\"content\":\"</s>\",\"id\":4,\"special\":true}]}";

static void test_config(void **state)
{
    struct tokenizer *t = from_json(with_ends, NULL);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), -1);
    assert_null(tokenizer_chat_template(t));
    assert_int_equal(tokenizer_n_vocab(t), 5);
    assert_int_equal(tokenizer_id(t, "ab"), 2);
    assert_int_equal(tokenizer_id(t, "<s>"), 3);
    assert_int_equal(tokenizer_id(t, "zz"), -1);
    assert_string_equal(tokenizer_token(t, 4), "</s>");
    assert_null(tokenizer_token(t, 5));
    assert_null(tokenizer_token(t, -1));
    assert_true(tokenizer_is_special(t, 3));
    assert_false(tokenizer_is_special(t, 2));
    assert_false(tokenizer_is_special(t, 99));
    tokenizer_free(t);

    t = from_json(with_ends, "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\",\"special\":true},"
                             "\"chat_template\":\"hi\",\"add_bos_token\":true}");
    assert_int_equal(tokenizer_bos(t), 3);
    assert_int_equal(tokenizer_eos(t), 4);
    assert_string_equal(tokenizer_chat_template(t), "hi");
    struct ids ids =
        encode(t, "a", 1, true, true); /* no post-processor: nothing is added, as in transformers */
    assert_int_equal(ids.n, 1);
    ids_release(&ids);
    tokenizer_free(t);

    t = from_json(with_ends,
                  "{\"bos_token\":null,\"eos_token\":\"nowhere\",\"chat_template\":[{\"name\":\"tool_use\","
                  "\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}");
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), -1);
    assert_string_equal(tokenizer_chat_template(t), "d");
    tokenizer_free(t);

    static const char *const bad[] = {"[]", "{\"chat_template\":1}", "{\"chat_template\":[{\"name\":\"x\"}]}",
                                      "{"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = {0};
        assert_int_not_equal(
            tokenizer_from_json(with_ends, strlen(with_ends), bad[i], strlen(bad[i]), "test", &t, &e), 0);
        assert_non_null(strstr(e.msg, "tokenizer_config.json"));
    }
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    xfree(path);
}

static void remove_file(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    unlink(path);
    xfree(path);
}

static void test_folder(void **state)
{
    char dir[] = "/tmp/yoke-tokenizer-XXXXXX";
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tokenizer_open_dir(dir, &t, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "tokenizer.json"));

    write_file(dir, "tokenizer.json", with_ends);
    write_file(dir, "special_tokens_map.json", "{\"bos_token\":\"</s>\",\"eos_token\":\"</s>\"}");
    assert_int_equal(tokenizer_open_dir(dir, &t, &e), 0);
    assert_int_equal(tokenizer_bos(t), 4);
    assert_null(tokenizer_chat_template(t));
    tokenizer_free(t);

    /* tokenizer_config.json goes before the map, chat_template.jinja before both. */
    write_file(dir, "tokenizer_config.json", "{\"bos_token\":\"<s>\",\"chat_template\":\"config\"}");
    assert_int_equal(tokenizer_open_dir(dir, &t, &e), 0);
    assert_int_equal(tokenizer_bos(t), 3);
    assert_int_equal(tokenizer_eos(t), 4);
    assert_string_equal(tokenizer_chat_template(t), "config");
    tokenizer_free(t);

    write_file(dir, "chat_template.jinja", "jinja\n");
    assert_int_equal(tokenizer_open_dir(dir, &t, &e), 0);
    assert_string_equal(tokenizer_chat_template(t), "jinja\n");
    tokenizer_free(t);

    write_file(dir, "chat_template.jinja", "\xFF");
    assert_int_equal(tokenizer_open_dir(dir, &t, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "chat_template.jinja"));

    write_file(dir, "tokenizer.json", "{}");
    assert_int_equal(tokenizer_open_dir(dir, &t, &e), ERR_FORMAT);
    static const char *const names[] = {"tokenizer.json", "special_tokens_map.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        remove_file(dir, names[i]);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- GGUF ---- */

struct writer {
    struct buf b;
    uint64_t n;
};

static void put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, 4);
}

static void put_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, 8);
}

static void put_string(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    buf_add(b, s, n);
}

static void put_key(struct writer *w, const char *key, enum gguf_type type)
{
    w->n++;
    put_string(&w->b, key, strlen(key));
    put_u32(&w->b, type);
}

static void put_text(struct writer *w, const char *key, const char *s)
{
    put_key(w, key, GGUF_STRING);
    put_string(&w->b, s, strlen(s));
}

static void put_flag(struct writer *w, const char *key, bool v)
{
    put_key(w, key, GGUF_BOOL);
    buf_addc(&w->b, v);
}

static void put_int(struct writer *w, const char *key, uint32_t v)
{
    put_key(w, key, GGUF_U32);
    put_u32(&w->b, v);
}

static void put_array(struct writer *w, const char *key, enum gguf_type type, size_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->b, type);
    put_u64(&w->b, n);
}

static struct tokenizer *open_gguf(struct writer *w, struct err *e)
{
    struct buf file = BUF_INIT;
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    buf_adds(&file, "GGUF");
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, w->n);
    buf_add(&file, w->b.s, w->b.len);
    while (file.len % 32)
        buf_addc(&file, 0);
    if (gguf_open_bytes(file.s, file.len, "test.gguf", &g, e))
        fail_msg("%s", e->msg);
    tokenizer_from_gguf(g, &t, e);
    gguf_close(g);
    buf_release(&file);
    buf_release(&w->b);
    return t;
}

/* A golden tokenizer.json as a converter would write it into a GGUF. */
static struct tokenizer *as_gguf(const char *kind, const char *pre, bool add_bos, bool add_eos)
{
    struct tokenizer *j = open_kind(kind);
    struct writer w = {BUF_INIT, 0};
    struct err e = {0};
    json_t *root = NULL, *v;
    size_t i;
    char *path = xasprintf(GOLDEN "%s/tokenizer.json", kind);
    assert_int_equal(json_parse_file(path, 1 << 24, &root, &e), 0);
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    int n = tokenizer_n_vocab(j);
    uint32_t *type;
    float *score;
    XNEW_N(type, n);
    XNEW_N(score, n);
    put_text(&w, "tokenizer.ggml.model", pre ? "gpt2" : "llama");
    if (pre)
        put_text(&w, "tokenizer.ggml.pre", pre);
    put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, (size_t)n);
    for (int id = 0; id < n; id++) {
        const char *s = tokenizer_token(j, id);
        put_string(&w.b, s, strlen(s));
        type[id] = strlen(s) == 6 && !strncmp(s, "<0x", 3) ? 6 : 1;
        score[id] = -1e6f;
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, v)
        type[json_integer_value(json_object_get(v, "id"))] =
            json_is_true(json_object_get(v, "special")) ? 3 : 4;
    put_array(&w, "tokenizer.ggml.token_type", GGUF_I32, (size_t)n);
    buf_add(&w.b, type, (size_t)n * 4);
    if (pre)
        put_array(&w, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, v)
    {
        char *joined = xasprintf("%s%s%s", json_string_value(json_array_get(v, 0)), pre ? " " : "",
                                 json_string_value(json_array_get(v, 1)));
        if (pre)
            put_string(&w.b, joined, strlen(joined));
        else if (score[tokenizer_id(j, joined)] == -1e6f)
            score[tokenizer_id(j, joined)] = -(float)i;
        xfree(joined);
    }
    if (!pre) {
        put_array(&w, "tokenizer.ggml.scores", GGUF_F32, (size_t)n);
        buf_add(&w.b, score, (size_t)n * 4);
        put_int(&w, "tokenizer.ggml.unknown_token_id", 0);
    }
    for (int id = pre ? 0 : 1; add_bos && id < n; id++)
        if (type[id] == 3) { /* the first of them; after <unk> */
            put_int(&w, "tokenizer.ggml.bos_token_id", (uint32_t)id);
            break;
        }
    put_int(&w, "tokenizer.ggml.eos_token_id", 2);
    put_flag(&w, "tokenizer.ggml.add_bos_token", add_bos);
    put_flag(&w, "tokenizer.ggml.add_eos_token", add_eos);
    put_text(&w, "tokenizer.chat_template", "{{ messages }}");
    struct tokenizer *t = open_gguf(&w, &e);
    if (!t)
        fail_msg("%s", e.msg);
    xfree(type);
    xfree(score);
    xfree(path);
    json_decref(root);
    tokenizer_free(j);
    return t;
}

static void test_gguf_equals_json(void **state)
{
    static const struct {
        const char *kind, *pre;
        bool add_bos;
    } cases[] = {
        {"gpt2", "gpt-2", false},
        {"gpt2", "default", false},
        {"smollm", "smollm", false},
        {"llama3", "llama-bpe", true},
        {"qwen2", "qwen2", false},
        {"qwen3", "qwen2", false},
        {"deepseek_llm", "deepseek-llm", true},
        {"deepseek_v3", "deepseek-v3", false},
        {"llama2", NULL, true},
    };
    json_t *texts = golden_texts();
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        struct tokenizer *j = open_kind(cases[k].kind);
        struct tokenizer *g = as_gguf(cases[k].kind, cases[k].pre, cases[k].add_bos, false);
        assert_int_equal(tokenizer_n_vocab(g), tokenizer_n_vocab(j));
        assert_string_equal(tokenizer_chat_template(g), "{{ messages }}");
        assert_int_equal(tokenizer_eos(g), 2);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *v = json_array_get(texts, i);
            for (int parse = 0; parse < 2; parse++) {
                struct ids a = encode(j, json_string_value(v), json_string_length(v), true, parse);
                struct ids b = encode(g, json_string_value(v), json_string_length(v), true, parse);
                if (a.n != b.n || (a.n && memcmp(a.id, b.id, a.n * sizeof(*a.id))))
                    fail_msg("%s: text %zu \"%s\" differs (%zu and %zu ids)", cases[k].kind, i,
                             json_string_value(v), a.n, b.n);
                struct buf x = BUF_INIT, y = BUF_INIT;
                tokenizer_decode(j, a.id, a.n, true, &x);
                tokenizer_decode(g, b.id, b.n, true, &y);
                assert_string_equal(x.s, y.s);
                buf_release(&x);
                buf_release(&y);
                ids_release(&a);
                ids_release(&b);
            }
        }
        tokenizer_free(j);
        tokenizer_free(g);
    }
    json_decref(texts);
}

/* Scores decide, not the order of tokens; of equal ones the leftmost pair. A control token's spelling is
 * text. */
static void test_gguf_scores(void **state)
{
    static const char *const tokens[] = {"<unk>", "<s>",    "</s>", "a",  "b", "c", "ab",          "bc",
                                         "aa",    "<0x21>", "<",    "s>", "s", ">", "\xE2\x96\x81"};
    static const uint32_t types[] = {2, 3, 3, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1, 1};
    static const float scores[] = {0, 0, 0, -9, -9, -9, -2, -1, -3, 0, -9, -1, -9, -9, -9};
    struct writer w = {BUF_INIT, 0};
    struct err e = {0};
    put_text(&w, "tokenizer.ggml.model", "llama");
    put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, ARRAY_LEN(tokens));
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++)
        put_string(&w.b, tokens[i], strlen(tokens[i]));
    put_array(&w, "tokenizer.ggml.token_type", GGUF_I32, ARRAY_LEN(types));
    buf_add(&w.b, types, sizeof(types));
    put_array(&w, "tokenizer.ggml.scores", GGUF_F32, ARRAY_LEN(scores));
    buf_add(&w.b, scores, sizeof(scores));
    put_flag(&w, "tokenizer.ggml.add_space_prefix", false);
    put_flag(&w, "tokenizer.ggml.add_eos_token", true);
    put_int(&w, "tokenizer.ggml.bos_token_id", 1);
    put_int(&w, "tokenizer.ggml.eos_token_id", 2);
    struct tokenizer *t = open_gguf(&w, &e);
    if (!t)
        fail_msg("%s", e.msg);
    static const struct {
        const char *text;
        bool special, parse;
        int n;
        int32_t ids[8];
    } cases[] = {
        {"abc", false, true, 2, {3, 7}},
        {"aaa", false, true, 2, {8, 3}},
        {"ab c", true, true, 5, {1, 6, 14, 5, 2}},
        {"!?", false, true, 2, {9, 0}},
        {"<s>a", false, true, 2, {1, 3}},
        {"<s>a", false, false, 3, {10, 11, 3}},
        {"", true, true, 2, {1, 2}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ids ids = encode(t, cases[i].text, strlen(cases[i].text), cases[i].special, cases[i].parse);
        if ((int)ids.n != cases[i].n || memcmp(ids.id, cases[i].ids, ids.n * sizeof(*ids.id)))
            fail_msg("\"%s\": %zu ids, the first %d", cases[i].text, ids.n, ids.n ? ids.id[0] : -1);
        ids_release(&ids);
    }
    assert_true(tokenizer_is_special(t, 0) && tokenizer_is_special(t, 1) && !tokenizer_is_special(t, 3));
    tokenizer_free(t);
}

static void test_bad_gguf(void **state)
{
    static const uint32_t one[] = {1, 1, 1};
    static const float nan_scores[] = {0, 0.0f / 0.0f, 0};
    for (int i = 0; i < 11; i++) {
        static const char *const messages[] = {
            "tokenizer.ggml.model is missing",
            "tokenizer.ggml.model \"t5\" is not supported; supported are gpt2",
            "tokenizer.ggml.pre \"bogus\" is not supported; supported are default gpt-2",
            "tokenizer.ggml.merges is missing",
            "tokenizer.ggml.tokens should be an array of strings",
            "tokenizer.ggml.token_type has 3 elements, but there are 2 tokens",
            "merge 0 should be two tokens with a space between, but is \"ab\"",
            "tokenizer.ggml.bos_token_id is 3, but there are 3 tokens",
            "tokenizer.ggml.scores is missing",
            "the score of token 1 is not a number",
            "token 1 is not UTF-8 text",
        };
        struct writer w = {BUF_INIT, 0};
        struct err e = {0};
        bool gpt2 = i < 8;
        if (i)
            put_text(&w, "tokenizer.ggml.model", i == 1 ? "t5" : gpt2 ? "gpt2" : "llama");
        if (i == 2)
            put_text(&w, "tokenizer.ggml.pre", "bogus");
        if (i == 4) {
            put_array(&w, "tokenizer.ggml.tokens", GGUF_I32, 3);
            buf_add(&w.b, one, sizeof(one));
        } else if (i > 4) {
            put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, i == 5 ? 2 : 3);
            put_string(&w.b, "a", 1);
            put_string(&w.b, i == 10 ? "\xFF" : "b", 1);
            if (i != 5)
                put_string(&w.b, "ab", 2);
        }
        if (i > 4) {
            put_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 3);
            buf_add(&w.b, one, sizeof(one));
        }
        if (gpt2 && i > 3) {
            put_array(&w, "tokenizer.ggml.merges", GGUF_STRING, 1);
            put_string(&w.b, i == 6 ? "ab" : "a b", i == 6 ? 2 : 3);
        }
        if (i == 7)
            put_int(&w, "tokenizer.ggml.bos_token_id", 3);
        if (i == 9) {
            put_array(&w, "tokenizer.ggml.scores", GGUF_F32, 3);
            buf_add(&w.b, nan_scores, sizeof(nan_scores));
        }
        assert_null(open_gguf(&w, &e));
        if (!strstr(e.msg, messages[i]) || (i != 0 && !strstr(e.msg, "test.gguf")))
            fail_msg("\"%s\" should say \"%s\"", e.msg, messages[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_json),    cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_growth),      cmocka_unit_test(test_config),
        cmocka_unit_test(test_folder),      cmocka_unit_test(test_gguf_equals_json),
        cmocka_unit_test(test_gguf_scores), cmocka_unit_test(test_bad_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
