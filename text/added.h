/* added.h: the tokens that are found in text by their spelling, before anything is encoded.
 *
 * Two tries of spellings, as in tokenizers: those sought in the text as it came, and those sought in its
 * normal form. Of several spellings at one place the longest counts, and the leftmost place goes first.
 */
#ifndef YOKE_TEXT_ADDED_H
#define YOKE_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

struct added_token {
    char *content;
    char *normal; /* its normal form, where it is sought there and differs; else NULL */
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
};

struct trie {
    struct trie_node {
        int32_t child, sibling; /* first child, next sibling; -1 */
        int32_t token;          /* index of the added token that ends here; -1 */
        unsigned char byte;
    } * node; /* node[0] is the root */
    size_t n, cap;
    int32_t first[256]; /* the root's children */
};
void trie_init(struct trie *t);
void trie_release(struct trie *t);
void trie_add(struct trie *t, const char *s, size_t n, int32_t token);

struct span_token {
    size_t start, end;
    int32_t token; /* index of an added token; -1: text between */
};
struct span_tokens {
    struct span_token *v;
    size_t n, cap;
};

/* Sets out to the text's parts in order. skip_special: spellings of special tokens are text. */
void trie_split(const struct trie *t, const struct added_token *added, const char *text, size_t n,
                bool skip_special, struct span_tokens *out);

#endif
