/* The tokenizer in a GGUF's metadata.
 *
 * A GGUF names the family (tokenizer.ggml.pre) where tokenizer.json spells out normaliser and patterns; here
 * is what each name stands for. Where llama.cpp and the model's own tokenizer.json differ (Qwen's NFC), the
 * latter is followed: it is what the model was trained with.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "formats/gguf.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum token_type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

/* ---- families of byte-level BPE ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define HAN_ETC      "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* Cased letters, as an older Unicode had them. */
#define DEEPSEEK_LETTERS                                                                                     \
    "\\s?[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"     \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}"   \
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"          \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"        \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"        \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{"     \
    "1F7D}"                                                                                                  \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{"    \
    "1FD3}"                                                                                                  \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"         \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}"          \
    "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}"          \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}"         \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}"        \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"      \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"                   \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}]+"

struct family {
    const char *names;      /* values of tokenizer.ggml.pre, with a space around each */
    const char *pattern[6]; /* each a Split, isolated */
    bool digits;            /* then digits one by one */
    bool gpt2;              /* then GPT-2's pattern */
    bool nfc, ignore_merges, add_bos;
};

static const struct family families[] = {
    {" default gpt-2 phi-2 mpt olmo jais trillion granite-docling ", {0}, .gpt2 = true},
    {" smollm starcoder refact codeshell ", {0}, .digits = true, .gpt2 = true},
    {" command-r ", {0}, .digits = true, .gpt2 = true, .nfc = true},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES},
     .ignore_merges = true,
     .add_bos = true},
    {" dbrx smaug-bpe ",
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES}},
    {" qwen2 hunyuan solar-open grok-2 ",
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES},
     .nfc = true},
    {" deepseek-r1-qwen stablelm2 ",
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES}},
    {" qwen35 ",
     {CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES},
     .nfc = true},
    {" deepseek-llm ",
     {"[\\r\\n]", DEEPSEEK_LETTERS,
      "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", "\\s+$",
      HAN_ETC},
     .digits = true},
    {" deepseek-coder ", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_ETC}, .digits = true},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES}},
    {" tekken ",
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
      "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES},
     .ignore_merges = true,
     .add_bos = true},
    {" gpt-4o llama4 minimax-m2 ",
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
      "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES}},
};

static const struct family *find_family(const char *name)
{
    char padded[64];
    size_t n = strlen(name);
    if (n + 3 > sizeof(padded) || strchr(name, ' '))
        return NULL;
    padded[0] = ' ';
    memcpy(padded + 1, name, n);
    memcpy(padded + 1 + n, " ", 2);
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strstr(families[i].names, padded))
            return &families[i];
    return NULL;
}

static int add_family(struct tokenizer *t, const struct family *f, struct err *e)
{
    if (f->nfc)
        normalizer_add_nfc(&t->normalizer);
    for (size_t i = 0; i < ARRAY_LEN(f->pattern) && f->pattern[i]; i++) {
        int rc = pretokenizer_add_split(&t->pretokenizer, f->pattern[i], "tokenizer.ggml.pre", e);
        if (rc)
            return rc;
    }
    if (f->digits)
        pretokenizer_add_digits(&t->pretokenizer);
    t->bpe.ignore_merges = f->ignore_merges;
    decoder_add(&t->decoder, DECODE_BYTE_LEVEL, NULL);
    return pretokenizer_add_byte_level(&t->pretokenizer, false, f->gpt2, e);
}

/* ---- vocabulary ---- */

static int array_of(const struct gguf *g, const char *key, size_t n, bool strings, struct err *e)
{
    enum gguf_type type;
    size_t len;
    if (!gguf_get_array(g, key, &type, &len))
        return err_set(e, ERR_FORMAT, "%s: %s is missing", gguf_path(g), key);
    if ((type == GGUF_STRING) != strings)
        return err_set(e, ERR_FORMAT, "%s: %s should be an array of %s", gguf_path(g), key,
                       strings ? "strings" : "numbers");
    if (n != SIZE_MAX && len != n)
        return err_set(e, ERR_FORMAT, "%s: %s has %zu elements, but there are %zu tokens", gguf_path(g), key,
                       len, n);
    return 0;
}

static int type_of(const struct gguf *g, bool has_types, size_t i)
{
    int64_t type = NORMAL;
    if (has_types)
        gguf_array_int(g, "tokenizer.ggml.token_type", i, &type);
    return type >= NORMAL && type <= BYTE ? (int)type : NORMAL;
}

