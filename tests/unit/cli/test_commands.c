/* The program from outside: what it prints where, and its exit codes. YOKE is its path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"

#define TOKENIZERS SOURCE_DIR "/tests/golden/tokenizers/"

struct ran {
    int code;
    struct buf out, err;
};

static void slurp(int fd, struct buf *b)
{
    char chunk[4096];
    ssize_t n;
    lseek(fd, 0, SEEK_SET);
    while ((n = read(fd, chunk, sizeof(chunk))) > 0)
        buf_add(b, chunk, (size_t)n);
    close(fd);
}

/* `line` goes to a shell, which finds the program as $Y. */
static struct ran yoke(const char *line)
{
    char out[] = "/tmp/yoke_test_XXXXXX", err[] = "/tmp/yoke_test_XXXXXX";
    int out_fd = mkstemp(out), err_fd = mkstemp(err);
    assert_true(out_fd >= 0 && err_fd >= 0);
    unlink(out);
    unlink(err);
    setenv("Y", YOKE, 1);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(out_fd, 1);
        dup2(err_fd, 2);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(126);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    struct ran r = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .out = BUF_INIT, .err = BUF_INIT};
    slurp(out_fd, &r.out);
    slurp(err_fd, &r.err);
    return r;
}

static void check(const char *line, int code, const char *out, const char *err)
{
    struct ran r = yoke(line);
    if (r.code != code || strcmp(r.out.s, out) || strcmp(r.err.s, err))
        fail_msg("%s\nexit code %d, not %d\nout: %s\nerr: %s", line, r.code, code, r.out.s, r.err.s);
    buf_release(&r.out);
    buf_release(&r.err);
}

static void check_parts(const char *line, int code, const char *out, const char *err)
{
    struct ran r = yoke(line);
    if (r.code != code || !strstr(r.out.s, out) || !strstr(r.err.s, err))
        fail_msg("%s\nexit code %d, not %d\nout: %s\nerr: %s", line, r.code, code, r.out.s, r.err.s);
    buf_release(&r.out);
    buf_release(&r.err);
}

static void test_top_level(void **state)
{
    (void)state;
    check("$Y version", 0, "yoke " VERSION "\n", "");
    check("$Y --version", 0, "yoke " VERSION "\n", "");
    check_parts("$Y --help", 0, "Usage: yoke COMMAND", "");
    check_parts("$Y", 2, "", "Usage: yoke COMMAND");
    check_parts("$Y run --help", 0, "--temperature X", "");
    check_parts("$Y help top_k seed", 0, "seed\n", "");
    check("$Y help nonsense_option", 2, "",
          "yoke: error: there is no option or key \"nonsense_option\"; 'yoke options' lists them all\n");
    check("$Y tokenise", 2, "", "yoke: error: unknown command \"tokenise\"; did you mean tokenize?\n");
    check("$Y --config x", 2, "", "yoke: error: a command comes first: yoke run --config ...\n");
    check("$Y options | cmp - " SOURCE_DIR "/docs/options.md", 0, "", "");
    check_parts("$Y options > /dev/full", 3, "", "yoke: error: standard output: No space left on device");
    check("$Y run -m M --temprature 1", 2, "",
          "yoke: error: unknown option --temprature; did you mean --temperature?\n");
}

static void test_tokenize(void **state)
{
    (void)state;
    check("$Y tokenize -m " TOKENIZERS "gpt2 -p 'Hello' --format ids > /tmp/$$; $Y tokenize -m " TOKENIZERS
          "gpt2 --ids \"$(cat /tmp/$$)\"; rm /tmp/$$",
          0, "Hello\n", "");
    check("printf 'two lines\\nof text' | $Y tokenize -m " TOKENIZERS
          "gpt2 --json > /tmp/$$ && $Y tokenize -m " TOKENIZERS
          "gpt2 --json --ids \"$(sed 's/.*ids[^[]*\\(\\[[^]]*\\]\\).*/\\1/' /tmp/$$)\"; rm /tmp/$$",
          0, "{\"text\": \"two lines\\nof text\"}\n", "");
    check("$Y tokenize -m " TOKENIZERS "gpt2 -f /dev/null --format ids", 0, "\n", "");
    check_parts("$Y tokenize -m " TOKENIZERS "gpt2 --ids 99999999", 2, "",
                "is no token of this model; ids are 0 to ");
    check_parts("$Y tokenize -m /nowhere -p x", 3, "", "yoke: error: ");
    check_parts("$Y tokenize -m " TOKENIZERS "gpt2 -f /nowhere", 3, "", "/nowhere");
}

