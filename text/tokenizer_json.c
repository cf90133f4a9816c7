/* tokenizer.json, tokenizer_config.json and chat_template.jinja. */
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/gguf.h"
#include "text/component.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define MAX_FILE ((size_t)1 << 29)

/* ---- model ---- */

static int read_vocab(struct bpe *b, const json_t *vocab, const char *where, struct err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value)
    {
        if (!json_is_integer(value))
            return err_set(e, ERR_FORMAT, "%s: the id of token \"%.80s\" is not an integer", where, key);
        json_int_t id = json_integer_value(value);
        if (id < 0 || id > VOCAB_MAX_ID)
            return err_set(e, ERR_LIMIT, "%s: token \"%.80s\" has id %lld, which is outside 0..%d", where,
                           key, (long long)id, VOCAB_MAX_ID);
        int rc = vocab_add(&b->vocab, key, strlen(key), (int32_t)id, where, e);
        if (rc)
            return rc;
    }
    return 0;
}

/* "a b", or ["a", "b"] where the parts may have spaces. */
static int read_merges(struct bpe *b, const json_t *merges, const char *where, struct err *e)
{
    size_t i;
    json_t *v;
    json_array_foreach(merges, i, v)
    {
        const char *left, *right;
        size_t n_left, n_right;
        if (json_is_string(v)) {
            left = json_string_value(v);
            if (!strncmp(left, "#version", 8))
                continue;
            const char *space = strchr(left, ' ');
            if (!space || strchr(space + 1, ' '))
                return err_set(e, ERR_FORMAT,
                               "%s: merges[%zu] should be two tokens with one space between, but is"
                               " \"%.100s\"",
                               where, i, left);
            n_left = (size_t)(space - left);
            right = space + 1;
            n_right = strlen(right);
        } else if (json_array_size(v) == 2 && json_is_string(json_array_get(v, 0)) &&
                   json_is_string(json_array_get(v, 1))) {
            left = json_string_value(json_array_get(v, 0));
            right = json_string_value(json_array_get(v, 1));
            n_left = strlen(left);
            n_right = strlen(right);
        } else {
            return err_set(e, ERR_FORMAT, "%s: merges[%zu] should be \"left right\" or [\"left\", \"right\"]",
                           where, i);
        }
        int rc = bpe_add_merge(b, left, n_left, right, n_right, where, e);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_model(struct tokenizer *t, const json_t *model, const char *where, struct err *e)
{
    const char *type, *unk, *prefix, *suffix;
    if (!json_is_object(model))
        return err_set(e, ERR_FORMAT, "%s should be an object", where);
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    /* Old files do not name the type; merges tell. */
    int rc = json_get_string(model, "type", merges ? "BPE" : "", where, &type, e);
    if (rc)
        return rc;
    if (strcmp(type, "BPE"))
        return err_set(e, ERR_UNSUPPORTED, "%s: model \"%s\" is not supported; supported is BPE", where,
                       type);
    if (!json_is_object(vocab) || !json_is_array(merges))
        return err_set(e, ERR_FORMAT, "%s should have \"vocab\" (an object) and \"merges\" (an array)",
                       where);
    struct bpe *b = &t->bpe;
    bpe_init(b, json_object_size(vocab), json_array_size(merges));
    if ((rc = json_get_string(model, "unk_token", NULL, where, &unk, e)) ||
        (rc = json_get_string(model, "continuing_subword_prefix", NULL, where, &prefix, e)) ||
        (rc = json_get_string(model, "end_of_word_suffix", NULL, where, &suffix, e)) ||
        (rc = json_get_bool(model, "fuse_unk", false, where, &b->fuse_unk, e)) ||
        (rc = json_get_bool(model, "byte_fallback", false, where, &b->byte_fallback, e)) ||
        (rc = json_get_bool(model, "ignore_merges", false, where, &b->ignore_merges, e)) ||
        (rc = read_vocab(b, vocab, where, e)))
        return rc;
    bpe_set_affixes(b, prefix, suffix);
    if (unk) {
        b->unk = vocab_find(&b->vocab, unk, strlen(unk));
        b->unk_missing = b->unk < 0;
    }
    return read_merges(b, merges, where, e);
}

/* ---- added tokens ---- */

static int read_added(struct tokenizer *t, const json_t *list, const char *where, struct err *e)
{
    size_t i;
    json_t *v;
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return err_set(e, ERR_FORMAT, "%s should be an array", where);
    json_array_foreach(list, i, v)
    {
        struct added_token a = {0};
        const char *content;
        int64_t id;
        int rc;
        char *place = xasprintf("%s[%zu]", where, i);
        if (!json_is_object(v) || !json_is_string(json_object_get(v, "content")))
            rc = err_set(e, ERR_FORMAT, "%s should be an object with a string \"content\"", place);
        else if (!(rc = json_get_string(v, "content", "", place, &content, e)) &&
                 !(rc = json_get_int(v, "id", 0, VOCAB_MAX_ID, -1, place, &id, e)) &&
                 !(rc = json_get_bool(v, "special", false, place, &a.special, e)) &&
                 !(rc = json_get_bool(v, "single_word", false, place, &a.single_word, e)) &&
                 !(rc = json_get_bool(v, "lstrip", false, place, &a.lstrip, e)) &&
                 !(rc = json_get_bool(v, "rstrip", false, place, &a.rstrip, e)) &&
                 !(rc = json_get_bool(v, "normalized", !a.special, place, &a.normalized, e))) {
            a.content = (char *)content; /* copied there */
            rc = tokenizer_add_token(t, &a, id, place, e);
        }
        xfree(place);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- post-processor ---- */

static int template_special(struct tokenizer *t, const json_t *specials, const char *name, const char *where,
                            struct err *e)
{
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    if (!json_is_array(ids))
        return err_set(e, ERR_FORMAT,
                       "%s: \"single\" names the special token \"%.80s\", which \"special_tokens\""
                       " does not define",
                       where, name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > VOCAB_MAX_ID)
            return err_set(e, ERR_FORMAT, "%s: special token \"%.80s\" should have ids within 0..%d", where,
                           name, VOCAB_MAX_ID);
        tokenizer_add_template(t, (int32_t)json_integer_value(id));
    }
    return 0;
}

static int read_template(struct tokenizer *t, const json_t *v, const char *where, struct err *e)
{
    const json_t *single = json_object_get(v, "single"), *specials = json_object_get(v, "special_tokens");
    bool has_text = false;
    if (!json_is_array(single))
        return err_set(e, ERR_FORMAT, "%s: \"single\" should be an array", where);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const char *special =
            json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const char *sequence = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (special) {
            int rc = template_special(t, specials, special, where, e);
            if (rc)
                return rc;
        } else if (sequence && !strcmp(sequence, "A")) {
            if (has_text)
                return err_set(e, ERR_UNSUPPORTED, "%s: \"single\" has the text more than once", where);
            has_text = true;
            tokenizer_add_template(t, TEMPLATE_TEXT);
        } else {
            return err_set(e, ERR_FORMAT, "%s: single[%zu] should be a SpecialToken or the Sequence A", where,
                           i);
        }
    }
    return 0;
}

/* BertProcessing and RobertaProcessing: ["<s>", 0] around the text. */
static int read_pair(struct tokenizer *t, const json_t *v, const char *key, const char *where, struct err *e)
{
    const json_t *id = json_array_get(json_object_get(v, key), 1);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > VOCAB_MAX_ID)
        return err_set(e, ERR_FORMAT, "%s: \"%s\" should be [\"token\", id]", where, key);
    tokenizer_add_template(t, (int32_t)json_integer_value(id));
    return 0;
}

static int read_post(void *self, const json_t *v, const char *type, const char *where, struct err *e)
{
    struct tokenizer *t = self;
    if (!strcmp(type, "ByteLevel")) /* only moves offsets */
        return 0;
    if (t->n_template)
        return err_set(e, ERR_UNSUPPORTED, "%s: more than one post-processor that adds tokens", where);
    if (!strcmp(type, "TemplateProcessing"))
        return read_template(t, v, where, e);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing")) {
        int rc = read_pair(t, v, "cls", where, e);
        tokenizer_add_template(t, TEMPLATE_TEXT);
        return rc ? rc : read_pair(t, v, "sep", where, e);
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: post_processor \"%s\" is not supported; supported are TemplateProcessing,"
                   " ByteLevel, BertProcessing, RobertaProcessing and Sequence",
                   where, type);
}

