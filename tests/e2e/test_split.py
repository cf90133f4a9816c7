"""Tensor parallelism on ranks in one process: the same text at every degree, clear words where it cannot be."""
from harness import *

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
