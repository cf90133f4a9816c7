/* golden.h: the tokenizers and texts of tests/golden/tokenizers (see make_tokenizers.py there). */
#ifndef YOKE_TESTS_GOLDEN_H
#define YOKE_TESTS_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"

#define GOLDEN YOKE_SOURCE_DIR "/tests/golden/tokenizers/"

static const char *const kinds[] = {"gpt2",         "llama3",      "qwen2",  "qwen3",  "smollm",
                                    "deepseek_llm", "deepseek_v3", "tekken", "llama2", "llama2_metaspace",
                                    "mistral",      "gemma",       "words",  "splits"};

static inline struct tokenizer *open_kind(const char *kind)
{
    struct err e = {0};
    struct tokenizer *t = NULL;
    char *dir = xasprintf(GOLDEN "%s", kind);
    if (tokenizer_open_dir(dir, &t, &e))
        fail_msg("%s", e.msg);
    xfree(dir);
    return t;
}

static inline json_t *golden_texts(void)
{
    struct err e = {0};
    json_t *texts = NULL;
    if (json_parse_file(GOLDEN "texts.json", 1 << 24, &texts, &e))
        fail_msg("%s", e.msg);
    assert_true(json_array_size(texts) > 2000);
    return texts;
}

static inline struct ids encode(const struct tokenizer *t, const char *s, size_t n, bool add_special,
                                bool parse_special)
{
    struct err e = {0};
    struct ids ids = {0};
    if (tokenizer_encode(t, s, n, (struct encode_options){add_special, parse_special}, &ids, &e))
        fail_msg("%s", e.msg);
    return ids;
}

static inline void assert_same_ids(const struct ids *a, const struct ids *b)
{
    assert_int_equal(a->n, b->n);
    if (a->n)
        assert_memory_equal(a->id, b->id, a->n * sizeof(*a->id));
}

#endif
