"""yoke plan, logits, tokenize, template: what they print is true, and a machine can read it."""
from harness import *


class Plan(Case):
    MODELS = [LLAMA, QWEN, MODELS / "llama-h9kv3", MODELS / "llama-odd", GGUF / "llama-q4_k_m.gguf"]

    def plan(self, model, *args):
        return json.loads(self.run_ok("plan", "-m", model, "--json", *args).out)

    def weights_on_disk(self, model):
        head, data = read_safetensors(model / "model.safetensors")
        return {k: (v["shape"], len(data[k])) for k, v in head.items()}

    def covers(self, spans, n, name):
        """Ranges that begin at 0, leave no gap and end at n; equal ones are KV heads that ranks share."""
        at = 0
        for begin, end in sorted(spans):
            self.assertLessEqual(begin, at, name)
            at = max(at, end)
        self.assertEqual(at, n, name)

    def test_sums(self):
        """Per rank, the tensors' bytes add up to weight_bytes; ranks' parts of each tensor cover it; KV adds up."""
        for model in self.MODELS:
            whole = {t["name"]: t for x in self.plan(model)["ranks"][0]["layers"] for t in x["tensors"]}
            for tp in (1, 2, 3, 4):
                with self.subTest(model=model.name, tp=tp):
                    r = yoke("plan", "-m", model, "--json", "--tp", tp)
                    if r.code == SPLIT:
                        continue
                    self.assertEqual(r.code, OK, r)
                    o = json.loads(r.out)
                    self.assertEqual((o["tp"], len(o["ranks"])), (tp, tp))
                    parts = {}
                    for rank in o["ranks"]:
                        tensors = [t for layer in rank["layers"] for t in layer["tensors"]]
                        self.assertEqual(sum(t["bytes"] for t in tensors), rank["weight_bytes"])
                        self.assertEqual(rank["kv_bytes_at_max_length"], rank["kv_bytes_per_token"] * o["max_context"])
                        for t in tensors:
                            parts.setdefault(t["name"], []).append(t)
                    self.assertEqual(parts.keys(), whole.keys())
                    for name, ts in parts.items():
                        self.assertEqual(len(ts), tp)
                        for side in ("rows", "columns"):
                            self.covers([t[side] for t in ts], whole[name][side][1], name)
                            if ts[0]["layout"] == "whole":
                                self.assertEqual([t[side] for t in ts], [whole[name][side]] * tp)

    def test_weights_match_the_file(self):
        """On one rank every tensor is there, whole."""
        for model in (LLAMA, QWEN):
            o = self.plan(model)
            got = {t["name"]: t for layer in o["ranks"][0]["layers"] for t in layer["tensors"]}
            for name, (shape, size) in self.weights_on_disk(model).items():
                self.assertIn(name, got)
                t = got[name]
                self.assertEqual([t["rows"][1], t["columns"][1]][-len(shape):], shape, name)

    def test_two_all_reduces_a_layer(self):
        for model in self.MODELS:
            o = self.plan(model, "--tp", 2)
            for rank in o["ranks"]:
                for layer in rank["layers"]:
                    if layer["layer"] >= 0:
                        self.assertEqual([c["kind"] for c in layer["collectives"]], ["allreduce"] * 2)
                        for c in layer["collectives"]:
                            self.assertGreater(c["bytes_per_row"], 0)
        self.assertFalse([c for layer in self.plan(LLAMA)["ranks"][0]["layers"] for c in layer["collectives"]])

    def test_text(self):
        out = self.run_ok("plan", "-m", LLAMA, "--tp", 2).out
        for word in ("2 layers", "hidden 64", "4 heads on 2 KV heads", "context 512", "tensor parallelism 2", "bits:",
                     "KV a token", "work", "layers 0 to 1, each", "self_attn.q_proj.weight", "split(", "allreduce",
                     "a token", "lm_head.weight"):
            self.assertIn(word, out)
        self.assertEqual(len(re.findall(r"^[01] +[\d.]+ GiB", out, re.M)), 2)

    def test_kv_bytes(self):
        """2 layers, keys and values of 2 heads of 16, f16 or f32."""
        for kv, size in (("f16", 2), ("f32", 4), ("bf16", 2)):
            self.assertEqual(self.plan(LLAMA, "--kv-dtype", kv)["ranks"][0]["kv_bytes_per_token"], 2 * 2 * 2 * 16 * size)
            self.assertEqual(self.plan(LLAMA, "--kv-dtype", kv, "--tp", 2)["ranks"][1]["kv_bytes_per_token"],
                             2 * 2 * 16 * size)

    def test_quant_shrinks(self):
        model = MODELS / "llama-h8d32"
        full, i8, i4 = (self.plan(model, "--quant", q)["ranks"][0]["weight_bytes"] for q in ("none", "w8a8", "w4"))
        self.assertGreater(full, 1.3 * i8)
        self.assertGreater(i8, 1.3 * i4)

    def test_memory(self):
        o = self.plan(LLAMA, "--memory", "1GB")
        self.assertEqual(o["smallest_tp_for_full_context"], 1)
        self.assertGreater(o["kv_tokens_that_fit"], 512)
        need = o["ranks"][0]["weight_bytes"] + o["ranks"][0]["work_bytes"]
        tight = self.plan(LLAMA, "--memory", need + 40 * o["ranks"][0]["kv_bytes_per_token"])
        self.assertEqual(tight["kv_tokens_that_fit"], 32)  # a page of 32 and a part of one
        out = self.run_ok("plan", "-m", LLAMA, "--memory", "1GB").out
        self.assertIn("longest context 512", out)
        out = self.run_ok("plan", "-m", LLAMA, "--memory", need + 40 * o["ranks"][0]["kv_bytes_per_token"]).out
        self.assertRegex(out, r"smallest degree at which a full context fits is --tp \d")

    def test_impossible_split(self):
        """Refused with the degrees that are legal; each of those is accepted."""
        for model in (LLAMA, MODELS / "llama-h9kv3", MODELS / "qwen2-h14kv2"):
            r = self.run_fails(SPLIT, "64", args=("plan", "-m", model, "--tp", 64))
            legal = [int(x) for x in re.findall(r"\d+", r.err[r.err.rindex(":"):])]
            self.assertIn(1, legal, r)
            for tp in legal:
                self.plan(model, "--tp", tp)

    def test_no_weights_are_read(self):
        """A folder whose tensors' data is missing can be planned: only headers are looked at."""
        model = self.copy_model()
        file = model / "model.safetensors"
        head, data = read_safetensors(file)
        size = file.stat().st_size
        with open(file, "r+b") as f:  # the same length, all zeros, sparse
            n, = struct.unpack("<Q", f.read(8))
            f.truncate(8 + n)
            f.truncate(size)
        self.assertEqual(self.plan(model)["ranks"], self.plan(LLAMA)["ranks"])


