/* yoke logits: the model's raw answer, for comparing it with other implementations. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/opening.h"
#include "cli/session.h"
#include "text/chat.h"

static int ids_of(const struct settings *s, const struct session *x, struct ids *ids, struct err *e)
{
    for (size_t i = 0; i < s->ids.n; i++) {
        if (s->ids.v[i] < 0 || s->ids.v[i] >= x->hparams.vocab)
            return err_set(e, ERR_USAGE, "--ids: %lld is outside the vocabulary of %d tokens",
                           (long long)s->ids.v[i], x->hparams.vocab);
        XGROW(ids->id, ids->n, ids->cap);
        ids->id[ids->n++] = (int32_t)s->ids.v[i];
    }
    if (!s->prompts.n)
        return 0;
    const char *text = s->prompts.v[0];
    if (!s->chat)
        return tokenizer_encode(x->tokenizer, text, strlen(text),
                                (struct encode_options){.add_special = true}, ids, e);
    struct template *t = NULL;
    json_t *messages = NULL, *vars = NULL;
    int rc = template_open(x->tokenizer, s->weights, &t, e);
    if (!rc)
        rc = messages_make(s->system, text, strlen(text), &messages, e);
    if (!rc) {
        vars = chat_vars(x->tokenizer, messages, NULL, true);
        rc = template_verdict(chat_encode(x->tokenizer, t, vars, ids, NULL, e), e);
    }
    json_decref(vars);
    json_decref(messages);
    template_free(t);
    return rc;
}

/* Nine significant digits: a float comes back bit for bit. */
static void print_row(const float *logits, int32_t n, const char *between)
{
    for (int32_t i = 0; i < n; i++)
        printf("%s%.9g", i ? between : "", (double)logits[i]);
}

struct printer {
    bool json, first;
    int32_t vocab;
};

static void print_position(struct printer *p, int32_t pos, const float *logits)
{
    if (p->json) {
        fputs(p->first ? "[" : ",\n[", stdout);
        print_row(logits, p->vocab, ",");
        fputs("]", stdout);
    } else {
        printf("%d\t", pos);
        print_row(logits, p->vocab, " ");
        fputc('\n', stdout);
    }
    p->first = false;
}

static void print_head(const struct ids *ids, const struct printer *p)
{
    if (!p->json)
        return;
    printf("{\"vocab\": %d, \"ids\": [", p->vocab);
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? ", " : "", ids->id[i]);
    fputs("], \"logits\": [", stdout);
}

/* Ticks of at most max_tokens; logits of all rows, or of the last one only. */
static int print_logits(struct session *x, const struct ids *ids, struct err *e)
{
    const struct team_options *o = team_options(x->team);
    struct printer p = {.json = x->settings->format == FORMAT_JSON, .first = true, .vocab = x->hparams.vocab};
    int32_t n = (int32_t)ids->n,
            step = x->settings->all_positions ? MIN(o->max_tokens, o->max_out) : o->max_tokens;
    int32_t n_pages = (n + o->page_tokens - 1) / o->page_tokens, *pos, *row, *pages;
    if (n_pages > o->n_pages || n > x->max_context)
        return err_set(e, ERR_LIMIT, "%d tokens were given, but the context has room for %d", n,
                       MIN(x->max_context, o->n_pages * o->page_tokens));
    XNEW_N(pos, (size_t)step);
    XNEW_N(row, (size_t)step);
    XNEW_N(pages, (size_t)n_pages);
    for (int32_t i = 0; i < n_pages; i++)
        pages[i] = i;
    print_head(ids, &p);
    int rc = 0;
    for (int32_t done = 0, take; done < n && !rc; done += take) {
        take = MIN(step, n - done);
        int32_t n_out = 0;
        for (int32_t i = 0; i < take; i++) {
            pos[i] = done + i;
            if (x->settings->all_positions || done + i == n - 1)
                row[n_out++] = i;
        }
        struct span span = {0, take, done, (done + take + o->page_tokens - 1) / o->page_tokens, pages};
        struct batch b = {take, n_out, 1, ids->id + done, pos, row, &span};
        const float *logits;
        rc = team_tick(x->team, &b, &logits, e);
        for (int32_t i = 0; i < n_out && !rc; i++)
            print_position(&p, done + row[i], logits + (size_t)i * (size_t)p.vocab);
    }
    if (p.json && !rc)
        fputs("]}\n", stdout);
    xfree(pos);
    xfree(row);
    xfree(pages);
    return rc;
}

int command_logits(struct settings *s, struct warn_sink *warn, struct err *e)
{
    struct session x;
    struct ids ids = {0};
    if (!s->ids.n == !s->prompts.n)
        return err_set(e, ERR_USAGE, "give the tokens as --ids 1,2,3 or as a text with -p, one of the two");
    unsigned parts = SESSION_ENGINE | (s->prompts.n ? SESSION_TOKENIZER : 0);
    int rc = session_open(s, parts, 1, s->all_positions ? 64 : 1, warn, &x, e);
    if (!rc && session_is_worker(&x)) {
        rc = session_work(&x, e);
    } else if (!rc) {
        rc = ids_of(s, &x, &ids, e);
        if (!rc && !ids.n)
            rc = err_set(e, ERR_USAGE, "the prompt has no tokens");
        if (!rc)
            rc = print_logits(&x, &ids, e);
    }
    ids_release(&ids);
    session_close(&x);
    return rc;
}
