#include "tests/unit/cli/harness.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/options.h"

static void test_mindformers_command_line(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t,
           "run --run_mode predict --use_parallel True --auto_trans_ckpt True --load_checkpoint /models/q "
           "--predict_data 'I love Beijing, because' --predict_batch_size 4",
           "run_mode: 'predict'\nuse_parallel: False\nparallel_config:\n  model_parallel: 4\n");
    assert_int_equal(t.s.run_mode, RUN_MODE_PREDICT);
    assert_true(t.s.use_parallel);
    assert_true(t.s.auto_trans_ckpt);
    assert_string_equal(t.s.weights, "/models/q");
    assert_string_equal(t.s.tokenizer, "/models/q");
    assert_int_equal(t.s.prompts.n, 1);
    assert_string_equal(t.s.prompts.v[0], "I love Beijing, because");
    assert_int_equal(t.s.max_batch, 4);
    assert_int_equal(t.s.tp, 4);
    trial_end(&t);

    ACCEPT(&t,
           "run --load_checkpoint W --pretrained_model_dir D --predict_data a\\nb 'c d' '- e' --seed 7 "
           "--do_sample True",
           "");
    assert_string_equal(t.s.weights, "W");
    assert_string_equal(t.s.tokenizer, "D");
    assert_int_equal(t.s.prompts.n, 3);
    assert_string_equal(t.s.prompts.v[0], "a\\nb"); /* several: taken as they are */
    assert_string_equal(t.s.prompts.v[2], "- e");
    assert_int_equal(t.s.sample.seed, 7);
    assert_true(t.s.sample.do_sample);
    trial_end(&t);

    ACCEPT(&t, "run --pretrained_model_dir=D --predict_data 'one\\ntwo' --top_k 3 --top_p=0.5", NULL);
    assert_string_equal(t.s.weights, "D");
    assert_string_equal(t.s.prompts.v[0], "one\ntwo");
    trial_end(&t);
}

static void test_predict_data_that_is_a_file(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t, "run -m M --predict_data " SOURCE_DIR "/LICENSE", NULL);
    assert_string_equal(t.s.prompts_file, SOURCE_DIR "/LICENSE");
    assert_int_equal(t.s.prompts_format, PROMPTS_TEXT);
    assert_true(t.s.prompts_unescape);
    assert_int_equal(t.s.prompts.n, 0);
    trial_end(&t);
    refuse("run -m M --predict_data /tmp", NULL,
           "--predict_data: /tmp is a folder; images are not supported yet");
    ACCEPT(&t, "run -m M", "predict_data: ['x', 'y']\n");
    assert_int_equal(t.s.prompts.n, 2);
    trial_end(&t);
}