/* ---- tokenizer_config.json ---- */

/* "bos_token": "<s>" or {"content": "<s>", ...}; in the vocabulary or not at all. */
static void read_named(const struct tokenizer *t, const json_t *config, const char *key, int32_t *ret)
{
    const json_t *v = json_object_get(config, key);
    const char *content = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    if (*ret < 0 && content)
        *ret = tokenizer_id(t, content);
}

/* A template, or a list of named ones, of which "default" counts. */
static int read_chat_template(struct tokenizer *t, const json_t *v, const char *where, struct err *e)
{
    if (!v || json_is_null(v) || t->chat_template)
        return 0;
    if (json_is_string(v)) {
        t->chat_template = xstrdup(json_string_value(v));
        return 0;
    }
    if (!json_is_array(v))
        return err_set(e, ERR_FORMAT, "%s: \"chat_template\" should be a string or an array", where);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *named = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(named, "name"));
        const char *source = json_string_value(json_object_get(named, "template"));
        if (!name || !source)
            return err_set(e, ERR_FORMAT,
                           "%s: chat_template[%zu] should have a string \"name\" and a string"
                           " \"template\"",
                           where, i);
        if (!strcmp(name, "default") && !t->chat_template)
            t->chat_template = xstrdup(source);
    }
    return 0;
}

/* add_bos_token and add_eos_token are not looked at: beside a tokenizer.json, transformers (5) ignores them;
 * the post-processor says what is added. */
