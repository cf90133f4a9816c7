#include "text/tokenizer.h"

#include <string.h>
#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define MAX_TEXT ((size_t)1 << 28) /* bytes of one text; its pieces and symbols have 32-bit places */

/* ---- making ---- */

struct tokenizer *tokenizer_new(void)
{
    struct tokenizer *t;
    XNEW(t);
    trie_init(&t->raw);
    trie_init(&t->normal);
    buf_init(&t->bpe.vocab.pool);
    vocab_init(&t->added_index, 0);
    t->bos = t->eos = t->max_added = -1;
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_release(&t->bpe);
    for (size_t i = 0; i < t->n_added; i++) {
        xfree(t->added[i].content);
        xfree(t->added[i].normal);
    }
    xfree(t->added);
    vocab_release(&t->added_index);
    trie_release(&t->raw);
    trie_release(&t->normal);
    normalizer_release(&t->normalizer);
    pretokenizer_release(&t->pretokenizer);
    decoder_release(&t->decoder);
    xfree(t->template);
    xfree(t->spelling);
    xfree(t->spelling_len);
    xfree(t->decoded);
    xfree(t->decoded_len);
    xfree(t->special);
    xfree(t->skipped);
    xfree(t->chat_template);
    xfree(t);
}

static struct added_token *find_added(const struct tokenizer *t, const char *content)
{
    int32_t i = vocab_find(&t->added_index, content, strlen(content));
    return i < 0 ? NULL : &t->added[i];
}

int tokenizer_add_token(struct tokenizer *t, const struct added_token *token, int64_t declared,
                        const char *where, struct err *e)
{
    if (!*token->content)
        return 0;
    struct added_token *a = find_added(t, token->content);
    int32_t id = vocab_find(&t->bpe.vocab, token->content, strlen(token->content));
    if (a) {
        id = a->id;
    } else if (id < 0) { /* the next free one, counted as tokenizers counts */
        id = MAX(t->max_added + 1, t->bpe.vocab.n_tokens);
    }
    if (declared >= 0 && declared != id)
        return err_set(e, ERR_FORMAT,
                       "%s: the added token \"%.80s\" is said to have id %lld, but its place gives it id %d",
                       where, token->content, (long long)declared, id);
    if (id > VOCAB_MAX_ID)
        return err_set(e, ERR_LIMIT, "%s: the added token \"%.80s\" would have id %d; the largest is %d",
                       where, token->content, id, VOCAB_MAX_ID);
    if (!a) {
        int rc =
            vocab_add(&t->added_index, token->content, strlen(token->content), (int32_t)t->n_added, where, e);
        if (rc)
            return rc;
        XGROW(t->added, t->n_added, t->cap_added);
        a = &t->added[t->n_added++];
        *a = *token;
        a->content = xstrdup(token->content);
        a->normal = NULL;
        t->max_added = MAX(t->max_added, id);
    } else {
        char *content = a->content;
        bool special = a->special || token->special;
        *a = *token;
        a->content = content;
        a->special = special;
    }
    a->id = id;
    return 0;
}

void tokenizer_add_template(struct tokenizer *t, int32_t id)
{
    XGROW(t->template, t->n_template, t->cap_template);
    t->template[t->n_template++] = id;
}

static void set_id(struct tokenizer *t, int32_t id, const char *spelling, size_t n_spelling,
                   const char *decoded)
{
    t->spelling[id] = spelling;
    t->spelling_len[id] = (uint32_t)n_spelling;
    t->decoded[id] = decoded ? decoded : spelling;
    t->decoded_len[id] = (uint32_t)(decoded ? strlen(decoded) : n_spelling);
}

/* tokenizers skips a token if what it decodes to is a special token's spelling. */
static bool decodes_special(const struct tokenizer *t, const struct added_token *a)
{
    if (!a->normal)
        return a->special;
    const struct added_token *other = find_added(t, a->normal);
    return other && other->special;
}