class Logits(Case):
    def near(self, got, want, scale, tolerance=1e-4):
        self.assertEqual(len(got), len(want))
        worst = max(abs(a - b) for a, b in zip(got, want))
        self.assertLess(worst, tolerance * scale)

    def logits(self, *args):
        return json.loads(self.run_ok("logits", "--json", "--kv-dtype", "f32", *args).out)

    def check(self, model, *args, tolerance=1e-4):
        v, rows = vectors(model), golden_logits(model)
        for p in v["prompts"][:4]:
            ids = ",".join(map(str, p["ids"]))
            o = self.logits("-m", model, "--ids", ids, "--all", *args)
            self.assertEqual((o["vocab"], o["ids"], len(o["logits"])), (v["vocab"], p["ids"], len(p["ids"])))
            for i, pos in enumerate(p["positions"]):
                self.near(o["logits"][pos], rows[p["row"] + i], v["scale"], tolerance)
            last = self.logits("-m", model, "--ids", ids, *args)
            self.assertEqual(last["logits"], o["logits"][-1:])

    def test_golden(self):
        for model in (LLAMA, QWEN, MODELS / "llama-sharded", GGUF / "llama-f32.gguf"):
            with self.subTest(model=model.name):
                self.check(model)

    def test_split(self):
        """The same digits at any degree."""
        ids = ",".join(map(str, vectors(LLAMA)["prompts"][2]["ids"]))
        one = self.logits("-m", LLAMA, "--ids", ids, "--all")
        for args in (("--tp", 2), ("--tp", 4), ("-t", 1), ("--prefill-chunk", 3), ("--block-size", 4)):
            self.assertEqual(self.logits("-m", LLAMA, "--ids", ids, "--all", *args), one, args)

    def test_text_prompts(self):
        """-p is the ids of its tokens; --chat those of the template."""
        for model in (LLAMA, QWEN):
            e = vectors(model)["encode"][0]
            a = self.logits("-m", model, "-p", e["text"])
            b = self.logits("-m", model, "--ids", ",".join(map(str, e["ids_special"])))
            self.assertEqual(a, b)
            c = next(c for c in vectors(model)["chat"] if c["messages"][0]["role"] == "system")
            a = self.logits("-m", model, "--chat", "--system", c["messages"][0]["content"], "-p",
                            c["messages"][1]["content"])
            self.assertEqual(a["ids"], c["ids"])

    def test_text_form(self):
        out = self.run_ok("logits", "-m", LLAMA, "--ids", "[1, 2, 3]", "--all").out
        j = json.loads(self.run_ok("logits", "-m", LLAMA, "--ids", "1,2,3", "--all", "--format", "json").out)
        lines = [x.split("\t") for x in out.splitlines()]
        self.assertEqual([int(x[0]) for x in lines], [0, 1, 2])
        self.assertEqual([[float(y) for y in x[1].split(" ")] for x in lines], j["logits"])

    def test_bad_ids(self):
        self.run_fails(USAGE, "320", "320 tokens", args=("logits", "-m", LLAMA, "--ids", "1,320"))
        self.run_fails(USAGE, "--ids", args=("logits", "-m", LLAMA, "--ids", "1,two"))
        self.run_fails(USAGE, "--ids", "-p", args=("logits", "-m", LLAMA))
        self.run_fails(LIMIT, "513", "512", args=("logits", "-m", LLAMA, "--ids", ",".join(["1"] * 513)))


