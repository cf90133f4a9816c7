/* yoke tokenize: text to ids and ids to text. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/input.h"
#include "cli/opening.h"

/* Vocabulary spellings are UTF-8 in every format; were one not, JSON could not hold it. */
static json_t *json_text(const char *s, size_t n)
{
    json_t *j = s ? json_stringn(s, n) : NULL;
    return j ? j : json_null();
}

static void print_json(json_t *o)
{
    json_dumpf(o, stdout, 0);
    putchar('\n');
    json_decref(o);
}

static void print_ids(const struct settings *s, const struct tokenizer *t, const struct ids *ids)
{
    json_t *list = json_array(), *tokens = json_array();
    for (size_t i = 0; i < ids->n; i++) {
        const char *spelling = tokenizer_token(t, ids->id[i]);
        switch (s->format) {
        case FORMAT_JSON:
            json_array_append_new(list, json_integer(ids->id[i]));
            json_array_append_new(tokens, json_text(spelling, spelling ? strlen(spelling) : 0));
            break;
        case FORMAT_IDS:
            printf("%s%d", i ? " " : "", ids->id[i]);
            break;
        default:
            printf("%7d  %s\n", ids->id[i], spelling ? spelling : "");
        }
    }
    if (s->format == FORMAT_IDS)
        putchar('\n');
    if (s->format == FORMAT_JSON)
        print_json(json_pack("{s:O, s:O}", "ids", list, "tokens", tokens));
    json_decref(list);
    json_decref(tokens);
}

static int encode(const struct settings *s, const struct tokenizer *t, struct err *e)
{
    struct buf text = BUF_INIT;
    struct ids ids = {0};
    int err = 0;
    if (s->prompts.n)
        buf_adds(&text, s->prompts.v[0]);
    else
        err = input_read(s->file ? s->file : "-", INPUT_MAX_BYTES, &text, e);
    if (!err) {
        struct encode_options o = {.add_special = s->add_special, .parse_special = s->parse_special};
        err = tokenizer_encode(t, text.s, text.len, o, &ids, e);
    }
    if (!err)
        print_ids(s, t, &ids);
    ids_release(&ids);
    buf_release(&text);
    return err;
}

static int decode(const struct settings *s, const struct tokenizer *t, struct err *e)
{
    int n_vocab = tokenizer_n_vocab(t);
    int32_t *id = xcalloc(s->ids.n, sizeof(*id));
    int err = 0;
    for (size_t i = 0; i < s->ids.n && !err; i++) {
        if (s->ids.v[i] >= n_vocab)
            err = err_set(e, ERR_USAGE, "--ids: %lld is no token of this model; ids are 0 to %d",
                          (long long)s->ids.v[i], n_vocab - 1);
        id[i] = (int32_t)s->ids.v[i];
    }
    if (!err) {
        struct buf text = BUF_INIT;
        tokenizer_decode(t, id, s->ids.n, s->skip_special_tokens, &text);
        if (s->format == FORMAT_JSON) {
            print_json(json_pack("{s:o}", "text", json_text(text.s, text.len)));
        } else {
            fwrite(text.s, 1, text.len, stdout);
            putchar('\n');
        }
        buf_release(&text);
    }
    xfree(id);
    return err;
}

int command_tokenize(struct settings *s, struct warn_sink *warn, struct err *e)
{
    (void)warn;
    struct tokenizer *t = NULL;
    int err = tokenizer_open_path(s->tokenizer, &t, e);
    if (!err)
        err = s->origin[OPT_ids] ? decode(s, t, e) : encode(s, t, e);
    tokenizer_free(t);
    return err;
}