int tokenizer_finish(struct tokenizer *t, struct err *e)
{
    struct text_scratch scratch;
    struct buf normal = BUF_INIT;
    int rc = 0;
    text_scratch_init(&scratch);
    bpe_finish(&t->bpe);
    t->n_ids = t->bpe.vocab.n_ids;
    for (size_t i = 0; i < t->n_added && !rc; i++) {
        struct added_token *a = &t->added[i];
        t->n_ids = MAX(t->n_ids, a->id + 1);
        if (!a->normalized)
            continue;
        size_t head = 0;
        buf_clear(&normal);
        buf_adds(&normal, a->content);
        rc = normalizer_run(&t->normalizer, &scratch, &normal, &head, e);
        if (!rc && strcmp(normal.s, a->content))
            a->normal = xstrndup(normal.s, normal.len);
    }
    buf_release(&normal);
    text_scratch_release(&scratch);
    if (rc)
        return rc;
    size_t n = (size_t)t->n_ids;
    XNEW_N(t->spelling, n);
    XNEW_N(t->spelling_len, n);
    XNEW_N(t->decoded, n);
    XNEW_N(t->decoded_len, n);
    XNEW_N(t->special, n);
    XNEW_N(t->skipped, n);
    for (int32_t id = 0; id < t->bpe.vocab.n_ids; id++) {
        size_t len;
        const char *s = vocab_spelling(&t->bpe.vocab, id, &len);
        if (s)
            set_id(t, id, s, len, NULL);
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const struct added_token *a = &t->added[i];
        set_id(t, a->id, a->content, strlen(a->content), a->normal);
        t->special[a->id] = a->special;
        t->skipped[a->id] = decodes_special(t, a);
        if (a->normalized) {
            const char *s = a->normal ? a->normal : a->content;
            trie_add(&t->normal, s, strlen(s), (int32_t)i);
        } else {
            trie_add(&t->raw, a->content, strlen(a->content), (int32_t)i);
        }
    }
    t->bpe.special = t->special;
    t->bpe.n_special = t->n_ids;
    return 0;
}

/* ---- asking ---- */

int tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n_ids;
}

int tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

int tokenizer_id(const struct tokenizer *t, const char *token)
{
    const struct added_token *a = find_added(t, token);
    return a ? a->id : vocab_find(&t->bpe.vocab, token, strlen(token));
}