/* The same setting said at every subset of the levels: the highest one counts, and is named as the source. */
static void test_precedence_matrix(void **state)
{
    (void)state;
    static const struct {
        enum option_id id;
        const char *flag, *path, *yaml; /* yaml has one %s */
        const char *hf;
        const char *value[4]; /* checkpoint, YAML, override, flag */
    } rows[] = {
        {OPT_top_k,
         "--top-k",
         "generation_config.top_k",
         "generation_config:\n  top_k: %s\n",
         "top_k",
         {"11", "12", "13", "14"}},
        {OPT_top_k,
         "--top_k",
         "model.model_config.top_k",
         "generation_config:\n  top_k: %s\n",
         "top_k",
         {"11", "12", "13", "14"}},
        {OPT_temperature,
         "--temperature",
         "model.model_config.temperature",
         "model:\n  model_config:\n    temperature: %s\n",
         "temperature",
         {"0.1", "0.2", "0.3", "0.4"}},
        {OPT_max_new_tokens,
         "-n",
         "generation_config.max_new_tokens",
         "max_new_tokens: %s\n",
         "max_new_tokens",
         {"1", "2", "3", "4"}},
        {OPT_do_sample,
         "--do_sample",
         "generation_config.do_sample",
         "generation_config: {do_sample: %s}\n",
         "do_sample",
         {"true", "False", "True", "False"}},
        {OPT_eos_token_id,
         "--eos-token-id",
         "model.model_config.eos_token_id",
         "model:\n  model_config:\n    eos_token_id: %s\n",
         "eos_token_id",
         {"[1, 2]", "[3, 4]", "5", "6,7"}},
    };
    for (size_t r = 0; r < ARRAY_LEN(rows); r++)
        for (unsigned set = 0; set < 16; set++) {
            char line[256] = "run -m M", yaml[128] = "", json[128] = "{}";
            if (set & 1)
                snprintf(json, sizeof(json), "{\"%s\": %s}", rows[r].hf, rows[r].value[0]);
            if (set & 2) {
                const char *mark = strstr(rows[r].yaml, "%s");
                snprintf(yaml, sizeof(yaml), "%.*s%s%s", (int)(mark - rows[r].yaml), rows[r].yaml,
                         rows[r].value[1], mark + 2);
            }
            if (set & 4)
                snprintf(line + strlen(line), sizeof(line) - strlen(line), " --%s %s", rows[r].path,
                         rows[r].value[2]);
            if (set & 8)
                snprintf(line + strlen(line), sizeof(line) - strlen(line), " %s %s", rows[r].flag,
                         rows[r].value[3]);
            struct trial t;
            ACCEPT(&t, line, yaml);
            struct err e;
            json_t *o;
            assert_int_equal(json_parse(json, strlen(json), "g", &o, &e), 0);
            settings_use_generation_config(&t.s, o, "generation_config.json", &t.w.sink);
            json_decref(o);
            int top = set & 8 ? 3 : set & 4 ? 2 : set & 2 ? 1 : set & 1 ? 0 : -1;
            assert_int_equal(t.s.origin[rows[r].id], top + 1);
            assert_int_equal(t.s.source[rows[r].id] != NULL, top >= 0);
            const char *want = top >= 0 ? rows[r].value[top] : option_table[rows[r].id].fallback;
            const struct sampling_settings *p = &t.s.sample;
            switch (rows[r].id) {
            case OPT_top_k:
                assert_int_equal(p->top_k, atoi(want));
                break;
            case OPT_temperature:
                assert_true(p->temperature == atof(want));
                break;
            case OPT_max_new_tokens:
                assert_int_equal(p->max_new_tokens, want ? atoi(want) : 512);
                break;
            case OPT_do_sample:
                assert_int_equal(p->do_sample, (*want | 32) == 't');
                break;
            default:
                assert_int_equal(p->eos_token_id.n, top < 0 ? 0 : top == 2 ? 1 : 2);
                if (top >= 0)
                    assert_int_equal(p->eos_token_id.v[0], want[*want == '['] - '0');
            }
            trial_end(&t);
        }
}

static void test_keys_of_one_setting(void **state)
{
    (void)state;
    struct trial t;
    trial_begin(&t, "run -m M", "generation_config:\n  top_k: 5\nmodel:\n  model_config: {top_k: 6}\n");
    assert_int_equal(t.s.sample.top_k, 5);
    assert_string_equal(
        t.w.text.s,
        "FILE:4:25: model.model_config.top_k is not used: FILE:2:10: generation_config.top_k counts\n");
    trial_end(&t);
    ACCEPT(&t, "run -m M", "generation_config:\n  top_k: 5\nmodel:\n  model_config: {top_k: 5}\n");
    trial_end(&t);
    ACCEPT(&t, "run -m M",
           "parallel_config: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 2, "
           "data_parallel_size: 3, "
           "expert_model_parallel_size: 24}\n");
    assert_int_equal(t.s.tp * 1000 + t.s.pp * 100 + t.s.dp, 8203);
    assert_int_equal(t.s.ep, 24);
    assert_string_equal(strchr(t.s.source[OPT_tp], ':'), strchr(t.s.source[OPT_tp], ':'));
    trial_end(&t);
    ACCEPT(&t, "run -m M", "model: {model_config: {max_decode_length: 64}}\n");
    assert_int_equal(t.s.sample.max_length, 64);
    trial_end(&t);
    ACCEPT(&t, "run -m M --parallel_config.model_parallel 2", "tp: 4\n");
    assert_int_equal(t.s.tp, 2);
    trial_end(&t);
}

