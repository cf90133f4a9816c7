/* yoke run: answers. One prompt streams as text; several become JSON lines in input order; none is a
 * conversation. */
#include "cli/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/answer.h"
#include "cli/opening.h"
#include "cli/prompts.h"
#include "cli/stats.h"
#include "cli/terminal.h"
#include "text/chat.h"

struct runner {
    struct session session;
    struct settings *s;
    struct warn_sink *warn;
    struct template *template; /* NULL without --chat */
    struct run_stats stats;
};

static int interrupted_error(struct err *e)
{
    return err_set(e, ERR_INTERRUPTED, "interrupted");
}

/* --- prompts to ids --- */

static int encode_messages(const struct runner *r, const json_t *messages, const json_t *tools,
                           struct ids *ids, struct err *e)
{
    json_t *vars = chat_vars(r->session.tokenizer, messages, tools, true);
    int rc = template_verdict(chat_encode(r->session.tokenizer, r->template, vars, ids, NULL, e), e);
    json_decref(vars);
    return rc;
}

static int encode_prompt(struct runner *r, const struct prompt *p, struct ids *ids, struct err *e)
{
    if (!p->messages && !r->s->chat)
        return tokenizer_encode(r->session.tokenizer, p->text, p->n_text,
                                (struct encode_options){.add_special = true}, ids, e);
    if (!r->template) {
        int rc = template_open(r->session.tokenizer, r->s->weights, &r->template, e);
        if (rc)
            return rc;
    }
    if (p->messages)
        return encode_messages(r, p->messages, p->tools, ids, e);
    json_t *messages;
    int rc = messages_make(r->s->system, p->text, p->n_text, &messages, e);
    if (rc)
        return rc;
    rc = encode_messages(r, messages, NULL, ids, e);
    json_decref(messages);
    return rc;
}

/* --- one prompt, streamed --- */

