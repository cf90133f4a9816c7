"""Tensor parallelism on ranks in one process: the same text at every degree, clear words where it cannot be."""
from harness import *
import synthetic

GREEDY = ("--greedy", "--repetition-penalty", "1")


class Split(Case):
    def test_same_text(self):
        for model in (LLAMA, QWEN):
            c = ORACLE[model.name]["plain"][1]
            for tp in (1, 2, 3, 4):
                with self.subTest(model=model.name, tp=tp):
                    r = self.run_ok("run", "-m", model, "-p", c["prompt"], "-n", c["n"], "--tp", tp, *GREEDY)
                    self.assertEqual(r.out, c["text"] + "\n")
                    self.assertEqual(r.err, "")

    def test_same_text_of_integer_weights(self):
        for name in ("llama-q4_0", "llama-q8_0", "llama-q4_k_m", "llama-q6_k", "qwen2-mixed"):
            args = ("run", "-m", GGUF / f"{name}.gguf", "-p", "Hello, world!", "-n", 12, *GREEDY)
            one = self.run_ok(*args).out
            for tp in (2, 4):
                r = yoke(*args, "--tp", tp)
                if r.code == SPLIT:
                    self.assertIn("legal", r.err)
                    continue
                self.assertEqual((r.code, r.out), (OK, one), f"{name} at tp {tp}")

    def test_eight_ranks(self):
        """8 heads on 8 ranks; the model has no tokenizer, so by its logits."""
        for model in (MODELS / "llama-h8kv8", MODELS / "llama-h8d32"):
            args = ("logits", "-m", model, "--ids", "1,2,3,4,5", "--all", "--json")
            one = self.run_ok(*args).out
            for tp in (2, 4, 8):
                self.assertEqual(self.run_ok(*args, "--tp", tp).out, one, f"tp {tp}")

    def test_quantised_while_loading(self):
        for quant in ("w8a8", "w4"):
            args = ("logits", "-m", MODELS / "llama-h8d32", "--ids", "1,2,3", "--json", "--quant", quant)
            one = self.run_ok(*args).out
            for tp in (2, 4, 8):
                self.assertEqual(self.run_ok(*args, "--tp", tp).out, one, f"{quant} tp {tp}")

    def test_pipeline_and_replicas(self):
        """Stages and replicas change nothing, alone, together, and with tensor parallelism."""
        for model in (LLAMA, QWEN):
            cases = ORACLE[model.name]["plain"]
            prompts = [x for c in cases for x in ("-p", c["prompt"])]
            for args in (("--pp", 2), ("--dp", 2), ("--pp", 2, "--tp", 2), ("--pp", 2, "--dp", 2), ("--dp", 3, "--tp", 2)):
                with self.subTest(model=model.name, args=args):
                    r = self.run_ok("run", "-m", model, "-n", 24, *GREEDY, *args, *prompts)
                    self.assertEqual([x["text"] for x in r.lines()], [c["text"] for c in cases])
                    r = self.run_ok("run", "-m", model, "-n", 24, *GREEDY, *args, *prompts[:2])
                    self.assertEqual(r.out, cases[0]["text"] + "\n")

    def moe(self, experts=8):
        return synthetic.qwen3(self.tmp / "moe", experts=experts, num_experts_per_tok=3, num_hidden_layers=2, hidden_size=64,
                               head_dim=16, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=64)

    def test_spread_experts(self):
        """Experts over all replicas, whole and in slices: one rank's text, with more prompts than replicas and with fewer."""
        model = self.moe()
        args = ("run", "-m", model, "-n", 12, "--ignore-eos", *GREEDY)
        prompts = [x for p in ("The cat sat", "One", "Two three four", "Five", "Six seven") for x in ("-p", p)]
        many, few = self.run_ok(*args, *prompts).out, self.run_ok(*args, *prompts[:4]).out
        for split in (("--dp", 4, "--ep", 4), ("--dp", 4, "--ep", 2), ("--dp", 4, "--tp", 2, "--ep", 4), ("--dp", 8, "--ep", 2),
                      ("--dp", 2, "--pp", 2, "--ep", 2), ("--dp", 4, "--pp", 2, "--ep", 2)):
            with self.subTest(split):
                self.assertEqual(self.run_ok(*args, *split, *prompts).out, many)
                self.assertEqual(self.run_ok(*args, *split, *prompts[:4]).out, few)

    def test_plan_of_spread_experts(self):
        model = self.moe()
        for split, words in ((("--dp", 4, "--ep", 2), "in 2 groups of 2 ranks, over all 4 replicas"),
                             (("--dp", 2, "--tp", 4, "--ep", 2), "in 2 groups of 4 ranks, over all 2 replicas"),
                             (("--dp", 2, "--tp", 4), "in 1 group of 4 ranks, within each replica"),
                             (("--tp", 4, "--ep", 4), "in 4 groups of 1 rank, all in one replica")):
            self.assertIn("experts: " + words, self.run_ok("plan", "-m", model, *split).out)
        out = self.run_ok("plan", "-m", model, "--dp", 6, "--ep", 2).out
        self.assertIn("bits: not those of one rank: experts are sliced over 3 ranks", out)
        self.assertRegex(out, r"experts\.\*\.down_proj.weight +bf16 +split\(expert\) +\[4 of 8 experts, 64 of 64, 21 of 64\]")
        self.assertRegex(out, r"> expert_exchange +2\.2 KiB a token")  # 3 experts, 3 ranks each, 64 floats

    def test_impossible_experts(self):
        """Whoever asks for it, the answer lists what this model can have on so many ranks."""
        model = self.moe()
        for split, legal in ((("--dp", 3, "--ep", 2), "1, 3"), (("--tp", 4, "--ep", 3), "1, 2, 4"),
                             (("--dp", 4, "--tp", 4, "--ep", 16), "1, 2, 4, 8"), (("--ep", 2), "1"),
                             (("--dp", 4, "--tp", 2, "--ep", 5), "1, 2, 4, 8")):
            for command in (("run", "-p", "x"), ("logits", "--ids", "1"), ("plan",), ("shard", "-o", self.tmp / "set")):
                r = self.run_fails(SPLIT, "expert parallelism of", "8 experts of 64", args=(command[0], "-m", model, *command[1:], *split))
                self.assertTrue(r.err.strip().endswith(f"legal degrees for them: {legal}"), r)
        self.run_fails(SPLIT, "legal degrees for them: 1, 2, 4, 8", args=("plan", "--auto", "-m", model, "--ep", 3, "--tp", 8))
        self.run_fails(SPLIT, "legal degrees for them", args=("plan", "--auto", "-m", model, "--ep", 16))
        self.run_fails(SPLIT, "no experts; only 1 is legal", args=("plan", "--auto", "-m", ROOT / "tests" / "golden" / "shapes" / "qwen2-72b", "--ep", 2))

    def test_impossible(self):
        for command in (("run", "-p", "x"), ("logits", "--ids", "1"), ("plan",)):
            self.run_fails(SPLIT, "parallelism of 5", "legal degrees", "1, 2, 3, 4",
                           args=(command[0], "-m", LLAMA, *command[1:], "--tp", 5))

    def test_more_threads_than_cores(self):
        c = ORACLE["llama-gqa"]["plain"][1]
        r = self.run_ok("run", "-m", LLAMA, "-p", c["prompt"], "-n", c["n"], "--tp", 4, "-t", 3, *GREEDY)
        self.assertEqual(r.out, c["text"] + "\n")


if __name__ == "__main__":
    main()
