/* A prompts file of any bytes, as JSON lines and as text. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "cli/prompts.h"

static void drop(struct warn_sink *sink, const char *sentence)
{
    (void)sink;
    assert(*sentence);
}

static void read_as(int format, const struct settings *s, const uint8_t *data, size_t size)
{
    struct warn_sink sink = {drop};
    struct prompts p;
    struct err e = {0};
    int err = prompts_parse((const char *)data, size, "f", format, s, &p, &sink, &e);
    assert(!err || (err == ERR_USAGE && *e.msg));
    if (err)
        return;
    assert(p.n);
    for (size_t i = 0; i < p.n; i++) {
        const struct prompt *q = &p.v[i];
        assert(!q->text != !q->messages && q->line);
        assert(!q->text || q->text[q->n_text] == 0);
        assert(!q->id || json_is_string(q->id) || json_is_integer(q->id));
        assert(q->sample.temperature >= 0 && q->sample.top_k >= 0 && q->sample.top_p > 0 &&
               q->sample.top_p <= 1);
        assert(q->sample.max_new_tokens || q->sample.max_length);
        for (size_t k = 0; k < q->sample.stop.n; k++)
            assert(*q->sample.stop.v[k]);
        for (size_t k = 0; k < q->sample.eos_token_id.n; k++)
            assert(q->sample.eos_token_id.v[k] >= 0);
    }
    prompts_release(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct settings s; /* read-only after the first time */
    if (!s.mem) {
        const char *argv[] = {"run", "-m", "M"};
        struct err e;
        if (settings_parse(3, argv, &s, NULL, &e))
            return 0;
        settings_use_generation_config(&s, NULL, "", NULL);
    }
    read_as(PROMPTS_JSONL, &s, data, size);
    s.prompts_unescape = size & 1;
    read_as(PROMPTS_TEXT, &s, data, size);
    return 0;
}