static void test_overrides(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t,
           "run -m M --parallel_config.model_parallel 4 --parallel_config.pipeline_stage=2 "
           "--options model.model_config.seq_length=100 generation_config.eos_token_id=[1,2] use_past=True "
           "--chat",
           NULL);
    assert_int_equal(t.s.tp, 4);
    assert_int_equal(t.s.pp, 2);
    assert_int_equal(t.s.seq_length, 100);
    assert_int_equal(t.s.sample.eos_token_id.n, 2);
    assert_int_equal(t.s.origin[OPT_tp], FROM_OVERRIDE);
    assert_string_equal(t.s.source[OPT_tp], "--parallel_config.model_parallel");
    assert_string_equal(t.s.source[OPT_seq_length], "--options model.model_config.seq_length");
    assert_true(t.s.chat);
    trial_end(&t);
    /* through an alias: only the place that was named changes */
    ACCEPT(&t, "run -m M --model.model_config.top_k 9",
           "x-c: &c {top_k: 1}\nmodel: {model_config: *c}\ngeneration_config: *c\n");
    assert_int_equal(t.s.sample.top_k, 9);
    trial_end(&t);
    /* a parent that is in the file but unknown is the user's own affair; an unknown one is a typo */
    trial_begin(&t, "run -m M --mine.x 1", "mine: {y: 2}\n");
    assert_int_equal(t.err, 0);
    assert_string_equal(t.w.text.s, "FILE:1:1: unknown key mine: it changes nothing\n");
    trial_end(&t);
    refuse("run -m M --mine.x 1", "", "--mine.x: there is no setting mine.x");
    refuse("run -m M --parallel_confg.model_parallel 4", NULL,
           "--parallel_confg.model_parallel: there is no setting parallel_confg.model_parallel; did you mean "
           "parallel_config.model_parallel?");
    refuse("run -m M --seed.x 4", "seed: 1\n", "--seed.x: there is no setting seed.x");
    refuse("run -m M --parallel_config.model_parallel.x 4", "parallel_config: {model_parallel: 2}\n",
           "--parallel_config.model_parallel.x: there is no setting parallel_config.model_parallel.x");
    refuse("run -m M --context.a.b.c.d.e.f.g.h.i.j.k 1", NULL,
           "--context.a.b.c.d.e.f.g.h.i.j.k: nested deeper than 10 levels");
    refuse("run -m M --context.mode.x 1", "context: {mode: 0}\n",
           "--context.mode.x: the configuration has a single value above x");
    refuse("run -m M --parallel_config.model_parallel", NULL,
           "--parallel_config.model_parallel needs a value");
    refuse("run -m M --parallel_config.model_parallel four", NULL,
           "--parallel_config.model_parallel should be an integer, at least 1 and at most 65536, but is "
           "\"four\"");
    refuse("run -m M --a..b 1", NULL, "--a..b: \"a..b\" is no dotted name");
    refuse("run -m M --options seed", NULL,
           "--options: \"seed\" should be KEY=VALUE, such as parallel_config.model_parallel=4");
    refuse("run -m M --options", NULL, "--options needs at least one value");
    /* a top-level key without a flag of its own */
    trial_begin(&t, "run -m M --use_legacy False --transform_process_num 2", NULL);
    assert_int_equal(t.err, 0);
    assert_string_equal(
        t.w.text.s,
        "these keys change nothing here: use_legacy, transform_process_num ('yoke help KEY' says why)\n");
    trial_end(&t);
}

