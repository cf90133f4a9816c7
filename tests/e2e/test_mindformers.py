"""MindFormers' command line and both styles of its YAML files, used as their users use them."""
from harness import *

LEGACY = """\
seed: 0
output_dir: './output'
load_checkpoint: ''
load_ckpt_format: "safetensors"
src_strategy_path_or_dir: ''
auto_trans_ckpt: True
only_save_strategy: False
use_parallel: False
run_mode: 'predict'

trainer:
  type: CausalLanguageModelingTrainer
  model_name: 'qwen2_5_7b'

# training
runner_config:
  epochs: 1
  batch_size: 1
  sink_mode: True
optimizer:
  type: FP32StateAdamWeightDecay
  learning_rate: 1.e-6
lr_schedule:
  type: CosineWithWarmUpLR
callbacks:
  - type: MFLossMonitor

parallel_config:
  data_parallel: 1
  model_parallel: 1
  pipeline_stage: 1
  micro_batch_num: 1
  vocab_emb_dp: False
  gradient_aggregation_group: 4

context:
  mode: 0
  device_target: "Ascend"
  max_device_memory: "1GB"

model:
  model_config:
    type: LlamaConfig
    batch_size: 2
    seq_length: 256
    hidden_size: 64
    num_layers: {layers}
    num_heads: 4
    n_kv_heads: 2
    vocab_size: 320
    rms_norm_eps: 1.0e-6
    compute_dtype: "bfloat16"
    use_past: True
    block_size: 16
    num_blocks: 64
    do_sample: False
    repetition_penalty: 1
    max_decode_length: 256
    max_new_tokens: 24
  arch:
    type: LlamaForCausalLM
processor:
  return_tensors: ms
  tokenizer:
    type: Qwen2Tokenizer
    vocab_file: './vocab.json'
"""

MCORE = """\
seed: 0
run_mode: 'predict'
use_legacy: False
load_checkpoint: ''
pretrained_model_dir: '{model}'
use_parallel: True
parallel_config:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
context:
  mode: 0
  jit_config:
    jit_level: "O0"
model:
  model_config:
    compute_dtype: "bfloat16"
    params_dtype: "bfloat16"
    block_size: 32
generation_config:
  do_sample: False
  repetition_penalty: 1.0
  max_new_tokens: 24
"""


