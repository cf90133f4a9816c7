#include "text/added.h"

#include <string.h>
#include "base/mem.h"
#include "text/unicode.h"
#include "text/utf8.h"

void trie_init(struct trie *t)
{
    memset(t, 0, sizeof(*t));
    memset(t->first, 0xFF, sizeof(t->first));
    XGROW(t->node, t->n, t->cap);
    t->node[t->n++] = (struct trie_node){-1, -1, -1, 0};
}

void trie_release(struct trie *t)
{
    xfree(t->node);
    memset(t, 0, sizeof(*t));
}

static int32_t child(const struct trie *t, int32_t node, unsigned char byte)
{
    if (!node)
        return t->first[byte];
    int32_t c = t->node[node].child;
    while (c >= 0 && t->node[c].byte != byte)
        c = t->node[c].sibling;
    return c;
}

void trie_add(struct trie *t, const char *s, size_t n, int32_t token)
{
    int32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)s[i];
        int32_t next = child(t, at, byte);
        if (next < 0) {
            XGROW(t->node, t->n, t->cap);
            next = (int32_t)t->n++;
            t->node[next] = (struct trie_node){-1, t->node[at].child, -1, byte};
            t->node[at].child = next;
            if (!at)
                t->first[byte] = next;
        }
        at = next;
    }
    t->node[at].token = token;
}

/* The longest spelling at text[at]: its token and end, or -1. */
static int32_t longest(const struct trie *t, const char *text, size_t n, size_t at, size_t *ret_end)
{
    int32_t node = 0, found = -1;
    while (at < n && (node = child(t, node, (unsigned char)text[at])) >= 0) {
        at++;
        if (t->node[node].token >= 0) {
            found = t->node[node].token;
            *ret_end = at;
        }
    }
    return found;
}

static void push(struct span_tokens *out, size_t start, size_t end, int32_t token)
{
    XGROW(out->v, out->n, out->cap);
    out->v[out->n++] = (struct span_token){start, end, token};
}

/* Is there a word character right before `start`, or right after `end`? */
static bool in_word(const char *text, size_t n, size_t start, size_t end)
{
    size_t len;
    return (start && uni_is_word(utf8_get(text + utf8_before(text, start), &len))) ||
           (end < n && uni_is_word(utf8_get(text + end, &len)));
}

void trie_split(const struct trie *t, const struct added_token *added, const char *text, size_t n,
                bool skip_special, struct span_tokens *out)
{
    size_t done = 0; /* the parts so far end here */
    out->n = 0;
    for (size_t at = 0; at < n && t->n > 1;) {
        size_t end = at, len;
        int32_t token = t->first[(unsigned char)text[at]] < 0 ? -1 : longest(t, text, n, at, &end);
        if (token < 0) {
            at++;
            continue;
        }
        /* A match that is refused still hides shorter ones within it, as in tokenizers. */
        size_t start = at;
        const struct added_token *a = &added[token];
        at = end;
        if ((skip_special && a->special) || (a->single_word && in_word(text, n, start, end)))
            continue;
        if (a->lstrip && start < done)
            start = done;
        while (a->lstrip && start > done) {
            size_t before = utf8_before(text, start);
            if (!uni_is_space(utf8_get(text + before, &len)))
                break;
            start = before;
        }
        while (a->rstrip && end < n && uni_is_space(utf8_get(text + end, &len)))
            end += len;
        if (done < start)
            push(out, done, start, -1);
        if (start < end) /* else the last one has taken the white space that this one consists of */
            push(out, start, end, token);
        done = end;
    }
    if (done < n)
        push(out, done, n, -1);
}