static void test_errors_say_where_what_and_what_is_legal(void **state)
{
    (void)state;
    refuse("run -m M", "seed: 1\nparallel_config:\n  model_parallel: two\n",
           "FILE:3:19: parallel_config.model_parallel should be an integer, at least 1 and at most 65536, "
           "but is \"two\"");
    refuse("run -m M", "generation_config:\n  top_p: 1.5\n",
           "FILE:2:10: generation_config.top_p should be a number, above 0 and at most 1, but is \"1.5\"");
    refuse("run -m M", "use_parallel: 'yes'\n",
           "FILE:1:15: use_parallel should be true or false, but is the string \"yes\"");
    refuse("run -m M", "use_parallel: 1\n", "FILE:1:15: use_parallel should be true or false, but is \"1\"");
    refuse("run -m M", "seed: [1]\n", "FILE:1:7: seed should be an integer, at least 0, but is a list of 1");
    refuse("run -m M", "generation_config: 7\n",
           "FILE:1:20: generation_config should be a mapping with keys of its own, but is \"7\"");
    refuse("run -m M", "model:\n  model_config: [a]\n",
           "FILE:2:17: model.model_config should be a mapping with keys of its own, but is a list of 1");
    refuse("run -m M", "seed: \"4\"\n",
           "FILE:1:7: seed should be an integer, at least 0, but is the string \"4\"");
    refuse("run -m M", "kv_dtype: f8\n",
           "FILE:1:11: kv_dtype should be one of auto, f32, f16, bf16, int8, but is \"f8\"");
    refuse("run -m M", "context: {max_device_memory: 58XB}\n",
           "FILE:1:30: context.max_device_memory should be a size such as 58GB or 512MB, or auto, but is "
           "\"58XB\"");
    refuse("run -m M --use_parallel=1", NULL, "--use_parallel should be true or false, but is \"1\"");
    refuse("run -m M --tp", NULL, "--tp needs a value");
    refuse("run -m M --tp --pp 2", NULL, "--tp needs a value; if --pp is meant as one, write --tp=--pp");
    refuse("run -m M --greedy=True", NULL, "--greedy takes no value");
    refuse("run -m M --temprature 1", NULL, "unknown option --temprature; did you mean --temperature?");
    refuse("run -m M --zzzzzz 1", NULL, "unknown option --zzzzzz; 'yoke run --help' lists them");
    refuse("run -m M -chat", NULL, "unknown option -chat (words have two dashes); did you mean --chat?");
    refuse("run -m M hello", NULL, "unexpected argument \"hello\"; a prompt is given with -p");
    refuse("plan -m M --temperature 1", NULL,
           "--temperature is not an option of 'yoke plan'; it belongs to 'yoke run'");
    refuse("run -p x", NULL,
           "no model: give -m PATH, or load_checkpoint or pretrained_model_dir in the YAML file");
    refuse("walk -p x", NULL, "unknown command \"walk\"");
    refuse("run --config /nowhere/x.yaml", NULL, "cannot open /nowhere/x.yaml: No such file or directory");
    /* a prompt may look like anything */
    struct trial t;
    ACCEPT(&t, "run -m M -p=--chat=x --prompt=--chat -p -3 -p -", NULL);
    trial_end(&t);
}

static void test_contradictions(void **state)
{
    (void)state;
    refuse("run -m M --greedy --temperature 0.7", NULL,
           "--greedy and --temperature contradict each other: greedy decoding takes the most likely token, "
           "there is nothing "
           "to draw from");
    refuse("run -m M --do_sample False --top_p 0.7", NULL,
           "--do_sample and --top_p contradict each other: greedy decoding takes the most likely token, "
           "there is nothing to "
           "draw from");
    refuse("run -m M --do-sample --temperature 0", NULL,
           "--do-sample and --temperature 0 contradict each other: temperature 0 is greedy");
    refuse("run -m M -p x --prompts-file y", NULL, "-p and --prompts-file: give the prompts in one way");
    refuse("run -m M -i --predict_data y", NULL, "--predict_data and -i: give the prompts in one way");
    refuse("run -m M --load_checkpoint N", NULL, "-m and --load_checkpoint: give the model once");
    refuse("run -m M --use_parallel False --tp 2", NULL,
           "--tp 2 and --use_parallel False contradict each other");
    refuse("tokenize -m M -p x --ids 1", NULL, "-p and --ids: give the text in one way");
    refuse("tokenize -m M -p x -p y", NULL, "-p: 'yoke tokenize' takes one prompt, not 2");
    refuse("template -m M -p x --messages f", NULL, "-p and --messages: give the messages in one way");
    refuse("run -m M --stop=", NULL, "--stop: an empty stop text would end every answer at once");
    struct trial t;
    /* of unequal rank the higher one wins */
    ACCEPT(&t, "run -p x -m N --greedy",
           "prompts_file: y\nload_checkpoint: M\ngeneration_config: {temperature: 0.7}\n");
    assert_null(t.s.prompts_file);
    assert_int_equal(t.s.prompts.n, 1);
    assert_string_equal(t.s.weights, "N");
    assert_false(t.s.sample.do_sample);
    trial_end(&t);
    ACCEPT(&t, "run --load_checkpoint N --prompts-file f", "model_path: M\nprompt: [a, b]\n");
    assert_string_equal(t.s.weights, "N");
    assert_int_equal(t.s.prompts.n, 0);
    trial_end(&t);
    ACCEPT(&t, "run -m M --tp 2", "use_parallel: False\n");
    assert_int_equal(t.s.tp, 2);
    trial_end(&t);
    ACCEPT(&t, "run -m M --greedy --temperature 0 --top-k 1 --top-p 1", NULL);
    trial_end(&t);
}