class MindFormers(Case):
    def setUp(self):
        super().setUp()
        self.cases = ORACLE["qwen2-tied"]["plain"]
        self.prompts = [c["prompt"] for c in self.cases]
        self.texts = [c["text"] for c in self.cases]
        self.legacy = self.write("predict_qwen2_5.yaml", LEGACY.replace("{layers}", "2"))
        self.mcore = self.write("predict_mcore.yaml", MCORE.replace("{model}", str(QWEN)))

    def good(self, *args, **kw):
        r = yoke("run", *args, **kw)
        self.assertEqual(r.code, OK, r)
        return r

    def test_the_command_of_the_issue(self):
        r = self.good("--config", self.legacy, "--run_mode", "predict", "--use_parallel", "True", "--auto_trans_ckpt",
                      "True", "--load_checkpoint", QWEN, "--predict_data", self.prompts[0], "--predict_batch_size", 4)
        self.assertEqual(r.out, self.texts[0] + "\n")

    def test_several_prompts(self):
        for extra in ((), ("--use_parallel", "True", "--parallel_config.model_parallel", 2)):
            r = self.good("--config", self.legacy, "--load_checkpoint", QWEN, "--predict_batch_size", 4, *extra,
                          "--predict_data", *self.prompts)
            self.assertEqual([x["text"] for x in r.lines()], self.texts)

    def test_newer_style(self):
        r = self.good("--config", self.mcore, "--predict_data", *self.prompts)
        self.assertEqual([x["text"] for x in r.lines()], self.texts)
        self.assertRegex(r.err, r"\Ayoke: warning: these keys change nothing here: use_legacy, [^\n]*\n\Z")

    def test_split_as_asked(self):
        """tensor_model_parallel_size 2 of the file is two ranks; use_parallel False makes them one."""
        for args, ranks in ((("--config", self.mcore), 2), (("--config", self.mcore, "--use_parallel", "False"), 1),
                            (("--config", self.legacy, "--load_checkpoint", QWEN), 1),
                            (("--config", self.legacy, "--load_checkpoint", QWEN, "--use_parallel", "True",
                              "--parallel_config.model_parallel", 4), 4)):
            stats = self.tmp / "s.json"
            r = self.good(*args, "--stats-json", stats, "--predict_data", self.prompts[0])
            self.assertEqual(r.out, self.texts[0] + "\n")
            self.assertEqual(len(json.loads(stats.read_text())["ranks"]), ranks, args)

    def test_predict_data_file(self):
        """A file of prompts, a line each; \\n in a line is a new line."""
        file = self.write("prompts.txt", "\n".join(self.prompts) + "\nTwo\\nlines\n")
        r = self.good("--config", self.mcore, "--predict_data", file)
        got = r.lines()
        self.assertEqual([x["text"] for x in got[:-1]], self.texts)
        two = self.good("--config", self.mcore, "-p", "Two\nlines")
        self.assertEqual(got[-1]["text"] + "\n", two.out)

    def test_save_file(self):
        out = self.tmp / "results.jsonl"
        self.good("--config", self.mcore, "--save_file", out, "--predict_data", *self.prompts[:2])
        self.assertEqual([json.loads(x)["text"] for x in out.read_text().splitlines()], self.texts[:2])

    def test_nested_overrides(self):
        r = self.good("--config", self.mcore, "--generation_config.max_new_tokens", 3, "--predict_data", self.prompts[0],
                      "--save_file", self.tmp / "o")
        self.assertEqual(json.loads((self.tmp / "o").read_text())["completion_tokens"], 3)
        r = self.good("--config", self.mcore, "--options", "generation_config.max_new_tokens=4",
                      "parallel_config.tensor_model_parallel_size=1", "--save_file", self.tmp / "o", "--predict_data",
                      self.prompts[0])
        self.assertEqual(json.loads((self.tmp / "o").read_text())["completion_tokens"], 4)

    def test_training_keys_are_ignored_once(self):
        r = self.good("--config", self.legacy, "--load_checkpoint", QWEN, "--predict_data", *self.prompts[:2])
        about = [x for x in r.err.splitlines() if "these keys change nothing here" in x]
        self.assertEqual(len(about), 1, r)
        for key in ("runner_config.*", "optimizer.*", "lr_schedule.*", "callbacks.*", "context.*",
                    "parallel_config.gradient_aggregation_group"):
            self.assertEqual(r.err.count(key), 1, (key, r.err))
        self.assertNotIn("unknown", r.err)

    def test_unknown_key(self):
        """Line, column, the nearest name; and it goes on."""
        text = MCORE.replace("{model}", str(QWEN)).replace("  max_new_tokens: 24", "  max_new_token: 24\n  max_length: 40")
        path = self.write("typo.yaml", text)
        line = 1 + text[:text.index("max_new_token:")].count("\n")
        r = self.good("--config", path, "--predict_data", self.prompts[0])
        warning = [x for x in r.err.splitlines() if "max_new_token" in x]
        self.assertEqual(len(warning), 1, r)
        self.assertIn(f"typo.yaml:{line}:3", warning[0])
        self.assertIn("max_new_tokens", warning[0].replace("max_new_token\"", ""))

    def test_another_model_than_the_yaml_says(self):
        """The checkpoint is what runs; the file's other number of layers is said."""
        path = self.write("other.yaml", LEGACY.replace("{layers}", "28"))
        r = self.good("--config", path, "--load_checkpoint", QWEN, "--predict_data", self.prompts[0])
        self.assertEqual(r.out, self.texts[0] + "\n")
        self.assertRegex(r.err, r"other\.yaml:\d+:\d+.*num_layers.*28")

    def test_weights_and_the_rest_in_two_folders(self):
        weights, rest = self.tmp / "weights", self.copy_model(QWEN, "rest", without=("*.safetensors",))
        weights.mkdir()
        shutil.copy(QWEN / "model.safetensors", weights)
        for args in (("--load_checkpoint", weights, "--pretrained_model_dir", rest),
                     ("--load_checkpoint", weights / "model.safetensors", "--pretrained_model_dir", rest)):
            r = self.good("--config", self.mcore, *args, "--predict_data", *self.prompts)
            self.assertEqual([x["text"] for x in r.lines()], self.texts, args)

    def test_chat(self):
        c = vectors(QWEN)["chat"][0]
        r = self.good("--config", self.mcore, "--chat", "--predict_data", c["messages"][0]["content"])
        self.assertEqual(r.out, c["greedy_text"] + "\n")

    def test_no_training(self):
        for mode in ("train", "finetune", "eval"):
            self.run_fails(USAGE, "run_mode", "must be predict", args=("run", "--config", self.mcore, "--run_mode", mode, "-p", "x"))

    def test_shipped_configs(self):
        """configs/*.yaml work with a model of that kind, given the folder. What they say of its shape is another's."""
        for name in ("predict_qwen2_5_7b.yaml", "predict_qwen3_8b.yaml", "predict_llama3_1_8b.yaml"):
            r = self.good("--config", ROOT / "configs" / name, "--load_checkpoint", QWEN, "--predict_data", "Hello",
                          "--max_new_tokens", 4, "--memory", "1GB", "--eos_token_id", 316)
            self.assertTrue(r.out.strip(), r)
            self.assertNotIn("unknown", r.err, name)


if __name__ == "__main__":
    main()
