#include "text/bpe.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "text/utf8.h"

static size_t pair_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 32);
}

static struct bpe_merge *merge_slot(const struct bpe *b, int32_t left, int32_t right)
{
    size_t i = pair_hash(left, right) & (b->n_slots - 1);
    while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & (b->n_slots - 1);
    return &b->merge[i];
}

static void resize_merges(struct bpe *b, size_t n_slots)
{
    struct bpe_merge *old = b->merge;
    size_t n_old = b->n_slots;
    b->merge = xreallocarray(NULL, n_slots, sizeof(*b->merge));
    b->n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++)
        b->merge[i].left = -1;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].left >= 0)
            *merge_slot(b, old[i].left, old[i].right) = old[i];
    xfree(old);
}

void bpe_init(struct bpe *b, size_t expected_tokens, size_t expected_merges)
{
    memset(b, 0, sizeof(*b));
    vocab_init(&b->vocab, expected_tokens);
    size_t n_slots = 64;
    while (n_slots < 2 * expected_merges && n_slots < (1u << 24))
        n_slots *= 2;
    resize_merges(b, n_slots);
    b->unk = -1;
}

void bpe_release(struct bpe *b)
{
    vocab_release(&b->vocab);
    xfree(b->merge);
    xfree(b->score_rank);
    xfree(b->prefix);
    xfree(b->suffix);
    memset(b, 0, sizeof(*b));
}

static int merge_unknown(const char *s, size_t n, const char *left, size_t n_left, const char *right,
                         size_t n_right, const char *where, struct err *e)
{
    return err_set(e, ERR_FORMAT,
                   "%s: the merge \"%.*s\" + \"%.*s\" needs a token \"%.*s\" that is not in the"
                   " vocabulary",
                   where, (int)MIN(n_left, 80), left, (int)MIN(n_right, 80), right, (int)MIN(n, 160), s);
}

int bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                  const char *where, struct err *e)
{
    int32_t l = vocab_find(&b->vocab, left, n_left), r = vocab_find(&b->vocab, right, n_right);
    if (l < 0)
        return merge_unknown(left, n_left, left, n_left, right, n_right, where, e);
    if (r < 0)
        return merge_unknown(right, n_right, left, n_left, right, n_right, where, e);
    /* Every right part carries the continuation prefix; in the middle of a token it is not repeated. */
    if (n_right < b->prefix_len)
        return err_set(e, ERR_FORMAT,
                       "%s: the right part \"%s\" of a merge is shorter than"
                       " continuing_subword_prefix \"%s\"",
                       where, right, b->prefix);
    char local[256], *joined = local;
    size_t n_rest = n_right - b->prefix_len, n = n_left + n_rest;
    if (n > b->vocab.max_len)
        return err_set(e, ERR_FORMAT, "%s: the merge \"%.80s\" + \"%.80s\" is longer than any token", where,
                       left, right);
    if (n > sizeof(local))
        joined = xmalloc(n);
    memcpy(joined, left, n_left);
    memcpy(joined + n_left, right + b->prefix_len, n_rest);
    int32_t result = vocab_find(&b->vocab, joined, n);
    int rc = result < 0 ? merge_unknown(joined, n, left, n_left, right, n_right, where, e) : 0;
    if (joined != local)
        xfree(joined);
    if (rc)
        return rc;
    if (2 * (b->n_merges + 1) > b->n_slots)
        resize_merges(b, 2 * b->n_slots);
    *merge_slot(b, l, r) = (struct bpe_merge){l, r, (uint32_t)b->n_merges, result};
    b->n_merges++; /* counts repeated pairs too: it is the next rank */
    return 0;
}

void bpe_set_affixes(struct bpe *b, const char *prefix, const char *suffix)
{
    b->prefix_len = prefix ? strlen(prefix) : 0;
    b->suffix_len = suffix ? strlen(suffix) : 0;
    b->prefix = b->prefix_len ? xstrdup(prefix) : NULL; /* many files say "" for none */
    b->suffix = b->suffix_len ? xstrdup(suffix) : NULL;
}

void bpe_finish(struct bpe *b)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", i);
        b->byte[i] = vocab_find(&b->vocab, name, 6);
    }
    for (uint32_t c = 0; c < ARRAY_LEN(b->low); c++) {
        char u[4];
        b->low[c] = vocab_find(&b->vocab, u, utf8_put(c, u));
    }
}

