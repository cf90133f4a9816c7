/* tokenizer_impl.h: what a tokenizer is made of; private to text/. */
#ifndef YOKE_TEXT_TOKENIZER_IMPL_H
#define YOKE_TEXT_TOKENIZER_IMPL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

#define TEMPLATE_TEXT (-1) /* in a template: here go the text's own ids */

struct tokenizer {
    struct bpe bpe;
    struct added_token *added;
    size_t n_added, cap_added;
    struct vocab added_index; /* places in `added` by content */
    int32_t max_added;        /* their largest id; -1 */
    struct trie raw, normal;  /* spellings sought before and after normalisation */
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct decoder decoder;
    int32_t *template; /* [n_template] the post-processor: ids around TEMPLATE_TEXT */
    size_t n_template, cap_template;
    bool prefix_after_special; /* GGUF "llama": a space goes in front of each text that follows a special
                                  token */

    /* By id, [n_ids]: filled by tokenizer_finish. */
    int32_t n_ids;
    const char **spelling; /* NULL: no such id */
    uint32_t *spelling_len;
    const char **decoded; /* what the decoder sees; differs for some added tokens */
    uint32_t *decoded_len;
    uint8_t *special;
    uint8_t *skipped; /* left out by skip_special: nearly, but not quite, the special ones */

    int32_t bos, eos;
    char *chat_template;
};

struct tokenizer *tokenizer_new(void);
/* content is copied. Its id is the vocabulary's, or the next free one; `declared` must agree, -1: whatever.
 */
int tokenizer_add_token(struct tokenizer *t, const struct added_token *token, int64_t declared,
                        const char *where, struct err *e);
void tokenizer_add_template(struct tokenizer *t, int32_t id);
/* When all parts are there: the tables by id, the tries. */
int tokenizer_finish(struct tokenizer *t, struct err *e);

/* tokenizer_encode, and how much work it was: steps of the patterns and of merging, whatever the machine. */
int tokenizer_encode_counted(const struct tokenizer *t, const char *text, size_t n, struct encode_options o,
                             struct ids *ids, uint64_t *ret_work, struct err *e);

#endif