static int read_tokens(struct tokenizer *t, const struct gguf *g, size_t n_merges, size_t *ret_n,
                       bool *ret_types, struct err *e)
{
    enum gguf_type type;
    size_t n = 0;
    struct gguf_str s;
    int rc = array_of(g, "tokenizer.ggml.tokens", SIZE_MAX, true, e);
    if (rc)
        return rc;
    gguf_get_array(g, "tokenizer.ggml.tokens", &type, &n);
    if (n > VOCAB_MAX_ID)
        return err_set(e, ERR_LIMIT, "%s: %zu tokens, but at most %d are read", gguf_path(g), n,
                       VOCAB_MAX_ID);
    *ret_types = gguf_get_array(g, "tokenizer.ggml.token_type", &type, &(size_t){0});
    if (*ret_types && (rc = array_of(g, "tokenizer.ggml.token_type", n, false, e)))
        return rc;
    bpe_init(&t->bpe, n, n_merges);
    for (size_t i = 0; i < n; i++) {
        gguf_array_string(g, "tokenizer.ggml.tokens", i, &s);
        if (!utf8_valid(s.s, s.len))
            return err_set(e, ERR_FORMAT, "%s: token %zu is not UTF-8 text", gguf_path(g), i);
        rc = vocab_add(&t->bpe.vocab, s.s, s.len, (int32_t)i, gguf_path(g), e);
        if (rc)
            return rc;
    }
    *ret_n = n;
    return 0;
}

/* Tokens that are sought in text by their spelling: control tokens, and what the user defined. */
static int read_added(struct tokenizer *t, const struct gguf *g, size_t n, bool has_types, struct err *e)
{
    struct gguf_str s;
    for (size_t i = 0; i < n; i++) {
        int type = type_of(g, has_types, i);
        if (type != UNKNOWN && type != CONTROL && type != USER_DEFINED)
            continue;
        gguf_array_string(g, "tokenizer.ggml.tokens", i, &s);
        if (memchr(s.s, 0, s.len))
            return err_set(e, ERR_FORMAT, "%s: token %zu holds a NUL character", gguf_path(g), i);
        struct added_token a = {.content = (char *)s.s, .special = type != USER_DEFINED};
        int rc = tokenizer_add_token(t, &a, (int64_t)i, gguf_path(g), e);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_merges(struct tokenizer *t, const struct gguf *g, size_t n, struct err *e)
{
    struct gguf_str s;
    for (size_t i = 0; i < n; i++) {
        gguf_array_string(g, "tokenizer.ggml.merges", i, &s);
        const char *space = s.len > 1 ? memchr(s.s + 1, ' ', s.len - 1) : NULL;
        if (!space)
            return err_set(e, ERR_FORMAT,
                           "%s: merge %zu should be two tokens with a space between, but is"
                           " \"%.100s\"",
                           gguf_path(g), i, s.s);
        size_t n_left = (size_t)(space - s.s);
        int rc = bpe_add_merge(&t->bpe, s.s, n_left, space + 1, s.len - n_left - 1, gguf_path(g), e);
        if (rc)
            return rc;
    }
    return 0;
}

struct scored {
    double score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    double x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return x > y ? -1 : x < y;
}

/* Equal scores have equal ranks: then the leftmost goes first, as in sentencepiece. */
static int rank_scores(struct tokenizer *t, const struct gguf *g, size_t n, bool has_types, struct err *e)
{
    struct scored *v;
    size_t n_v = 0;
    int rc = array_of(g, "tokenizer.ggml.scores", n, false, e);
    if (rc)
        return rc;
    XNEW_N(v, n);
    XNEW_N(t->bpe.score_rank, n);
    memset(t->bpe.score_rank, 0xFF, n * sizeof(*t->bpe.score_rank));
    for (size_t i = 0; i < n && !rc; i++) {
        int type = type_of(g, has_types, i);
        double score = NAN;
        gguf_array_double(g, "tokenizer.ggml.scores", i, &score);
        if (isnan(score))
            rc = err_set(e, ERR_FORMAT, "%s: the score of token %zu is not a number", gguf_path(g), i);
        /* Others are no result of merging: a control token's spelling in a text stays text. */
        else if (type == NORMAL || type == USER_DEFINED)
            v[n_v++] = (struct scored){score, (int32_t)i};
    }
    if (!rc) {
        qsort(v, n_v, sizeof(*v), by_score);
        uint32_t rank = 0;
        for (size_t i = 0; i < n_v; i++) {
            if (i && v[i].score != v[i - 1].score)
                rank++;
            t->bpe.score_rank[v[i].id] = rank;
        }
    }
    xfree(v);
    return rc;
}

/* ---- all of it ---- */

static int get_id(const struct gguf *g, const char *key, size_t n, int32_t fallback, int32_t *ret,
                  struct err *e)
{
    int64_t id;
    *ret = fallback;
    if (!gguf_get_int(g, key, &id))
        return 0;
    if (id < 0 || (uint64_t)id >= n)
        return err_set(e, ERR_FORMAT, "%s: %s is %lld, but there are %zu tokens", gguf_path(g), key,
                       (long long)id, n);
    *ret = (int32_t)id;
    return 0;
}

static int read_ends(struct tokenizer *t, const struct gguf *g, size_t n, bool add_bos, struct err *e)
{
    bool add_eos = false;
    int rc = get_id(g, "tokenizer.ggml.bos_token_id", n, -1, &t->bos, e);
    if (!rc)
        rc = get_id(g, "tokenizer.ggml.eos_token_id", n, -1, &t->eos, e);
    if (rc)
        return rc;
    gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &add_bos);
    gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &add_eos);
    if (add_bos && t->bos >= 0)
        tokenizer_add_template(t, t->bos);
    tokenizer_add_template(t, TEMPLATE_TEXT);
    if (add_eos && t->eos >= 0)
        tokenizer_add_template(t, t->eos);
    return 0;
}