void bpe_scratch_release(struct bpe_scratch *s)
{
    xfree(s->symbol);
    xfree(s->heap);
    memset(s, 0, sizeof(*s));
}

static void push_id(struct ids *ids, int32_t id)
{
    XGROW(ids->id, ids->n, ids->cap);
    ids->id[ids->n++] = id;
}

static bool is_special(const struct bpe *b, int32_t id)
{
    return id < b->n_special && b->special[id];
}

static void add_symbol(struct bpe_scratch *s, int32_t id, size_t at, size_t len)
{
    XGROW(s->symbol, s->n_symbols, s->cap_symbols);
    int32_t i = (int32_t)s->n_symbols;
    if (i)
        s->symbol[i - 1].next = i;
    s->symbol[s->n_symbols++] = (struct bpe_symbol){id, (uint32_t)at, (uint32_t)len, i - 1, -1};
}

static void heap_push(struct bpe_scratch *s, struct bpe_candidate c)
{
    XGROW(s->heap, s->n_heap, s->cap_heap);
    size_t i = s->n_heap++;
    for (s->work++; i && s->heap[(i - 1) / 2].order > c.order; i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s)
{
    struct bpe_candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0, child;
    for (s->work++; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && s->heap[child + 1].order < s->heap[child].order)
            child++;
        if (s->heap[child].order >= last.order)
            break;
        s->heap[i] = s->heap[child];
    }
    if (s->n_heap)
        s->heap[i] = last;
    return top;
}

/* What the symbols l and r merge to, if they do: the result and its rank. */
static bool mergeable(const struct bpe *b, const char *text, const struct bpe_symbol *l,
                      const struct bpe_symbol *r, bool allow_special, int32_t *ret_result, uint32_t *ret_rank)
{
    if (b->score_rank) {
        int32_t id = vocab_find(&b->vocab, text + l->at, l->len + r->len);
        if (id < 0 || b->score_rank[id] == UINT32_MAX)
            return false;
        *ret_result = id;
        *ret_rank = b->score_rank[id];
        return true;
    }
    const struct bpe_merge *m = merge_slot(b, l->id, r->id);
    if (m->left < 0 || (!allow_special && is_special(b, m->result)))
        return false;
    *ret_result = m->result;
    *ret_rank = m->rank;
    return true;
}

static void propose(const struct bpe *b, const char *text, bool allow_special, int32_t left, int32_t right,
                    struct bpe_scratch *s)
{
    int32_t result;
    uint32_t rank;
    const struct bpe_symbol *l = &s->symbol[left], *r = &s->symbol[right];
    if (mergeable(b, text, l, r, allow_special, &result, &rank))
        heap_push(s, (struct bpe_candidate){(uint64_t)rank << 32 | (uint32_t)left, result, l->id, r->id,
                                            l->len + r->len});
}

/* tokenizers asks whether the pair still makes the same token, which differs from whether it is the same pair
 * only where symbols do not spell their text (unknown characters, bytes). */
static bool is_current(const struct bpe *b, const char *text, bool allow_special,
                       const struct bpe_candidate *c, const struct bpe_symbol *l, const struct bpe_symbol *r)
{
    int32_t result;
    uint32_t rank;
    if (b->score_rank)
        return l->len + r->len == c->len;
    return (l->id == c->left && r->id == c->right) ||
           (mergeable(b, text, l, r, allow_special, &result, &rank) && result == c->result);
}

static void merge_all(const struct bpe *b, const char *text, bool allow_special, struct bpe_scratch *s)
{
    s->n_heap = 0;
    for (size_t i = 1; i < s->n_symbols; i++)
        propose(b, text, allow_special, (int32_t)i - 1, (int32_t)i, s);
    while (s->n_heap) {
        struct bpe_candidate c = heap_pop(s);
        int32_t at = (int32_t)(uint32_t)c.order;
        struct bpe_symbol *l = &s->symbol[at];
        if (!l->len || l->next < 0)
            continue;
        struct bpe_symbol *r = &s->symbol[l->next];
        if (!is_current(b, text, allow_special, &c, l, r))
            continue;
        l->id = c.result;
        l->len += r->len;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0)
            s->symbol[l->next].prev = at;
        if (l->prev >= 0)
            propose(b, text, allow_special, l->prev, at, s);
        if (l->next >= 0)
            propose(b, text, allow_special, at, l->next, s);
    }
}