class Tokenize(Case):
    SOURCES = [(LLAMA, LLAMA), (QWEN, QWEN), (GGUF / "llama-f32.gguf", LLAMA), (GGUF / "qwen2-mixed.gguf", QWEN)]

    def ids(self, *args, **kw):
        return [int(x) for x in self.run_ok("tokenize", "--format", "ids", *args, **kw).out.split()]

    def test_oracle(self):
        for source, golden in self.SOURCES:
            for e in vectors(golden)["encode"]:
                with self.subTest(source=source.name, text=e["text"]):
                    self.assertEqual(self.ids("-m", source, "-p", e["text"]), e["ids_special"])
                    self.assertEqual(self.ids("-m", source, "-p", e["text"], "--no-special"), e["ids"])

    def test_ways_in(self):
        e = vectors(LLAMA)["encode"][3]
        file = self.write("text", e["text"])
        self.assertEqual(self.ids("-m", LLAMA, "--file", file), e["ids_special"])
        self.assertEqual(self.ids("-m", LLAMA, stdin=e["text"]), e["ids_special"])

    def test_back(self):
        for source, golden in self.SOURCES:
            for e in vectors(golden)["encode"]:
                r = self.run_ok("tokenize", "-m", source, "--ids", ",".join(map(str, e["ids"])))
                self.assertIn(e["text"], r.out)

    def test_control_tokens(self):
        c = vectors(LLAMA)["chat"][0]
        self.assertEqual(self.ids("-m", LLAMA, "-p", c["text"], "--parse-special", "--no-special"), c["ids"])
        self.assertFalse({318, 319} & set(self.ids("-m", LLAMA, "-p", c["text"])))

    def test_json(self):
        e = vectors(LLAMA)["encode"][0]
        o = json.loads(self.run_ok("tokenize", "-m", LLAMA, "-p", e["text"], "--json").out)
        self.assertIn(e["ids_special"], list(o.values()) if isinstance(o, dict) else [o])


class Template(Case):
    def test_oracle(self):
        for source, golden in ((LLAMA, LLAMA), (QWEN, QWEN)):
            for c in vectors(golden)["chat"]:
                file = self.write("m.json", c["messages"])
                r = self.run_ok("template", "-m", source, "--messages", file)
                self.assertEqual(r.out.removesuffix("\n"), c["text"].removesuffix("\n"))
                r = self.run_ok("template", "-m", source, "--messages", "-", stdin=json.dumps(c["messages"]))
                self.assertEqual(r.out.removesuffix("\n"), c["text"].removesuffix("\n"))

    def test_no_generation_prompt(self):
        c = vectors(QWEN)["chat"][0]
        r = self.run_ok("template", "-m", QWEN, "--messages", self.write("m.json", c["messages"]),
                        "--no-generation-prompt")
        self.assertEqual(r.out.rstrip("\n"), c["text"].removesuffix("<|im_start|>assistant\n").rstrip("\n"))

    def test_p_and_system(self):
        c = next(c for c in vectors(QWEN)["chat"] if c["messages"][0]["role"] == "system")
        r = self.run_ok("template", "-m", QWEN, "--system", c["messages"][0]["content"], "-p", c["messages"][1]["content"])
        self.assertEqual(r.out.removesuffix("\n"), c["text"].removesuffix("\n"))


if __name__ == "__main__":
    main()