static void to_stdout(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static void count(struct runner *r, const struct answer *a)
{
    struct request_view v;
    request_look(a->request, &v);
    run_stats_add(&r->stats, &v);
}

/* Steps until the answer is complete, or cut short by Ctrl-C (*ret_cut). */
static int finish_answer(struct runner *r, struct answer *a, bool *ret_cut, struct err *e)
{
    *ret_cut = false;
    while (!answer_done(a)) {
        int32_t left;
        if (interrupted()) {
            answer_cancel(a);
            *ret_cut = true;
            break;
        }
        int rc = engine_step(r->session.engine, &left, e);
        if (rc)
            return rc;
    }
    count(r, a);
    return 0;
}

static int run_one(struct runner *r, const struct prompt *p, struct err *e)
{
    struct ids ids = {0};
    struct answer a = {0};
    bool cut = false;
    int rc = encode_prompt(r, p, &ids, e);
    if (!rc && !r->s->skip_prompt && p->text)
        to_stdout(NULL, p->text, p->n_text);
    if (!rc)
        rc = answer_start(&a, &r->session, &ids, &p->sample, to_stdout, NULL, e);
    if (!rc) {
        rc = finish_answer(r, &a, &cut, e);
        if (!rc)
            fputc('\n', stdout);
    }
    answer_release(&a);
    ids_release(&ids);
    return rc ? rc : cut ? interrupted_error(e) : 0;
}

/* --- many prompts, JSON lines --- */

/* A prompt on its way: waiting to be written in its turn once done. */
struct job {
    struct answer answer;
    bool started, done;
    struct err failed; /* this prompt's own error; the others go on */
};

static json_t *result_of(const struct prompt *p, const struct job *j, size_t index)
{
    json_t *o = json_pack("{s:I}", "index", (json_int_t)index);
    if (p->id)
        json_object_set(o, "id", (json_t *)p->id);
    if (j->failed.code) {
        json_object_set_new(o, "error", json_string(j->failed.msg));
        return o;
    }
    struct request_view v;
    request_look(j->answer.request, &v);
    json_object_set_new(o, "text", json_stringn(j->answer.text.s, j->answer.text.len));
    json_object_set_new(o, "prompt_tokens", json_integer(v.n_prompt));
    json_object_set_new(o, "completion_tokens", json_integer(v.n_output));
    json_object_set_new(o, "finish_reason", json_string(finish_name(j->answer.finish)));
    return o;
}

static int write_result(FILE *out, const char *path, const struct prompt *p, struct job *j, size_t index,
                        struct err *e)
{
    json_t *o = result_of(p, j, index);
    int bad = json_dumpf(o, out, JSON_COMPACT) < 0 || fputc('\n', out) == EOF || fflush(out) == EOF;
    int why = errno;
    json_decref(o);
    answer_release(&j->answer);
    errno = why;
    return bad ? err_errno(e, "cannot write %s", path ? path : "standard output") : 0;
}

static void start_job(struct runner *r, const struct prompt *p, struct job *j)
{
    struct ids ids = {0};
    j->started = true;
    if (encode_prompt(r, p, &ids, &j->failed) ||
        answer_start(&j->answer, &r->session, &ids, &p->sample, NULL, NULL, &j->failed))
        j->done = true;
    ids_release(&ids);
}

/* Keeps about twice a batch in the engine's hands, so that its queue never runs dry; writes what is next in
 * line. */
static int run_jobs(struct runner *r, const struct prompts *p, struct job *jobs, FILE *out,
                    struct progress *bar, struct err *e)
{
    size_t next = 0, written = 0, active = 0;
    int rc = 0;
    while (written < p->n && !rc && !interrupted()) {
        for (; next < p->n && active < 2 * (size_t)r->session.max_batch; next++) {
            start_job(r, &p->v[next], &jobs[next]);
            active += !jobs[next].done;
        }
        int32_t left;
        if (active)
            rc = engine_step(r->session.engine, &left, e);
        for (size_t i = written; i < next && !rc; i++)
            if (!jobs[i].done && answer_done(&jobs[i].answer)) {
                jobs[i].done = true;
                active--;
                count(r, &jobs[i].answer);
            }
        for (; written < next && jobs[written].done && !rc; written++)
            rc = write_result(out, r->s->output, &p->v[written], &jobs[written], written, e);
        progress_update(bar, written);
    }
    return rc ? rc : interrupted() ? interrupted_error(e) : 0;
}

static int run_many(struct runner *r, const struct prompts *p, struct err *e)
{
    FILE *out = r->s->output ? fopen(r->s->output, "we") : stdout;
    if (!out)
        return err_errno(e, "cannot write %s", r->s->output);
    struct job *jobs;
    struct progress bar;
    size_t n_failed = 0;
    XNEW_N(jobs, p->n);
    progress_begin(&bar, "answering", p->n, PROGRESS_COUNT);
    bar.noun = "prompts";
    int rc = run_jobs(r, p, jobs, out, &bar, e);
    progress_end(&bar);
    for (size_t i = 0; i < p->n; i++) {
        n_failed += jobs[i].failed.code != 0;
        answer_release(&jobs[i].answer);
    }
    xfree(jobs);
    if (out != stdout && fclose(out) && !rc)
        rc = err_errno(e, "cannot write %s", r->s->output);
    if (!rc && n_failed)
        rc =
            err_set(e, ERR_LIMIT, "%zu of %zu prompts could not be answered; their lines say why (\"error\")",
                    n_failed, p->n);
    return rc;
}

/* --- a conversation --- */

static const char chat_help[] = "  /reset        forget the conversation\n"
                                "  /system TEXT  forget it and set the system prompt; without TEXT: none\n"
                                "  /exit         leave (so does Ctrl-D; Ctrl-C stops an answer)\n"
                                "  a line that ends in \\ goes on in the next one\n";

struct chat {
    struct runner *r;
    json_t *messages;
    char *system; /* xfree() */
};

static void chat_reset(struct chat *c)
{
    json_decref(c->messages);
    c->messages = json_array();
    if (c->system)
        json_array_append_new(c->messages, json_pack("{s:s, s:s}", "role", "system", "content", c->system));
}

static void prompt_user(const char *text)
{
    if (isatty(STDIN_FILENO))
        fputs(text, stderr);
}

/* One entry, joined over lines that end in a backslash. False at the end of input. Ctrl-C drops what was
 * typed: the entry is empty. */
static bool read_entry(struct buf *entry)
{
    buf_clear(entry);
    prompt_user("> ");
    for (;;) {
        switch (terminal_read_line(entry)) {
        case TYPED_INTERRUPT:
            fputs("\n(/exit or Ctrl-D leaves)\n", stderr);
            buf_clear(entry);
            return true;
        case TYPED_END:
            return entry->len > 0;
        case TYPED_LINE:
            break;
        }
        if (!entry->len || entry->s[entry->len - 1] != '\\')
            return true;
        entry->s[entry->len - 1] = '\n';
        prompt_user(". ");
    }
}

/* Answers the last message and adds the answer to the conversation. On an error of this turn alone the user's
 * message is taken back. */
static int chat_turn(struct chat *c, const char *text, size_t n, struct err *e)
{
    struct runner *r = c->r;
    struct ids ids = {0};
    struct answer a = {0};
    bool cut;
    json_t *content = json_stringn(text, n);
    if (!content)
        return err_set(e, ERR_USAGE, "that is not UTF-8 text");
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
    int rc = encode_messages(r, c->messages, NULL, &ids, e);
    if (!rc)
        rc = answer_start(&a, &r->session, &ids, &r->s->sample, to_stdout, NULL, e);
    ids_release(&ids);
    if (rc) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
        if (rc == ERR_LIMIT)
            err_prefix(e, "the conversation is full (/reset starts anew)");
        return rc;
    }
    rc = finish_answer(r, &a, &cut, e);
    if (cut) /* one that comes after the answer is for the prompt */
        interrupts_forget();
    fputc('\n', stdout);
    fflush(stdout);
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", "assistant", "content",
                                                 json_stringn(a.text.s, a.text.len)));
    answer_release(&a);
    return rc;
}

