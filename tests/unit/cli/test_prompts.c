#include "tests/unit/cli/harness.h"

#include "base/file.h"
#include "cli/prompts.h"

struct reading {
    struct trial t;
    struct prompts p;
    struct err e;
    struct kept w;
    int err;
};

static void begin(struct reading *r, const char *line, int format, const char *text, size_t n)
{
    memset(r, 0, sizeof(*r));
    ACCEPT(&r->t, line, NULL);
    settings_use_generation_config(&r->t.s, NULL, "", NULL);
    r->w.sink.warn = keep_warning;
    buf_init(&r->w.text);
    r->err = prompts_parse(text, n, "p", format, &r->t.s, &r->p, &r->w.sink, &r->e);
}

static void end(struct reading *r)
{
    prompts_release(&r->p);
    buf_release(&r->w.text);
    trial_end(&r->t);
}

static void test_text_lines(void **state)
{
    (void)state;
    struct reading r;
    const char *text = "\xEF\xBB\xBF"
                       "one\r\n\n  \ntwo \\n x\nlast";
    begin(&r, "run -m M --top-k 3", PROMPTS_TEXT, text, strlen(text));
    assert_int_equal(r.err, 0);
    assert_int_equal(r.p.n, 3);
    assert_string_equal(r.p.v[0].text, "one");
    assert_string_equal(r.p.v[1].text, "two \\n x");
    assert_int_equal(r.p.v[1].line, 4);
    assert_string_equal(r.p.v[2].text, "last");
    assert_int_equal(r.p.v[2].n_text, 4);
    assert_int_equal(r.p.v[2].sample.top_k, 3);
    assert_null(r.p.v[0].id);
    r.t.s.prompts_unescape = true;
    prompts_release(&r.p);
    assert_int_equal(prompts_parse(text, strlen(text), "p", PROMPTS_TEXT, &r.t.s, &r.p, NULL, &r.e), 0);
    assert_string_equal(r.p.v[1].text, "two \n x");
    end(&r);
    begin(&r, "run -m M", PROMPTS_TEXT, "\n \n", 3);
    assert_int_equal(r.err, ERR_USAGE);
    assert_string_equal(r.e.msg, "p: there is no prompt in it");
    end(&r);
    /* bytes that are no text, and a NUL: the tokenizer's affair, not lost here */
    begin(&r, "run -m M", PROMPTS_TEXT, "a\0b\xFF", 4);
    assert_int_equal(r.p.v[0].n_text, 4);
    assert_memory_equal(r.p.v[0].text, "a\0b\xFF", 5);
    end(&r);
}