static void test_what_is_not_supported(void **state)
{
    (void)state;
    refuse("run -m M --run_mode finetune", NULL,
           "--run_mode: yoke does inference only; run_mode must be predict");
    refuse("run -m M", "run_mode: train\n",
           "FILE:1:11: run_mode: yoke does inference only; run_mode must be predict");
    refuse("run -m M", "parallel_config:\n  context_parallel: 2\n",
           "FILE:2:21: parallel_config.context_parallel: yoke splits by tensor, pipeline, expert and data; a "
           "sequence is not "
           "split over ranks, so context_parallel must be 1");
    refuse("run -m M --adapter_id a b", NULL, "--adapter_id: LoRA adapters are not supported yet");
    refuse("run -m M --modal_type text image", NULL, "--modal_type: only text is supported yet");
    refuse("run -m M", "model: {model_config: {quantization: golden-stick}}\n",
           "FILE:1:38: model.model_config.quantization: checkpoints that were quantised for another device "
           "are not supported yet");
    refuse("run --load_checkpoint a/b.ckpt", NULL,
           "--load_checkpoint: MindSpore's .ckpt files are not read; give a folder of safetensors or a .gguf "
           "file");
    struct trial t;
    ACCEPT(&t, "run -m M --modal_type text",
           "adapter_id: None\npredict_batch_size: null\ninput_data:\nload_checkpoint: ''\n");
    trial_end(&t);
    trial_begin(&t, "run -m M --num_beams 4", NULL);
    assert_int_equal(t.err, 0);
    assert_int_equal(t.s.num_beams, 1);
    assert_string_equal(t.w.text.s, "--num_beams: there is no beam search; num_beams is reset to 1\n");
    trial_end(&t);
}

