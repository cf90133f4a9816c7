#include "cli/answer.h"

#include <string.h>
#include "base/arena.h"
#include "base/mem.h"

static bool is_eos(const struct answer *a, int32_t token)
{
    for (int32_t i = 0; i < a->n_eos; i++)
        if (a->eos[i] == token)
            return true;
    return false;
}

/* How much of the end of the text could be the beginning of a stop string. */
static size_t held_back(const struct answer *a)
{
    size_t most = 0;
    for (size_t i = 0; i < a->stop.n; i++) {
        size_t n = strlen(a->stop.v[i]);
        for (size_t k = MIN(n - (n > 0), a->text.len); k > most; k--)
            if (!memcmp(a->text.s + a->text.len - k, a->stop.v[i], k)) {
                most = k;
                break;
            }
    }
    return most;
}

/* The first place where a stop string stands, at or after `from`; text.len if none does. */
static size_t find_stop(const struct answer *a, size_t from)
{
    size_t at = a->text.len;
    for (size_t i = 0; i < a->stop.n; i++) {
        size_t n = strlen(a->stop.v[i]);
        const char *hit =
            n && from < a->text.len ? memmem(a->text.s + from, a->text.len - from, a->stop.v[i], n) : NULL;
        if (hit)
            at = MIN(at, (size_t)(hit - a->text.s));
    }
    return at;
}

static void emit_until(struct answer *a, size_t end)
{
    if (end > a->sent && a->emit)
        a->emit(a->ctx, a->text.s + a->sent, end - a->sent);
    a->sent = MAX(a->sent, end);
}

/* New text has arrived: cut at a stop string, hand out the rest as far as it is certain. */
static void settle(struct answer *a)
{
    size_t cut = find_stop(a, a->sent); /* what was sent holds no beginning of one */
    if (cut < a->text.len) {
        a->stopped = true;
        buf_remove(&a->text, cut, a->text.len - cut);
        emit_until(a, cut);
        engine_stop(a->session->engine, a->request, FINISH_STOP);
        return;
    }
    emit_until(a, a->text.len - held_back(a));
}

static void on_token(void *ctx, struct request *r, int32_t token)
{
    struct answer *a = ctx;
    if (a->stopped || (is_eos(a, token) && a->skip_special))
        return;
    detokenizer_add(a->detokenizer, token, &a->text);
    a->request = r;
    settle(a);
}

int answer_start(struct answer *a, struct session *x, const struct ids *ids,
                 const struct sampling_settings *sample, answer_emit_fn *emit, void *ctx, struct err *e)
{
    struct request_params p;
    memset(a, 0, sizeof(*a));
    buf_init(&a->text);
    a->mem = arena_new();
    int rc = session_params(x, sample, (int32_t)ids->n, &p, a->mem, e);
    if (rc)
        goto fail;
    a->session = x;
    a->stop = sample->stop;
    a->eos = p.eos;
    a->n_eos = sample->ignore_eos ? 0 : p.n_eos;
    a->skip_special = x->settings->skip_special_tokens;
    a->emit = emit;
    a->ctx = ctx;
    a->detokenizer = detokenizer_new(x->tokenizer, a->skip_special);
    rc = engine_add(x->engine, ids->id, (int32_t)ids->n, &p, on_token, a, &a->request, e);
    if (!rc)
        return 0;
fail:
    a->request = NULL;
    answer_release(a);
    return rc;
}

static void end(struct answer *a, enum finish why)
{
    if (a->ended)
        return;
    a->ended = true;
    a->finish = a->stopped ? FINISH_STOP : why; /* a stop string may come with the last token allowed */
    if (!a->stopped) {
        detokenizer_flush(a->detokenizer, &a->text);
        size_t cut = find_stop(a, a->sent);
        if (cut < a->text.len) {
            buf_remove(&a->text, cut, a->text.len - cut);
            a->finish = FINISH_STOP;
        }
    }
    emit_until(a, a->text.len);
}

bool answer_done(struct answer *a)
{
    struct request_view v;
    request_look(a->request, &v);
    if (v.finish == FINISH_NONE)
        return false;
    end(a, v.finish);
    return true;
}

void answer_cancel(struct answer *a)
{
    engine_stop(a->session->engine, a->request, FINISH_STOP);
    end(a, FINISH_STOP);
}

void answer_release(struct answer *a)
{
    if (a->request)
        engine_drop(a->session->engine, a->request);
    detokenizer_free(a->detokenizer);
    buf_release(&a->text);
    arena_free(a->mem);
    memset(a, 0, sizeof(*a));
    buf_init(&a->text);
}
