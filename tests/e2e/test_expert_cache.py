"""--expert-cache: the same answers with most experts on disk, counted in the plan and in the statistics, and clear words
where it cannot be."""
import synthetic
from harness import *

RUN = ("-p", "The cat sat on the mat", "-p", "One, two", "-n", 12, "--greedy", "--ignore-eos", "--threads", 2)


class ExpertCache(Case):
    def setUp(self):
        super().setUp()
        self.model = synthetic.qwen3(self.tmp / "model", experts=16, num_experts_per_tok=2, num_hidden_layers=3, hidden_size=64,
                                     head_dim=32, num_attention_heads=4, num_key_value_heads=2, moe_intermediate_size=96)
        self.spill = self.tmp / "spill"
        self.spill.mkdir()

    def least(self, *args, model=None):
        """The smallest legal size: as the error says it."""
        r = self.run_fails(MEMORY, "all may be wanted at once", args=("plan", "-m", model or self.model, "--expert-cache", 1, *args))
        return int(re.search(r"the smallest size for this split is (\d+) ", r.err)[1])

    def answers(self, *args, model=None, **kw):
        return self.run_ok("run", "-m", model or self.model, *RUN, *args, **kw).out

    def cached(self, size, *args, **kw):
        path = self.tmp / "stats.json"
        out = self.answers("--expert-cache", size, "--expert-cache-dir", self.spill, "--stats-json", path, *args, **kw)
        return out, [r["expert_cache"] for r in json.loads(path.read_text())["ranks"]]

    def test_same_answers(self):
        want = self.answers()
        for split in ((), ("--tp", 2, "--ep", 2), ("--dp", 2, "--ep", 2), ("--tp", 2, "--ep", 2, "--quant", "w8a8")):
            plain = self.answers(*split) if "--quant" in split else want
            least = self.least(*split)
            for size in (least, 2 * least):
                with self.subTest(split=split, size=size):
                    out, caches = self.cached(size, *split)
                    self.assertEqual(out, plain)
                    self.assertEqual(list(self.spill.iterdir()), [])
                    for c in caches:
                        self.assertLess(c["slots"], c["experts"])
                        self.assertLessEqual(c["held"], c["slots"])
                        self.assertLessEqual(c["memory_bytes"], size)
                        self.assertGreater(c["misses"], 0)
                        self.assertAlmostEqual(c["hit_rate"], c["hits"] / (c["hits"] + c["misses"]))
                        self.assertEqual(c["read_bytes"], c["misses"] * c["memory_bytes"] // c["slots"])

    def test_from_a_set(self):
        want = self.answers()
        for split in ((), ("--tp", 2, "--ep", 2)):
            out = self.tmp / f"set{len(split)}"
            self.run_ok("shard", "-m", self.model, "-o", out, *split)
            got, caches = self.cached(self.least(model=out), model=out, env={"TMPDIR": "/nowhere"})
            self.assertEqual(got, want)
            self.assertTrue(all(c["misses"] for c in caches))

    def test_processes(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun")
        split = ("--tp", 2, "--ep", 2)
        r = yoke("run", "-m", self.model, *RUN, *split, launcher=("mpirun", "--oversubscribe", "-n", "2"))
        if "built without MPI" in r.err:
            self.skipTest("a yoke without MPI")
        out, caches = self.cached(self.least(*split), *split, launcher=("mpirun", "--oversubscribe", "-n", "2"))
        self.assertEqual(out, r.out)
        self.assertEqual(len(caches), 2)

    def test_stats(self):
        least = self.least()
        r = self.run_ok("run", "-m", self.model, *RUN, "--stats", "--expert-cache", least, "--expert-cache-dir", self.spill)
        self.assertRegex(r.err, r"expert cache +rank 0: 16 of 48 experts in [0-9.]+ MiB \(room for 16\); [0-9.]+% of \d+ wanted were there; "
                                r"\d+ read, [0-9.]+ MiB; computing waited [0-9.]+ s for them\n")
        r = self.run_ok("run", "-m", self.model, *RUN, "--stats", "--expert-cache", "1GB", "--expert-cache-dir", "/nowhere")
        self.assertIn("rank 0: all its experts are in memory", r.err)
        self.assertNotIn("expert cache", self.run_ok("run", "-m", self.model, *RUN, "--stats").err)

    def test_trace(self):
        path = self.tmp / "trace.json"
        _, (c,) = self.cached(self.least(), "--trace", path)
        reads = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "read"]
        self.assertEqual(len(reads), c["misses"])
        for e in reads:
            self.assertIn(e["args"]["layer"], range(3))
            self.assertIn(e["args"]["expert"], range(16))

    def test_plan(self):
        def rank(*args):
            return json.loads(self.run_ok("plan", "-m", self.model, "--json", *args).out)["ranks"][0]

        whole = rank()
        experts = sum(t["bytes"] for layer in whole["layers"] for t in layer["tensors"] if ".experts." in t["name"])
        least = self.least()
        r = rank("--expert-cache", least)
        self.assertEqual(r["expert_cache"], {"experts": 48, "held": 16, "bytes": least, "expert_bytes": least // 16})
        self.assertEqual(r["weight_bytes"], whole["weight_bytes"] - experts + least)
        r = rank("--expert-cache", "1GB")
        self.assertEqual((r["expert_cache"]["held"], r["weight_bytes"]), (48, whole["weight_bytes"]))
        out = self.run_ok("plan", "-m", self.model, "--expert-cache", 2 * least).out
        self.assertIn("rank 0: 32 of 48 experts (of all layers; 67%) are in memory, the others are read from disk", out)
        self.assertIn("all 48 experts (of all layers) are in memory", self.run_ok("plan", "-m", self.model, "--expert-cache", "1GB").out)
        # what does not fit by itself does with a cache
        memory = whole["weight_bytes"] + whole["work_bytes"]
        self.assertIn("weights and work alone do not fit", self.run_ok("plan", "-m", self.model, "--memory", memory - 1000).out)
        self.assertIn("tokens of KV fit", self.run_ok("plan", "-m", self.model, "--memory", memory - 1000, "--expert-cache", least).out)
        # and the run keeps to it
        _, (c,) = self.cached(least)
        self.assertEqual(c["memory_bytes"], least)
        (ran,) = json.loads((self.tmp / "stats.json").read_text())["ranks"]
        self.assertEqual(ran["weight_bytes"] + least, rank("--expert-cache", least)["weight_bytes"])

    def test_yaml(self):
        config = self.write("c.yaml", f"expert_cache: {self.least()}B\nexpert_cache_dir: {self.spill}\n")
        path = self.tmp / "stats.json"
        self.answers("--config", config, "--stats-json", path)
        self.assertIn("expert_cache", json.loads(path.read_text())["ranks"][0])

    def test_file_cut(self):
        """A rank's file is cut short between two prompts: every rank ends, and it is said what could not be read."""
        launchers = [()]
        if shutil.which("mpirun") and "built without MPI" not in yoke("run", "-m", LLAMA, "-p", "x", "-n", 1, "--tp", 2,
                                                                      launcher=("mpirun", "--oversubscribe", "-n", "2")).err:
            launchers.append(("mpirun", "--oversubscribe", "-n", "2"))
        for launcher in launchers:
            for rank in range(2):
                with self.subTest(launcher=launcher, rank=rank):
                    out = self.tmp / "set"
                    shutil.rmtree(out, ignore_errors=True)
                    self.run_ok("shard", "-m", self.model, "-o", out, "--tp", 2, "--ep", 2)
                    p = start("run", "-m", out, "-i", "-n", 4, "--ignore-eos", "--greedy", "--expert-cache", self.least(model=out),
                              launcher=launcher, stdin=subprocess.PIPE)
                    p.stdin.write(b"The cat\n")
                    p.stdin.flush()
                    self.assertTrue(p.stdout.read(1))
                    os.truncate(out / f"rank_{rank:04}_of_0002.yoke", 5000)
                    _, err = p.communicate(b"sat on the mat, and then some\n" * 4, timeout=TIMEOUT)
                    self.assertRegex(err.decode(), rf"cannot read expert \d+ of layer [012].*rank_{rank:04}_of_0002.yoke")
                    self.assertIn(p.returncode, (UNREADABLE, RANK_LOST))

    def test_sentences(self):
        least = self.least()
        for command in ("plan", "run"):
            args = (command, "-m", self.model, *(RUN if command == "run" else ()), "--expert-cache")
            self.run_fails(MEMORY, "holds 15 experts of a rank", "a layer has 16", f"is {least} ", "--ep", args=(*args, least - 1))
            self.run_fails(USAGE, "has no experts", str(LLAMA), args=(command, "-m", LLAMA, *args[3:], "1GB"))
            self.run_fails(USAGE, "--expert-cache", args=(*args, "0"))
        self.assertEqual(self.least("--tp", 2, "--ep", 2), least // 2)
        self.run_fails(USAGE, "--auto does not weigh --expert-cache", args=("plan", "--auto", "-m", self.model, "--expert-cache", least))
        self.run_fails(UNREADABLE, "/nowhere", "--expert-cache-dir",
                       args=("run", "-m", self.model, *RUN, "--expert-cache", least, "--expert-cache-dir", "/nowhere"))
        self.run_fails(UNREADABLE, "has no room for", str(self.spill), "yoke shard", launcher=("sh", "-c", 'ulimit -f 8; exec "$@"', "sh"),
                       args=("run", "-m", self.model, *RUN, "--expert-cache", least, "--expert-cache-dir", self.spill))


if __name__ == "__main__":
    main()