static void test_quantization_config(void **state)
{
    (void)state;
    static const struct {
        const char *line, *config;
        int quant, kv, warnings;
    } cases[] = {
        {"run -m M", "{quant_method: 'ptq', weight_dtype: 'int8', activation_dtype: 'int8'}", WANT_W8A8,
         CACHE_AUTO, 0},
        {"run -m M", "{quant_method: rtn, weight_dtype: 'int8', activation_dtype: 'None'}", WANT_W8A8,
         CACHE_AUTO, 1},
        {"run -m M", "{weight_dtype: int4, activation_dtype: int8, kvcache_dtype: int8}", WANT_W4, CACHE_INT8,
         0},
        {"run -m M", "{weight_dtype: 'None', kvcache_dtype: 'int8'}", WANT_FULL, CACHE_INT8, 0},
        {"run -m M --quant w4", "{weight_dtype: 'int8', activation_dtype: int8}", WANT_W4, CACHE_AUTO, 0},
        {"run -m M --kv-dtype f32", "{kvcache_dtype: 'int8'}", WANT_FULL, CACHE_F32, 0},
        {"run -m M", "null", WANT_FULL, CACHE_AUTO, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char yaml[256];
        snprintf(yaml, sizeof(yaml), "model:\n  model_config:\n    quantization_config: %s\n",
                 cases[i].config);
        struct trial t;
        trial_begin(&t, cases[i].line, yaml);
        if (t.err)
            fail_msg("%s", t.e.msg);
        assert_int_equal(t.s.quant, cases[i].quant);
        assert_int_equal(t.s.kv_dtype, cases[i].kv);
        assert_int_equal(t.w.n, cases[i].warnings);
        trial_end(&t);
    }
    refuse("run -m M", "model: {model_config: {quantization_config: {quant_method: gptq}}}\n",
           "FILE:1:60: model.model_config.quantization_config.quant_method should be rtn or ptq, but is "
           "\"gptq\"");
    refuse("run -m M", "model: {model_config: {quantization_config: {activation_dtype: int8}}}\n",
           "FILE:1:64: model.model_config.quantization_config.activation_dtype: activations are quantised "
           "only together with "
           "weights; give weight_dtype int8 or int4");
}

static void test_unknown_keys_are_warned_about(void **state)
{
    (void)state;
    struct trial t;
    trial_begin(
        &t, "run -m M",
        "parallel_confg: {model_parallel: 4}\nmodel:\n  model_config:\n    topk: 3\ngeneration:\n  top_k: 3\n"
        "x-mine: 3\nown: &own 4\nthreads: *own\n");
    assert_int_equal(t.err, 0);
    assert_string_equal(
        t.w.text.s, "FILE:1:1: unknown key parallel_confg; did you mean parallel_config?\n"
                    "FILE:4:5: unknown key model.model_config.topk; did you mean model.model_config.top_k?\n"
                    "FILE:5:1: unknown key generation; did you mean generation_config?\n");
    assert_int_equal(t.s.threads, 4);
    trial_end(&t);
    struct buf y = BUF_INIT;
    for (int i = 0; i < 50; i++)
        buf_addf(&y, "zzzzz%d: 1\n", i);
    trial_begin(&t, "run -m M", y.s);
    assert_int_equal(t.w.n, 21);
    assert_non_null(strstr(t.w.text.s, "30 more unknown keys\n"));
    trial_end(&t);
    buf_release(&y);
}

static void test_ignored_keys_are_one_line(void **state)
{
    (void)state;
    struct trial t;
    trial_begin(&t, "run -m M --output_dir o",
                "context: {mode: 0, device_id: 0, max_device_memory: '58GB'}\nrunner_config:\n  epochs: "
                "1\noptimizer:\n  a: {b: c}\n"
                "model: {model_config: {compute_dtype: bfloat16, rotary_dtype: float32}}\noutput_dir: ./o\n");
    assert_int_equal(t.w.n, 1);
    assert_string_equal(
        t.w.text.s,
        "these keys change nothing here: context.*, runner_config.*, optimizer.*, "
        "model.model_config.compute_dtype, model.model_config.rotary_dtype, output_dir ('yoke help "
        "KEY' says why)\n");
    assert_int_equal(t.s.memory, 58ull << 30);
    trial_end(&t);
}

static void use_generation_config(struct trial *t, const char *json)
{
    struct err e;
    json_t *o;
    assert_int_equal(json_parse(json, strlen(json), "g", &o, &e), 0);
    settings_use_generation_config(&t->s, o, "g.json", &t->w.sink);
    json_decref(o);
}

static void test_sampling_is_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *line, *yaml, *json;
        bool sample;
    } cases[] = {{"run -m M", "", "{}", false},
                 {"run -m M --temperature 0.7", "", "{}", true},
                 {"run -m M --temperature 0", "", "{\"do_sample\": true}", false},
                 {"run -m M --top-k 1", "", "{}", false},
                 {"run -m M --min-p 0.1", "", "{}", true},
                 {"run -m M --temperature 0.7", "do_sample: False", "{}", true},
                 {"run -m M", "temperature: 0.7", "{}", false},
                 {"run -m M", "do_sample: False", "{\"do_sample\": true}", false},
                 {"run -m M", "", "{\"do_sample\": true, \"temperature\": 0.6}", true},
                 {"run -m M --greedy", "", "{\"do_sample\": true, \"temperature\": 0.6}", false},
                 {"run -m M --generation_config.temperature 0.7", "", "{}", false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct trial t;
        ACCEPT(&t, cases[i].line, cases[i].yaml);
        use_generation_config(&t, cases[i].json);
        if (t.s.sample.do_sample != cases[i].sample)
            fail_msg("%s | %s | %s", cases[i].line, cases[i].yaml, cases[i].json);
        trial_end(&t);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    static const struct {
        const char *line, *yaml, *json;
        int max_new, max_length, warnings;
    } cases[] = {{"run -m M", "", "{}", 512, 0, 0},
                 {"run -m M", "", "{\"max_length\": 100}", 0, 100, 0},
                 {"run -m M -n 5", "", "{\"max_length\": 100}", 5, 0, 0},
                 {"run -m M --max-length 50", "max_new_tokens: 5", "{}", 0, 50, 0},
                 {"run -m M --max-length 50 -n 5", "", "{}", 5, 0, 1},
                 {"run -m M", "max_new_tokens: 5\nmax_length: 50", "{}", 5, 0, 1},
                 {"run -m M", "", "{\"max_length\": 100, \"max_new_tokens\": 7}", 7, 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct trial t;
        ACCEPT(&t, cases[i].line, cases[i].yaml);
        use_generation_config(&t, cases[i].json);
        assert_int_equal(t.s.sample.max_new_tokens, cases[i].max_new);
        assert_int_equal(t.s.sample.max_length, cases[i].max_length);
        assert_int_equal(t.w.n, cases[i].warnings);
        trial_end(&t);
    }
}

static void test_recommendations_out_of_range_are_left(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t, "run -m M", NULL);
    struct err e;
    json_t *o;
    const char *json = "{\"temperature\": -1, \"top_k\": null, \"top_p\": \"x\", \"eos_token_id\": [1, "
                       "\"y\"], \"num_beams\": 3, "
                       "\"min_p\": 0.25, \"transformers_version\": \"4.5\"}";
    assert_int_equal(json_parse(json, strlen(json), "g", &o, &e), 0);
    settings_use_generation_config(&t.s, o, "g.json", &t.w.sink);
    json_decref(o);
    assert_string_equal(
        t.w.text.s,
        "g.json: temperature should be a number, at least 0 and at most 100, but is \"-1\"; it is not used\n"
        "g.json: top_p should be a number, above 0 and at most 1, but is the string \"x\"; it is not used\n"
        "g.json: eos_token_id should be an integer or a list of integers, at least 0, but is the string "
        "\"y\"; it is not used\n"
        "g.json: num_beams: there is no beam search; num_beams is reset to 1\n");
    assert_true(t.s.sample.temperature == 1);
    assert_int_equal(t.s.sample.top_k, 50);
    assert_int_equal(t.s.sample.eos_token_id.n, 0);
    assert_true(t.s.sample.min_p == 0.25);
    settings_use_generation_config(&t.s, NULL, "g.json", NULL);
    trial_end(&t);
}

static void test_claims_about_the_model(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t, "run -m M",
           "model:\n  model_config:\n    num_layers: 28\n    hidden_size: 4096\n    theta: 1.0e+6\n    "
           "n_kv_heads: 4\n"
           "    tie_word_embeddings: False\nmoe_config:\n  expert_num: 64\n");
    assert_int_equal(t.s.n_claims, 6);
    struct err e;
    json_t *o;
    const char *json = "{\"num_hidden_layers\": 36, \"hidden_size\": 4096, \"rope_theta\": 1000000, "
                       "\"num_key_value_heads\": 4, "
                       "\"tie_word_embeddings\": true, \"n_routed_experts\": 64}";
    assert_int_equal(json_parse(json, strlen(json), "c", &o, &e), 0);
    settings_check_model(&t.s, o, &t.w.sink);
    json_decref(o);
    assert_int_equal(t.w.n, 2);
    const char *first = strstr(t.w.text.s, ":3:17: ");
    assert_non_null(first);
    assert_int_equal(
        strncmp(first,
                ":3:17: model.model_config.num_layers is 28, but the checkpoint's config.json says "
                "num_hidden_layers: 36; the checkpoint counts\n",
                70),
        0);
    assert_non_null(strstr(
        t.w.text.s,
        "tie_word_embeddings is False, but the checkpoint's config.json says tie_word_embeddings: true"));
    trial_end(&t);
}