const char *tokenizer_token(const struct tokenizer *t, int id)
{
    return id >= 0 && id < t->n_ids ? t->spelling[id] : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int id)
{
    return id >= 0 && id < t->n_ids && t->special[id];
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

/* ---- encoding ---- */

void ids_release(struct ids *ids)
{
    xfree(ids->id);
    memset(ids, 0, sizeof(*ids));
}

static void push_id(struct ids *ids, int32_t id)
{
    XGROW(ids->id, ids->n, ids->cap);
    ids->id[ids->n++] = id;
}

/* One encoding's working memory. */
struct encoding {
    const struct tokenizer *t;
    struct encode_options options;
    struct text_scratch scratch;
    struct bpe_scratch bpe;
    struct buf normal;
    struct span_tokens outer, inner;
    struct pieces pieces, spare;
    bool after_special;
};

/* Text between added tokens, normalised. */
static int encode_plain(struct encoding *c, const char *s, size_t n, size_t head, struct ids *ids,
                        struct err *e)
{
    struct pieces *p = &c->pieces;
    buf_clear(&p->text);
    buf_add(&p->text, s, n);
    p->n = 0;
    XGROW(p->v, p->n, p->cap);
    p->v[p->n++] = (struct piece){0, (uint32_t)n, (uint32_t)MIN(head, n)};
    int rc = pretokenizer_run(&c->t->pretokenizer, &c->scratch, p, &c->spare, e);
    for (size_t i = 0; i < p->n && !rc; i++)
        rc = bpe_encode(&c->t->bpe, p->text.s + p->v[i].at, p->v[i].len, c->options.parse_special, &c->bpe,
                        ids, e);
    return rc;
}

/* Text between added tokens that are sought before normalisation; `first`: nothing is before it. */
static int encode_raw(struct encoding *c, const char *s, size_t n, bool first, struct ids *ids, struct err *e)
{
    size_t head = 0, len;
    if (first && n) {
        utf8_get(s, &len);
        head = len;
    }
    buf_clear(&c->normal);
    if (c->t->prefix_after_special && c->after_special)
        buf_addc(&c->normal, ' ');
    buf_add(&c->normal, s, n);
    int rc = normalizer_run(&c->t->normalizer, &c->scratch, &c->normal, &head, e);
    if (rc)
        return rc;
    if (c->normal.len > 4 * MAX_TEXT) /* pieces have 32-bit places, and byte-level text doubles */
        return err_set(e, ERR_LIMIT, "the text grows beyond %zu bytes when it is normalised", 4 * MAX_TEXT);
    trie_split(&c->t->normal, c->t->added, c->normal.s, c->normal.len, !c->options.parse_special, &c->inner);
    for (size_t i = 0; i < c->inner.n && !rc; i++) {
        const struct span_token *v = &c->inner.v[i];
        if (v->token >= 0)
            push_id(ids, c->t->added[v->token].id);
        else
            rc = encode_plain(c, c->normal.s + v->start, v->end - v->start,
                              head > v->start ? head - v->start : 0, ids, e);
    }
    return rc;
}

static int encode_text(struct encoding *c, const char *s, size_t n, struct ids *ids, struct err *e)
{
    int rc = 0;
    c->after_special = true;
    trie_split(&c->t->raw, c->t->added, s, n, !c->options.parse_special, &c->outer);
    for (size_t i = 0; i < c->outer.n && !rc; i++) {
        const struct span_token *v = &c->outer.v[i];
        if (v->token >= 0)
            push_id(ids, c->t->added[v->token].id);
        else
            rc = encode_raw(c, s + v->start, v->end - v->start, v->start == 0, ids, e);
        c->after_special = v->token >= 0;
    }
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, struct encode_options o,
                     struct ids *ids, struct err *e)
{
    uint64_t work;
    return tokenizer_encode_counted(t, text, n, o, ids, &work, e);
}

int tokenizer_encode_counted(const struct tokenizer *t, const char *text, size_t n, struct encode_options o,
                             struct ids *ids, uint64_t *ret_work, struct err *e)
{
    if (n > MAX_TEXT)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes is too long to encode at once; the most is %zu", n,
                       MAX_TEXT);
    struct encoding c = {.t = t, .options = o};
    struct buf mended = BUF_INIT;
    size_t before = ids->n;
    int rc = 0;
    text_scratch_init(&c.scratch);
    buf_init(&c.normal);
    pieces_init(&c.pieces);
    pieces_init(&c.spare);
    if (!utf8_valid(text, n)) {
        utf8_add_lossy(&mended, text, n);
        text = mended.s;
        n = mended.len;
    }
    for (size_t i = 0; i < t->n_template && !rc; i++) {
        if (t->template[i] == TEMPLATE_TEXT)
            rc = encode_text(&c, text, n, ids, e);
        else if (o.add_special)
            push_id(ids, t->template[i]);
    }
    if (rc)
        ids->n = before;
    *ret_work = c.bpe.work + c.scratch.matches.work;
    text_scratch_release(&c.scratch);
    bpe_scratch_release(&c.bpe);
    pieces_release(&c.pieces);
    pieces_release(&c.spare);
    xfree(c.outer.v);
    xfree(c.inner.v);
    buf_release(&c.normal);
    buf_release(&mended);
    return rc;
}

/* ---- decoding ---- */

void tokenizer_decode(const struct tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                      struct buf *out)
{
    struct detokenizer *d = detokenizer_new(t, skip_special);
    for (size_t i = 0; i < n; i++)
        detokenizer_add(d, id[i], out);
    detokenizer_flush(d, out);
    detokenizer_free(d);
}

struct detokenizer {
    const struct tokenizer *t;
    bool skip_special;
    struct decoding decoding;
};

struct detokenizer *detokenizer_new(const struct tokenizer *t, bool skip_special)
{
    struct detokenizer *d;
    XNEW(d);
    d->t = t;
    d->skip_special = skip_special;
    decoding_begin(&d->decoding, &t->decoder);
    return d;
}

void detokenizer_free(struct detokenizer *d)
{
    if (!d)
        return;
    decoding_release(&d->decoding);
    xfree(d);
}

void detokenizer_add(struct detokenizer *d, int32_t id, struct buf *out)
{
    const struct tokenizer *t = d->t;
    if (id < 0 || id >= t->n_ids || !t->decoded[id] || (d->skip_special && t->skipped[id]))
        return;
    decoding_token(&d->decoding, t->decoded[id], t->decoded_len[id], out);
}

void detokenizer_flush(struct detokenizer *d, struct buf *out)
{
    decoding_end(&d->decoding, out);
}
