"""yoke shard, and runs from what it wrote: the same text, and clear words for all that does not fit."""
from harness import *
import synthetic

GREEDY = ("--greedy", "--repetition-penalty", "1")
Q4 = GGUF / "llama-q4_0.gguf"


class Shard(Case):
    def shard(self, model, *args, name="set"):
        out = self.tmp / name
        r = self.run_ok("shard", "-m", model, "-o", out, *args)
        self.assertEqual(r.err, "")
        self.assertRegex(r.out, rf"^{out}: \d+ ranks?, .* GiB, at most .* GiB a rank, in .* s\n")
        return out

    def test_same_text(self):
        """A set is a model by itself: configuration and tokenizer included, the split its own."""
        for model in (LLAMA, QWEN):
            c = ORACLE[model.name]["plain"][1]
            for args in ((), ("--tp", 2), ("--tp", 4), ("--tp", 2, "--pp", 2)):
                with self.subTest(model=model.name, args=args):
                    out = self.shard(model, *args, name=f"{model.name}-{len(args)}-{args[1] if args else 1}")
                    for run in ((), args, ("--dp", 2, *args)):
                        r = self.run_ok("run", "-m", out, "-p", c["prompt"], "-n", c["n"], *GREEDY, *run)
                        self.assertEqual(r.out, c["text"] + "\n")

    def test_spread_experts(self):
        """A rank's file for each rank of all replicas; what else is asked for does not fit, or is cut anew."""
        model = synthetic.qwen3(self.tmp / "moe", experts=8, num_experts_per_tok=3, num_hidden_layers=2, hidden_size=64,
                                head_dim=16, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=64)
        logits = ("--ids", "1,2,3,4", "--all", "--json")
        for quant in ("none", "w8a8"):
            want = self.run_ok("logits", "-m", model, *logits, "--quant", quant).out
            out = self.shard(model, "--dp", 4, "--ep", 2, "--quant", quant, name=quant)
            self.assertEqual(len(list(out.glob("rank_*_of_0004.yoke"))), 4)
            for split in ((), ("--dp", 4), ("--dp", 4, "--ep", 2)):
                self.assertEqual(self.run_ok("logits", "-m", out, *logits, *split).out, want)
            for split in (("--dp", 4, "--ep", 4), ("--dp", 2, "--tp", 2, "--ep", 4), ("--dp", 1, "--ep", 1)):
                self.run_fails(SPLIT, "was written for --dp 4 --tp 1 --pp 1 --ep 2", args=("logits", "-m", out, *logits, *split))
                self.assertEqual(self.run_ok("logits", "-m", out, *logits, *split, "--auto-trans-ckpt", "True").out, want)

    def test_gguf(self):
        """The tokenizer comes from tokenizer.gguf, which is the metadata alone."""
        args = ("-p", "Hello, world!", "-n", 12, *GREEDY)
        want = self.run_ok("run", "-m", Q4, *args).out
        out = self.shard(Q4, "--tp", 2)
        self.assertEqual(self.run_ok("run", "-m", out, *args).out, want)
        self.assertEqual(self.run_ok("tokenize", "-m", out, "-p", "Hello").out,
                         self.run_ok("tokenize", "-m", Q4, "-p", "Hello").out)
        self.assertTrue((out / "tokenizer.gguf").exists())
        self.assertFalse((out / "tokenizer.json").exists())

    def test_cut_anew(self):
        model = MODELS / "llama-h8d32"
        logits = ("--ids", "1,2,3,4", "--all", "--json")
        for quant in ("none", "w8a8", "w4"):
            want = self.run_ok("logits", "-m", model, *logits, "--quant", quant).out
            out = self.shard(model, "--tp", 4, "--quant", quant, name=quant)
            self.assertEqual(self.run_ok("logits", "-m", out, *logits).out, want)
            for tp in (1, 2, 8):
                self.assertEqual(self.run_ok("logits", "-m", out, *logits, "--tp", tp, "--auto-trans-ckpt", "True").out, want)
            again = self.shard(out, "--tp", 2, name=quant + "-again")
            self.assertEqual(self.run_ok("logits", "-m", again, *logits, "--verify").out, want)

    def test_mismatch(self):
        out = self.shard(MODELS / "llama-h8d32", "--tp", 2, "--quant", "w8a8")
        run = ("logits", "--ids", "1", "-m", out)
        self.run_fails(SPLIT, "was written for", "--tp 2", "asked for is", "--tp 4", "--auto-trans-ckpt", args=(*run, "--tp", 4))
        self.run_fails(SPLIT, "--pp 1", "--pp 2", args=(*run, "--pp", 2))
        self.run_fails(SPLIT, "--tp 2", "--tp 1", args=(*run, "--use-parallel", "False"))
        self.run_fails(SPLIT, "--tp 2", "--tp 4", args=("plan", "-m", out, "--tp", 4))
        self.run_fails(USAGE, "was written with --quant w8a8", "asks for w4", args=(*run, "--quant", "w4"))
        self.run_fails(USAGE, "asks for none", args=(*run, "--quant", "none", "--auto-trans-ckpt", "True"))
        self.assertIn("tensor parallelism 2", self.run_ok("plan", "-m", out).out)
        manifest = (out / "manifest.json").read_text()
        (out / "manifest.json").write_text(manifest.replace('"packing": 1', '"packing": 7'))
        self.run_fails(UNREADABLE, "packed in layout 7", "read layout 1", "write the set again", args=run)

    def test_source(self):
        model = self.copy_model(MODELS / "llama-h8d32")
        out = self.shard(model, "--tp", 2)
        run = ("logits", "--ids", "1", "-m", out)
        self.run_ok(*run)
        weights = model / "model.safetensors"
        os.utime(weights, (1, 1))
        self.run_ok(*run)
        head, data = read_safetensors(weights)
        write_safetensors(weights, head, {k: bytes(len(v)) for k, v in data.items()})
        self.run_fails(UNREADABLE, "is another one now", str(model), "write the set again", args=run)
        manifest = json.loads((out / "manifest.json").read_text())
        del manifest["source"]
        (out / "manifest.json").write_text(json.dumps(manifest))
        self.run_ok(*run)

    def test_source_away(self):
        model = self.copy_model(MODELS / "llama-h8d32")
        out = self.shard(model, "--tp", 2, "--verify")
        shutil.rmtree(model)
        self.run_ok("logits", "--ids", "1", "-m", out)
        self.assertIn("is not there now", self.run_ok("shard", "-m", out, "--verify").out)

    def test_verify(self):
        out = self.shard(LLAMA, "--tp", 2, "--verify")
        self.assertIn("is unchanged", self.run_ok("shard", "-m", out, "--verify").out)
        rank = out / "rank_0001_of_0002.yoke"
        data = bytearray(rank.read_bytes())
        data[-2000] ^= 1
        rank.write_bytes(data)
        self.run_ok("run", "-m", out, "-p", "x", "-n", 2)  # not looked at
        self.run_fails(UNREADABLE, rank.name, "are not what was written", args=("shard", "-m", out, "--verify"))
        self.run_fails(UNREADABLE, rank.name, args=("run", "-m", out, "-p", "x", "--verify"))
        rank.write_bytes(data[:-1])
        self.run_fails(UNREADABLE, rank.name, "cut short", args=("run", "-m", out, "-p", "x"))
        self.run_fails(USAGE, "was not written by yoke shard", args=("shard", "-m", LLAMA, "--verify"))
        self.run_fails(USAGE, "-o", "--verify", args=("shard", "-m", LLAMA))

    def test_folder(self):
        self.run_fails(USAGE, "is the model itself", args=("shard", "-m", LLAMA, "-o", LLAMA))
        self.write("mine/diary.txt", "dear")
        self.run_fails(USAGE, "it holds diary.txt", args=("shard", "-m", LLAMA, "-o", self.tmp / "mine"))
        self.run_fails(SPLIT, "legal degrees", args=("shard", "-m", LLAMA, "-o", self.tmp / "new", "--tp", 5))
        self.assertFalse((self.tmp / "new").exists())
        out = self.shard(LLAMA, "--tp", 4)
        self.shard(LLAMA, "--tp", 2)
        self.assertEqual(sorted(x.name for x in out.glob("*.yoke")), ["rank_0000_of_0002.yoke", "rank_0001_of_0002.yoke"])
        (out / "manifest.json").unlink()
        self.run_fails(UNREADABLE, "was not finished or has lost its manifest.json", args=("run", "-m", out, "-p", "x"))

    def test_file_too_large(self):
        """As on a full disk: an error with a name, and nothing is left."""
        limited = ("sh", "-c", 'ulimit -f 8; exec "$@"', "sh")
        self.run_fails(UNREADABLE, "the file gets too large", "nothing of it is kept", launcher=limited,
                       args=("shard", "-m", LLAMA, "-o", self.tmp / "new"))
        self.assertFalse((self.tmp / "new").exists())

    def test_two_at_once(self):
        out = self.shard(LLAMA, "--tp", 2)
        c = ORACLE[LLAMA.name]["plain"][1]
        runs = [start("run", "-m", out, "-p", c["prompt"], "-n", c["n"], *GREEDY) for _ in range(3)]
        for p in runs:
            self.assertEqual(p.communicate(timeout=TIMEOUT)[0].decode(), c["text"] + "\n")


if __name__ == "__main__":
    main()