/* Pipes are files too, and a folder is none. */
static void test_inputs(void **state)
{
    (void)state;
    check_parts("echo 'top_q: 3' | $Y run --config - -m M --greedy=1", 2, "", "--greedy takes no value");
    check_parts("echo 'tp: x' | $Y plan --config - -m M", 2, "",
                "standard input:1:5: tp should be an integer");
    check_parts("mkfifo /tmp/$$; (echo 'tp: x' > /tmp/$$ &); $Y plan --config /tmp/$$ -m M; c=$?; rm "
                "/tmp/$$; exit $c",
                2, "", ":1:5: tp should be an integer");
    check_parts("$Y plan --config /tmp -m M", 2, "", "cannot read /tmp: Is a directory");
    check_parts("head -c 2000000 /dev/zero | $Y plan --config - -m M", 2, "",
                "standard input: more than 1048576 bytes");
}

/* A template of its own, so that no model is needed. */
static void test_template(void **state)
{
    (void)state;
    char path[] = "/tmp/yoke_test_XXXXXX";
    int fd = mkstemp(path);
    const char *text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                       "{% if tools %}{{ tools | length }} tools\n{% endif %}{% if add_generation_prompt "
                       "%}<assistant>{% endif %}{{ x }}";
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("T", path, 1);
    check("$Y template --template $T -p Hi", 0, "<user>Hi\n<assistant>", "");
    check("$Y template --template $T --system S -p Hi --no-generation-prompt --var x=3", 0,
          "<system>S\n<user>Hi\n3", "");
    check("echo '[{\"role\": \"user\", \"content\": \"a\"}]' | $Y template --template $T --messages - "
          "--system S",
          0, "<system>S\n<user>a\n<assistant>", "");
    check("echo '{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{}, {}]}' | $Y "
          "template --template $T "
          "--messages - --var x=text",
          0, "<user>a\n2 tools\n<assistant>text", "");
    check("$Y template --template $T", 2, "",
          "yoke: error: no messages: give -p TEXT, --system TEXT or --messages FILE.json\n");
    check("$Y template --template $T -p x --var y", 2, "",
          "yoke: error: --var \"y\" should be NAME=JSON, such as enable_thinking=false\n");
    check("echo 3 | $Y template --template $T --messages -", 2, "",
          "yoke: error: standard input should be a list of messages, or an object with \"messages\"\n");
    check_parts("echo '[' | $Y template --template $T --messages -", 3, "",
                "yoke: error: standard input: line 2");
    check_parts("printf '\\377' | xargs -0 $Y template --template $T -p", 123, "",
                "yoke: error: the user message is not UTF-8 text");
    check_parts("$Y template -p x", 2, "", "no model");
    check_parts("$Y template -m " TOKENIZERS "gpt2 -p x", 3, "", "has no chat template");
    unlink(path);
}

#define SHAPES  "cd " SOURCE_DIR "/tests/golden/shapes; "
#define CLUSTER "--hosts 4 --cores 64 --memory 256GB --net 100Gb "

/* config.json is all it needs, and with stated speeds it says the same everywhere. */
static void test_advice(void **state)
{
    (void)state;
    check(SHAPES "$Y plan -m deepseek-r1 --auto " CLUSTER "--bench none --quant w4 | cmp - "
                 "../plans/auto-deepseek-r1-w4.txt",
          0, "", "");
    check(SHAPES "$Y plan -m qwen2-72b --auto " CLUSTER "--bench none --goal throughput --json | cmp - "
                 "../plans/auto-qwen2-72b.json",
          0, "", "");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto " CLUSTER "--bench none --tp 200", 4, "",
                "tensor parallelism of 200");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --hosts 1 --cores 8 --memory 16GB --bench none", 0,
                "choice: none", "");
    check_parts(
        SHAPES
        "$Y plan -m qwen2-72b --auto --weights-dtype w4 --hosts 1 --cores 8 --memory 64GB --bench none",
        0, "choice: --tp", "");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --weights-dtype int3", 2, "",
                "--weights-dtype should be f32");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --net fast", 2, "",
                "--net should be a rate such as 100Gb");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --net 1Gb,5", 2, "",
                "--net should be a rate such as 100Gb");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --context 100", 2, "", "do not go into --context 100");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --prompt-tokens 40000", 7, "",
                "the model was made for 32768");
    check_parts(SHAPES "$Y plan -m qwen2-72b --auto --bench /nowhere", 3, "", "/nowhere");
    check_parts(SHAPES
                "echo '{\"core_read\": -1}' > /tmp/$$; $Y plan -m qwen2-72b --auto --bench /tmp/$$; c=$?; rm "
                "/tmp/$$; exit $c",
                3, "", "\"core_read\" should be a positive number");
    check_parts(SHAPES
                "echo '{\"cores\": 2, \"host_read\": 4e10, \"core_read\": 3e10, \"matmul\": {\"bf16\": "
                "{\"one\": 3e10, \"many\": 5e10}}}' > /tmp/$$; $Y plan -m qwen2-72b --auto --cores 4 "
                "--memory 200GB --bench /tmp/$$; c=$?; rm /tmp/$$; exit $c",
                0, "a host reads 80 GB/s, a core 30.0 GB/s", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_level), cmocka_unit_test(test_tokenize), cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_template),  cmocka_unit_test(test_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
