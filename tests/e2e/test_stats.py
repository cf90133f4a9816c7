"""--stats and --stats-json: everything is there, and the figures fit what was done."""
from harness import *


class Stats(Case):
    def run_with(self, *args):
        path = self.tmp / "stats.json"
        r = self.run_ok("run", "-m", LLAMA, "--greedy", "--ignore-eos", "--stats-json", path, *args)
        return json.loads(path.read_text()), r

    def test_text(self):
        for tp in (1, 2):
            r = self.run_ok("run", "-m", LLAMA, "-p", "The cat", "-n", 20, "--greedy", "--ignore-eos", "--stats", "--tp", tp)
            for word in ("load", "TTFT", "TPOT", "prefill", "decode", "tokens/s", "weights", "KV", "work", "MiB",
                         f"{tp} rank", "thread", "pages"):
                self.assertIn(word, r.err)
            self.assertEqual(r.err.count("\nrank "), tp)
            for word in ("collectives", "allreduce", "% of the run"):
                (self.assertIn if tp > 1 else self.assertNotIn)(word, r.err)
            plain = self.run_ok("run", "-m", LLAMA, "-p", "The cat", "-n", 20, "--greedy", "--ignore-eos")
            self.assertEqual(r.out, plain.out)

    def test_counts(self):
        s, _ = self.run_with("-p", "The cat", "-p", "One, two", "-n", 20)
        self.assertEqual((s["requests"], s["output_tokens"]), (2, 40))
        self.assertEqual(s["prompt_tokens"], s["prefill_tokens"])
        self.assertEqual(s["prefill_tokens"] + s["decode_tokens"], s["prompt_tokens"] + s["output_tokens"] - 2)
        self.assertGreater(s["ttft_mean_s"], 0)
        self.assertGreater(s["tpot_mean_s"], 0)
        self.assertGreaterEqual(s["wall_s"], s["prefill_s"] + s["decode_s"])
        self.assertGreaterEqual(s["wall_s"], s["ttft_mean_s"])

    def test_ranks(self):
        whole = json.loads(self.run_ok("plan", "-m", LLAMA, "--json").out)["ranks"][0]
        for tp in (1, 2, 4):
            s, _ = self.run_with("-p", "The cat", "-n", 10, "--tp", tp, "--num-blocks", 8, "--block-size", 16)
            plan = json.loads(self.run_ok("plan", "-m", LLAMA, "--json", "--tp", tp).out)
            self.assertEqual(len(s["ranks"]), tp)
            for a, b in zip(s["ranks"], plan["ranks"]):
                self.assertEqual(a["weight_bytes"], b["weight_bytes"])
                self.assertEqual(a["kv_bytes"], 8 * 16 * b["kv_bytes_per_token"])
                self.assertGreater(a["work_bytes"], 0)
                self.assertGreaterEqual(a["load_s"], 0)
                self.assertTrue(a["step_seconds"])
                if tp > 1:
                    self.assertLess(a["weight_bytes"], whole["weight_bytes"])
                    # 2 a layer and one for the embedding, on each of 10 ticks
                    self.assertEqual(a["collectives"]["allreduce"]["calls"], 10 * 5)
                    self.assertGreater(a["collectives"]["allreduce"]["bytes"], 0)
                    self.assertGreater(a["collectives"]["allreduce"]["seconds"], 0)

    def test_recompute_counts_what_it_makes(self):
        """tokens/s stay comparable: tokens of the answer, not those computed again for each."""
        s, _ = self.run_with("-p", "The cat", "-n", 10, "--use-past", "False")
        self.assertEqual(s["decode_tokens"], 9)

    def test_conversation(self):
        r = self.run_ok("run", "-m", LLAMA, "-i", "-n", 5, "--greedy", "--stats", stdin="one\ntwo\n")
        self.assertRegex(r.err, r"requests +2,")


if __name__ == "__main__":
    main()