struct span {
    const char *s;
    size_t len;
};

/* A character as the vocabulary spells it: with the prefix and suffix that its place asks for. */
static struct span decorate(const struct bpe *b, const char *s, size_t len, bool first, bool last,
                            struct buf *decorated)
{
    bool prefix = b->prefix && !first, suffix = b->suffix && last;
    if (!prefix && !suffix)
        return (struct span){s, len};
    buf_clear(decorated);
    if (prefix)
        buf_add(decorated, b->prefix, b->prefix_len);
    buf_add(decorated, s, len);
    if (suffix)
        buf_add(decorated, b->suffix, b->suffix_len);
    return (struct span){decorated->s, decorated->len};
}

static bool has_bytes(const struct bpe *b, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (b->byte[(unsigned char)s[i]] < 0)
            return false;
    return true;
}

/* The characters as symbols, for a list of merges. An unknown token waits for the next known character, also
 * past byte tokens: so does tokenizers. A single character may be a special token (a model that pads with
 * "!"): it has no other spelling. */
static int start_list(const struct bpe *b, const char *text, size_t n, struct bpe_scratch *s, struct err *e)
{
    struct buf decorated = BUF_INIT;
    size_t unk_at = 0, unk_len = 0; /* unk_len > 0: one is waiting */
    int rc = 0;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t c = utf8_get(text + at, &len);
        struct span w = decorate(b, text + at, len, at == 0, at + len == n, &decorated);
        int32_t id =
            w.s == text + at && c < ARRAY_LEN(b->low) ? b->low[c] : vocab_find(&b->vocab, w.s, w.len);
        if (id >= 0) {
            if (unk_len)
                add_symbol(s, b->unk, unk_at, unk_len);
            unk_len = 0;
            add_symbol(s, id, at, len);
        } else if (b->byte_fallback && has_bytes(b, w.s, w.len)) {
            for (size_t i = 0; i < w.len; i++)
                add_symbol(s, b->byte[(unsigned char)w.s[i]], at, 1);
        } else if (b->unk_missing) {
            rc = err_set(e, ERR_FORMAT,
                         "the text has a character that the vocabulary lacks (U+%04X), and the tokenizer's"
                         " unk_token is not in the vocabulary",
                         c);
            break;
        } else if (b->unk >= 0 && unk_len && b->fuse_unk) {
            unk_len += len;
        } else if (b->unk >= 0) {
            if (unk_len)
                add_symbol(s, b->unk, unk_at, unk_len);
            unk_at = at;
            unk_len = len;
        }
    }
    if (unk_len)
        add_symbol(s, b->unk, unk_at, unk_len);
    buf_release(&decorated);
    return rc;
}

static void start_scores(const struct bpe *b, const char *text, size_t n, struct bpe_scratch *s)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t c = utf8_get(text + at, &len);
        int32_t id = c < ARRAY_LEN(b->low) ? b->low[c] : vocab_find(&b->vocab, text + at, len);
        if (id >= 0 && b->score_rank[id] == UINT32_MAX)
            id = -1;
        add_symbol(s, id, at, len);
    }
}

int bpe_encode(const struct bpe *b, const char *text, size_t n, bool allow_special, struct bpe_scratch *s,
               struct ids *ids, struct err *e)
{
    s->n_symbols = 0;
    s->work += n;
    if (b->score_rank) {
        start_scores(b, text, n, s);
    } else {
        if (b->ignore_merges) {
            int32_t id = vocab_find(&b->vocab, text, n);
            if (id >= 0 && (allow_special || !is_special(b, id))) {
                push_id(ids, id);
                return 0;
            }
        }
        int rc = start_list(b, text, n, s, e);
        if (rc)
            return rc;
    }
    merge_all(b, text, allow_special, s);
    for (size_t i = 0; i < s->n_symbols; i++) {
        const struct bpe_symbol *y = &s->symbol[i];
        if (!y->len)
            continue;
        if (y->id >= 0) {
            push_id(ids, y->id);
        } else if (has_bytes(b, text + y->at, y->len)) {
            for (size_t k = 0; k < y->len; k++)
                push_id(ids, b->byte[(unsigned char)text[y->at + k]]);
        } else if (b->unk >= 0) {
            push_id(ids, b->unk);
        }
    }
    return 0;
}