/* Files as users of MindFormers have them. */
static void test_whole_files(void **state)
{
    (void)state;
    struct trial t;
    trial_begin(&t, "run --config " SOURCE_DIR "/tests/golden/yaml/legacy_full.yaml", NULL);
    if (t.err)
        fail_msg("%s", t.e.msg);
    assert_int_equal(t.w.n, 1); /* the ignored keys, nothing unknown */
    assert_null(strstr(t.w.text.s, "unknown"));
    assert_string_equal(t.s.weights, "/models/qwen2_5_72b");
    assert_int_equal(t.s.tp, 4);
    assert_int_equal(t.s.max_batch, 4);
    assert_int_equal(t.s.seq_length, 32768);
    assert_int_equal(t.s.block_size, 32);
    assert_int_equal(t.s.num_blocks, 2048);
    assert_int_equal(t.s.memory, 58ull << 30);
    assert_int_equal(t.s.sample.max_length, 512);
    assert_true(t.s.sample.do_sample);
    assert_true(t.s.sample.temperature == 0.7 && t.s.sample.top_p == 0.8 &&
                t.s.sample.repetition_penalty == 1.05);
    assert_int_equal(t.s.sample.top_k, 20);
    assert_int_equal(t.s.sample.eos_token_id.n, 2);
    assert_int_equal(t.s.n_claims, 9);
    trial_end(&t);

    trial_begin(&t, "plan --config " SOURCE_DIR "/tests/golden/yaml/mcore.yaml --json", NULL);
    if (t.err)
        fail_msg("%s", t.e.msg);
    assert_int_equal(t.w.n, 2);
    assert_non_null(
        strstr(t.w.text.s, "mcore.yaml:51:3: unknown key model.generation; did you mean generation_config?"));
    assert_string_equal(t.s.tokenizer, "/models/Qwen3-30B-A3B");
    assert_int_equal(t.s.tp, 4);
    assert_int_equal(t.s.dp, 2);
    assert_int_equal(t.s.ep, 8);
    assert_int_equal(t.s.quant, WANT_W8A8);
    assert_int_equal(t.s.format, FORMAT_JSON);
    trial_end(&t);

    ACCEPT(&t, "run --config " SOURCE_DIR "/tests/golden/yaml/anchors.yaml", NULL);
    assert_int_equal(t.s.tp, 2);
    assert_int_equal(t.s.pp, 2);
    assert_int_equal(t.s.micro_batches, 2);
    assert_string_equal(t.s.weights, "/models/a");
    assert_string_equal(t.s.tokenizer, "/models/a");
    trial_end(&t);

    static const char *const ready[] = {"predict_qwen3_8b", "predict_qwen2_5_7b", "predict_llama3_1_8b",
                                        "predict_deepseek_v2_lite_ep4", "predict_smollm2_135m"};
    for (size_t i = 0; i < ARRAY_LEN(ready); i++) {
        char line[512];
        snprintf(line, sizeof(line), "run --config " SOURCE_DIR "/configs/%s.yaml -m M -p x", ready[i]);
        trial_begin(&t, line, NULL);
        if (t.err || t.w.n > 1 || strstr(t.w.text.s, "unknown"))
            fail_msg("%s: %s%s", ready[i], t.e.msg, t.w.text.s);
        trial_end(&t);
    }
}