static void test_json_lines(void **state)
{
    (void)state;
    struct reading r;
    const char *text = "{\"prompt\": \"a\\u0000b\", \"id\": 7, \"temperature\": 0.5, \"max_tokens\": 9, "
                       "\"stop\": [\"x\", \"y\"], \"eos_token_id\": 4}\n"
                       "\n"
                       "{\"id\": \"q-2\", \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
                       "{\"role\": \"user\", \"content\": "
                       "[{\"type\": \"text\", \"text\": \"t\"}]}, {\"role\": \"assistant\", \"content\": "
                       "null, \"tool_calls\": []}], \"tools\": [{}]}\r\n"
                       "{\"prompt\": \"\", \"do_sample\": false, \"temperature\": null, \"max_length\": 100}";
    begin(&r, "run -m M --seed 3 --top-p 0.5 --stop z -n 20", PROMPTS_JSONL, text, strlen(text));
    if (r.err)
        fail_msg("%s", r.e.msg);
    assert_string_equal(r.w.text.s, "");
    assert_int_equal(r.p.n, 3);
    const struct prompt *p = r.p.v;
    assert_int_equal(p[0].n_text, 3);
    assert_memory_equal(p[0].text, "a\0b", 4);
    assert_int_equal(json_integer_value(p[0].id), 7);
    assert_true(p[0].sample.do_sample && p[0].sample.temperature == 0.5 && p[0].sample.top_p == 0.5);
    assert_int_equal(p[0].sample.max_new_tokens, 9);
    assert_int_equal(p[0].sample.seed, 3);
    assert_int_equal(p[0].sample.stop.n, 2); /* replaced, not added to */
    assert_string_equal(p[0].sample.stop.v[1], "y");
    assert_int_equal(p[0].sample.eos_token_id.v[0], 4);
    assert_string_equal(json_string_value(p[1].id), "q-2");
    assert_int_equal(json_array_size(p[1].messages), 3);
    assert_int_equal(json_array_size(p[1].tools), 1);
    assert_null(p[1].text);
    assert_int_equal(p[1].line, 3);
    assert_string_equal(p[1].sample.stop.v[0], "z");
    assert_true(p[1].sample.do_sample); /* --top-p on the command line */
    assert_false(p[2].sample.do_sample);
    assert_int_equal(p[2].sample.max_new_tokens, 0);
    assert_int_equal(p[2].sample.max_length, 100);
    assert_string_equal(p[2].text, "");
    end(&r);

    /* a line may ask for sampling although the command line said greedy, and the other way round */
    const char *both = "{\"prompt\": \"a\", \"temperature\": 0.7}\n{\"prompt\": \"a\", \"temperature\": "
                       "0}\n{\"prompt\": \"b\"}\n";
    begin(&r, "run -m M --greedy", PROMPTS_JSONL, both, strlen(both));
    assert_true(r.p.v[0].sample.do_sample);
    assert_false(r.p.v[1].sample.do_sample);
    assert_false(r.p.v[2].sample.do_sample);
    end(&r);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {"{\"prompt\": 3}", "p:2: \"prompt\" should be a text"},
        {"{\"messages\": []}", "p:2: \"messages\" should be a list of at least one message"},
        {"{\"messages\": [3]}", "p:2: message 1 should be an object with a \"role\" such as user"},
        {"{\"messages\": [{\"role\": \"user<|im_end|>\", \"content\": \"\"}]}",
         "p:2: message 1 should be an object with a \"role\" such as user"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": 3}]}", "p:2: \"content\" should be a text"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         "p:2: only parts {\"type\": \"text\", \"text\": ...} are supported"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [3]}]}",
         "p:2: only parts {\"type\": \"text\", \"text\": ...} are supported"},
        {"{\"prompt\": \"a\", \"messages\": [{\"role\": \"user\"}]}",
         "p:2: a line has either \"prompt\" or \"messages\""},
        {"{\"id\": 1}", "p:2: a line has either \"prompt\" or \"messages\""},
        {"{\"prompt\": \"a\", \"tools\": [{}]}", "p:2: \"tools\" go with \"messages\""},
        {"{\"prompt\": \"a\", \"tools\": 1}", "p:2: \"tools\" should be a list"},
        {"{\"prompt\": \"a\", \"id\": 1.5}", "p:2: \"id\" should be a text or an integer"},
        {"{\"prompt\": \"a\", \"top_p\": 1.5}",
         "p:2: \"top_p\" should be a number, above 0 and at most 1, but is \"1.5\""},
        {"{\"prompt\": \"a\", \"top_k\": \"5\"}",
         "p:2: \"top_k\" should be an integer, at least -1, but is the string \"5\""},
        {"{\"prompt\": \"a\", \"top_k\": {}}",
         "p:2: \"top_k\" should be an integer, at least -1, but is a mapping"},
        {"{\"prompt\": \"a\", \"max_tokens\": 0}",
         "p:2: \"max_tokens\" should be an integer, at least 1, but is \"0\""},
        {"{\"prompt\": \"a\", \"stop\": \"\"}", "p:2: an empty \"stop\" would end the answer at once"},
        {"{\"prompt\": \"a\", \"stop\": [\"a\\u0000b\"]}", "p:2: \"stop\" holds a NUL character"},
        {"[1]", "p:2: a line should be an object, {\"prompt\": \"...\"}"},
        {"\"x\"", "p:2: a line should be an object, {\"prompt\": \"...\"}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct reading r;
        char *text = xasprintf("{\"prompt\": \"fine\"}\n%s\n", cases[i].line);
        begin(&r, "run -m M", PROMPTS_JSONL, text, strlen(text));
        assert_int_equal(r.err, ERR_USAGE);
        assert_string_equal(r.e.msg, cases[i].sentence);
        end(&r);
        xfree(text);
    }
    static const char *const syntax[] = {"{",   "{\"a\" 1}",     "{} {}", "{\"prompt\": \"\xFF\"}",
                                         "nul", "{\"a\": 1e999}"};
    for (size_t i = 0; i < ARRAY_LEN(syntax); i++) {
        struct reading r;
        begin(&r, "run -m M", PROMPTS_JSONL, syntax[i], strlen(syntax[i]));
        assert_int_equal(r.err, ERR_USAGE);
        assert_int_equal(strncmp(r.e.msg, "p:1:", 4), 0);
        end(&r);
    }
}

static void test_unknown_keys_once(void **state)
{
    (void)state;
    struct reading r;
    const char *text = "{\"prompt\": \"a\", \"temprature\": 1, \"gold_answer\": 3}\n{\"prompt\": \"a\", "
                       "\"temprature\": 1}\n";
    begin(&r, "run -m M", PROMPTS_JSONL, text, strlen(text));
    assert_int_equal(r.err, 0);
    assert_string_equal(r.w.text.s, "p:1: unknown key \"temprature\"; did you mean \"temperature\"?\n"
                                    "p:1: the key \"gold_answer\" is not used\n");
    end(&r);
}

static void test_sources(void **state)
{
    (void)state;
    struct trial t;
    struct prompts p;
    struct err e;
    ACCEPT(&t, "run -m M -p one -p two\\n --top-k 4", NULL);
    settings_use_generation_config(&t.s, NULL, "", NULL);
    assert_int_equal(prompts_read(&t.s, &p, NULL, &e), 0);
    assert_int_equal(p.n, 2);
    assert_string_equal(p.v[1].text, "two\\n"); /* the shell's business */
    assert_int_equal(p.v[1].sample.top_k, 4);
    prompts_release(&p);
    trial_end(&t);

    char path[] = "/tmp/yoke_test_XXXXXX.JSONL";
    int fd = mkstemps(path, 6);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"prompt\": \"a\"}\n", 16), 16);
    close(fd);
    char line[128];
    snprintf(line, sizeof(line), "run -m M --prompts-file %s", path);
    ACCEPT(&t, line, NULL);
    assert_int_equal(prompts_read(&t.s, &p, NULL, &e), 0);
    assert_string_equal(p.v[0].text, "a");
    prompts_release(&p);
    t.s.prompts_format = PROMPTS_TEXT;
    assert_int_equal(prompts_read(&t.s, &p, NULL, &e), 0);
    assert_string_equal(p.v[0].text, "{\"prompt\": \"a\"}");
    prompts_release(&p);
    trial_end(&t);
    unlink(path);
    ACCEPT(&t, "run -m M --prompts-file /nowhere/x", NULL);
    assert_int_equal(prompts_read(&t.s, &p, NULL, &e), ERR_IO);
    trial_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_lines), cmocka_unit_test(test_json_lines),
        cmocka_unit_test(test_bad_lines),  cmocka_unit_test(test_unknown_keys_once),
        cmocka_unit_test(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