static bool turn_may_go_on(int rc)
{
    return rc == ERR_LIMIT || rc == ERR_USAGE || rc == ERR_FORMAT;
}

static bool is_word(const char *at, size_t n, const char *word)
{
    return strlen(word) == n && !memcmp(at, word, n);
}

/* What begins with a slash and one word is meant for us. True if it was one of our commands (*ret_leave: to
 * end) or looks like one mistyped; false if it is for the model, such as a path. */
static bool chat_command(struct chat *c, const char *entry, bool *ret_leave)
{
    size_t n = *entry == '/' ? 1 + strspn(entry + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
    if (n < 2 || (entry[n] && entry[n] != ' '))
        return false;
    const char *rest = entry + n + strspn(entry + n, " ");
    if (is_word(entry, n, "/system")) {
        xfree(c->system);
        c->system = *rest ? xstrdup(rest) : NULL;
        chat_reset(c);
    } else if (*rest) {
        return false;
    } else if (is_word(entry, n, "/exit") || is_word(entry, n, "/quit")) {
        *ret_leave = true;
    } else if (is_word(entry, n, "/help")) {
        fputs(chat_help, stderr);
    } else if (is_word(entry, n, "/reset") || is_word(entry, n, "/clear")) {
        chat_reset(c);
    } else {
        fprintf(stderr, "yoke: there is no command %.*s; /help lists them\n", (int)n, entry);
    }
    return true;
}

static int run_chat(struct runner *r, struct err *e)
{
    struct chat c = {.r = r, .system = r->s->system ? xstrdup(r->s->system) : NULL};
    struct buf entry = BUF_INIT;
    bool leave = false;
    int rc = template_open(r->session.tokenizer, r->s->weights, &r->template, e);
    if (!rc && isatty(STDIN_FILENO))
        fprintf(stderr, "%s; context %d tokens. /help lists commands.\n", r->s->weights,
                r->session.max_context);
    chat_reset(&c);
    while (!rc && !leave && read_entry(&entry)) {
        if (!entry.len || chat_command(&c, entry.s, &leave))
            continue;
        rc = chat_turn(&c, entry.s, entry.len, e);
        if (turn_may_go_on(rc)) {
            fprintf(stderr, "yoke: %s\n", e->msg);
            rc = 0;
        }
    }
    json_decref(c.messages);
    xfree(c.system);
    buf_release(&entry);
    return rc;
}

/* --- the command --- */

static bool wants_chat(const struct settings *s)
{
    return s->interactive || (!s->prompts.n && !s->prompts_file);
}

static int answer_all(struct runner *r, struct err *e)
{
    struct prompts p = {0};
    int rc;
    FILE *trace = r->s->trace ? fopen(r->s->trace, "we") : NULL; /* now: not after an hour's work */
    if (r->s->trace && !trace)
        return err_errno(e, "cannot write %s", r->s->trace);
    double before = clock_s();
    if (wants_chat(r->s)) {
        rc = run_chat(r, e);
    } else {
        rc = prompts_read(r->s, &p, r->warn, e);
        if (!rc)
            rc = p.n == 1 && !r->s->prompts_file && !r->s->output ? run_one(r, &p.v[0], e)
                                                                  : run_many(r, &p, e);
        prompts_release(&p);
    }
    r->stats.wall_s = clock_s() - before;
    if (!rc || rc == ERR_INTERRUPTED || rc == ERR_LIMIT) { /* the engine is in good order */
        int report = stats_report(&r->session, &r->stats, e);
        if (!report && trace)
            report = team_trace(r->session.team, trace, e);
        rc = rc ? rc : report;
    }
    if (trace && fclose(trace) && !rc)
        rc = err_errno(e, "cannot write %s", r->s->trace);
    return rc;
}

int command_run(struct settings *s, struct warn_sink *warn, struct err *e)
{
    struct runner r = {.s = s, .warn = warn};
    if (wants_chat(s) && !s->interactive && !isatty(STDIN_FILENO))
        return err_set(
            e, ERR_USAGE,
            "no prompt: give -p TEXT, --prompts-file FILE (- for standard input), or -i for a conversation");
    int32_t hint = wants_chat(s) ? 1 : s->prompts_file ? 16 : (int32_t)MIN(s->prompts.n, (size_t)16);
    int rc = interrupts_catch(e);
    if (rc)
        return rc;
    rc = session_open(s, SESSION_TOKENIZER | SESSION_ENGINE, hint, 0, warn, &r.session, e);
    if (!rc)
        rc = session_is_worker(&r.session) ? session_work(&r.session, e) : answer_all(&r, e);
    template_free(r.template);
    session_close(&r.session);
    return rc;
}