static void test_help_stops_everything(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t, "run --help --nonsense", NULL);
    assert_true(t.s.help);
    trial_end(&t);
    ACCEPT(&t, "tokenize -h", NULL);
    assert_int_equal(t.s.command, CMD_TOKENIZE);
    trial_end(&t);
}

static void test_other_commands(void **state)
{
    (void)state;
    struct trial t;
    ACCEPT(&t, "tokenize -m M --ids '[1, 2,3]' --format ids", NULL);
    assert_int_equal(t.s.ids.n, 3);
    assert_int_equal(t.s.format, FORMAT_IDS);
    trial_end(&t);
    ACCEPT(&t, "tokenize -m M --no-special --parse-special -f x", NULL);
    assert_false(t.s.add_special);
    assert_true(t.s.parse_special);
    assert_string_equal(t.s.file, "x");
    trial_end(&t);
    ACCEPT(&t, "template --template t.jinja --messages - --no-generation-prompt --var a=1 --var b=2", NULL);
    assert_false(t.s.generation_prompt);
    assert_int_equal(t.s.vars.n, 2);
    assert_null(t.s.weights);
    trial_end(&t);
    ACCEPT(&t, "logits -m M --ids 1 --all --json", NULL);
    assert_true(t.s.all_positions);
    trial_end(&t);
    refuse("logits -m M --ids 1 --format ids", NULL,
           "--format: ids is a format of 'yoke tokenize'; here it is text or json");
    /* one YAML file serves all commands */
    ACCEPT(&t, "tokenize -m M -p x", "parallel_config: {model_parallel: 2}\ngeneration_config: {top_k: 3}\n");
    assert_int_equal(t.s.tp, 1);
    trial_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mindformers_command_line),
        cmocka_unit_test(test_predict_data_that_is_a_file),
        cmocka_unit_test(test_precedence_matrix),
        cmocka_unit_test(test_keys_of_one_setting),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_errors_say_where_what_and_what_is_legal),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_what_is_not_supported),
        cmocka_unit_test(test_quantization_config),
        cmocka_unit_test(test_unknown_keys_are_warned_about),
        cmocka_unit_test(test_ignored_keys_are_one_line),
        cmocka_unit_test(test_sampling_is_asked_for),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_recommendations_out_of_range_are_left),
        cmocka_unit_test(test_claims_about_the_model),
        cmocka_unit_test(test_whole_files),
        cmocka_unit_test(test_help_stops_everything),
        cmocka_unit_test(test_other_commands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