static int read_config(struct tokenizer *t, const char *text, size_t n, const char *where, struct err *e)
{
    json_t *config = NULL;
    int rc = json_parse(text, n, where, &config, e);
    if (rc)
        return rc;
    if (json_is_object(config)) {
        read_named(t, config, "bos_token", &t->bos);
        read_named(t, config, "eos_token", &t->eos);
        rc = read_chat_template(t, json_object_get(config, "chat_template"), where, e);
    } else {
        rc = err_set(e, ERR_FORMAT, "%s should hold an object", where);
    }
    json_decref(config);
    return rc;
}

/* ---- all of it ---- */

static int read_parts(struct tokenizer *t, const json_t *root, const char *where, struct err *e)
{
    int rc;
    char *place;
    static const char *const keys[] = {"model",          "normalizer", "pre_tokenizer",
                                       "post_processor", "decoder",    "added_tokens"};
    if (!json_is_object(root))
        return err_set(e, ERR_FORMAT, "%s should hold an object", where);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(root, keys[i]);
        place = xasprintf("%s: %s", where, keys[i]);
        switch (i) {
        case 0:
            rc = read_model(t, v, place, e);
            break;
        case 1:
            rc = normalizer_add_json(&t->normalizer, v, place, e);
            break;
        case 2:
            rc = pretokenizer_add_json(&t->pretokenizer, v, place, e);
            break;
        case 3:
            rc = component_read(v, "processors", read_post, t, place, e);
            break;
        case 4:
            rc = decoder_add_json(&t->decoder, v, place, e);
            if (!v || json_is_null(v))
                decoder_add(&t->decoder, DECODE_JOIN, NULL);
            break;
        default:
            rc = read_added(t, v, place, e);
        }
        xfree(place);
        if (rc)
            return rc;
    }
    if (!t->n_template)
        tokenizer_add_template(t, TEMPLATE_TEXT);
    return tokenizer_finish(t, e);
}

int tokenizer_from_json(const char *tokenizer_json, size_t n, const char *config_json, size_t n_config,
                        const char *where, struct tokenizer **ret, struct err *e)
{
    json_t *root = NULL;
    int rc = json_parse(tokenizer_json, n, where, &root, e);
    if (rc)
        return rc;
    struct tokenizer *t = tokenizer_new();
    rc = read_parts(t, root, where, e);
    json_decref(root);
    if (!rc && config_json)
        rc = read_config(t, config_json, n_config, "tokenizer_config.json", e);
    if (rc)
        tokenizer_free(t);
    else
        *ret = t;
    return rc;
}

/* A file that need not be there: *ret_there says whether it was. */
static int slurp_optional(const char *dir, const char *name, struct buf *b, bool *ret_there, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = 0;
    *ret_there = path_is_file(path);
    if (*ret_there)
        rc = file_slurp(path, MAX_FILE, b, e);
    xfree(path);
    return rc;
}

/* A shard set that was made from a GGUF has its metadata beside. */
static int open_gguf(const char *path, struct tokenizer **ret, struct err *e)
{
    struct gguf *g = NULL;
    int rc = gguf_open(path, &g, e);
    if (!rc)
        rc = tokenizer_from_gguf(g, ret, e);
    gguf_close(g);
    return rc;
}

int tokenizer_open_dir(const char *dir, struct tokenizer **ret, struct err *e)
{
    struct buf main = BUF_INIT, config = BUF_INIT, map = BUF_INIT, jinja = BUF_INIT;
    struct tokenizer *t = NULL;
    bool has_config, has_map, has_jinja;
    char *path = path_join(dir, "tokenizer.json"), *gguf = path_join(dir, "tokenizer.gguf");
    int rc;
    if (!path_is_file(path) && path_is_file(gguf)) {
        rc = open_gguf(gguf, &t, e);
        if (!rc)
            *ret = t;
        t = NULL;
        goto done;
    }
    if ((rc = file_slurp(path, MAX_FILE, &main, e)) ||
        (rc = slurp_optional(dir, "tokenizer_config.json", &config, &has_config, e)) ||
        (rc = slurp_optional(dir, "special_tokens_map.json", &map, &has_map, e)) ||
        (rc = slurp_optional(dir, "chat_template.jinja", &jinja, &has_jinja, e)) ||
        (rc = tokenizer_from_json(main.s, main.len, NULL, 0, path, &t, e)))
        goto done;
    if (has_jinja) { /* wins over tokenizer_config.json's */
        if (!utf8_valid(jinja.s, jinja.len) || memchr(jinja.s, 0, jinja.len)) {
            rc = err_set(e, ERR_FORMAT, "%s/chat_template.jinja is not UTF-8 text", dir);
            goto done;
        }
        t->chat_template = xstrndup(jinja.s, jinja.len);
    }
    xfree(path);
    path = path_join(dir, "tokenizer_config.json");
    if (has_config && (rc = read_config(t, config.s, config.len, path, e)))
        goto done;
    xfree(path);
    path = path_join(dir, "special_tokens_map.json");
    if (has_map && (rc = read_config(t, map.s, map.len, path, e)))
        goto done;
    *ret = t;
    t = NULL;
done:
    tokenizer_free(t);
    xfree(path);
    xfree(gguf);
    buf_release(&main);
    buf_release(&config);
    buf_release(&map);
    buf_release(&jinja);
    return rc;
}