static int read_gpt2(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_str pre = {"default", 7};
    enum gguf_type type;
    size_t n, n_merges = 0;
    bool has_types;
    gguf_get_string(g, "tokenizer.ggml.pre", &pre);
    const struct family *f = find_family(pre.s);
    if (!f) {
        struct buf known = BUF_INIT;
        for (size_t i = 0; i < ARRAY_LEN(families); i++)
            buf_addf(&known, "%s", families[i].names + (i > 0));
        int rc =
            err_set(e, ERR_UNSUPPORTED, "%s: tokenizer.ggml.pre \"%.60s\" is not supported; supported are%s",
                    gguf_path(g), pre.s, known.s);
        buf_release(&known);
        return rc;
    }
    int rc = array_of(g, "tokenizer.ggml.merges", SIZE_MAX, true, e);
    if (rc)
        return rc;
    gguf_get_array(g, "tokenizer.ggml.merges", &type, &n_merges);
    if ((rc = read_tokens(t, g, n_merges, &n, &has_types, e)) || (rc = read_merges(t, g, n_merges, e)) ||
        (rc = read_added(t, g, n, has_types, e)) || (rc = add_family(t, f, e)))
        return rc;
    return read_ends(t, g, n, f->add_bos, e);
}

static int read_llama(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    size_t n;
    bool has_types, space_prefix = true;
    int rc;
    if ((rc = read_tokens(t, g, 0, &n, &has_types, e)) || (rc = rank_scores(t, g, n, has_types, e)) ||
        (rc = read_added(t, g, n, has_types, e)) ||
        (rc = get_id(g, "tokenizer.ggml.unknown_token_id", n, n ? 0 : -1, &t->bpe.unk, e)))
        return rc;
    gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &space_prefix);
    t->prefix_after_special = space_prefix;
    if ((rc = normalizer_add_replace(&t->normalizer, " ", "\xE2\x96\x81", e)) ||
        (rc = decoder_add_replace(&t->decoder, "\xE2\x96\x81", " ", e)))
        return rc;
    decoder_add(&t->decoder, DECODE_BYTE_FALLBACK, NULL);
    decoder_add(&t->decoder, DECODE_FUSE, NULL);
    if (space_prefix)
        decoder_add(&t->decoder, DECODE_STRIP, " ")->start = 1;
    return read_ends(t, g, n, true, e);
}

int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret, struct err *e)
{
    struct gguf_str model, chat;
    int rc;
    if (!gguf_get_string(g, "tokenizer.ggml.model", &model))
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.model is missing", gguf_path(g));
    struct tokenizer *t = tokenizer_new();
    if (!strcmp(model.s, "gpt2"))
        rc = read_gpt2(t, g, e);
    else if (!strcmp(model.s, "llama"))
        rc = read_llama(t, g, e);
    else
        rc = err_set(e, ERR_UNSUPPORTED,
                     "%s: tokenizer.ggml.model \"%.60s\" is not supported; supported are gpt2"
                     " (byte-level BPE) and llama (sentencepiece BPE)",
                     gguf_path(g), model.s);
    if (!rc)
        rc = tokenizer_finish(t, e);
    if (!rc && gguf_get_string(g, "tokenizer.chat_template", &chat)) {
        if (utf8_valid(chat.s, chat.len) && !memchr(chat.s, 0, chat.len))
            t->chat_template = xstrndup(chat.s, chat.len);
        else
            rc = err_set(e, ERR_FORMAT, "%s: tokenizer.chat_template is not UTF-8 text", gguf_path(g));
    }
    if (rc)
        tokenizer_free(t);
    else
        *ret = t;
    return rc;
}
