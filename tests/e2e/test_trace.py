"""--trace: a file that a trace viewer takes, whose events fit what ran; and what --stats says of experts and stages."""
import collections

import synthetic
from harness import *


class Trace(Case):
    def trace(self, *args, model=LLAMA, launcher=(), env=None):
        path = self.tmp / "trace.json"
        r = self.run_ok("run", "-m", model, "--greedy", "--ignore-eos", "--trace", path, *args, launcher=launcher, env=env)
        return self.check(json.loads(path.read_text())), r

    def check(self, trace):
        """The rules of the format that viewers rely on. Returns {(pid, tid): its events in order of time}."""
        self.assertEqual(trace["displayTimeUnit"], "ms")
        self.assertEqual(trace["otherData"]["dropped_events"], "0")
        names, tracks = collections.defaultdict(dict), collections.defaultdict(list)
        for e in trace["traceEvents"]:
            self.assertIn(e["ph"], "MX")
            self.assertGreater(e["pid"], 0)
            if e["ph"] == "M":
                names[e["name"]][e["pid"], e.get("tid")] = e["args"]
                continue
            self.assertIn(e["cat"], ("step", "collective", "tick"))
            self.assertGreaterEqual(e["ts"], 0)
            self.assertGreaterEqual(e["dur"], 0)
            tracks[e["pid"], e["tid"]].append(e)
        self.assertEqual(len({tid for _, tid in tracks}), len(tracks))
        for key in tracks:
            self.assertIn(key, names["thread_name"])
            self.assertIn((key[0], None), names["process_name"])
            tracks[key].sort(key=lambda e: (e["ts"], -e["dur"]))
            self.check_nesting(tracks[key])
        self.names = names
        return dict(tracks)

    def check_nesting(self, events):
        """Each step lies within a tick of its thread; neither ticks nor steps overlap."""
        tick_end = step_end = -1
        for e in events:
            if e["cat"] == "tick":
                self.assertGreaterEqual(e["ts"], tick_end - 1e-3)
                tick_end = e["ts"] + e["dur"]
            else:
                self.assertGreaterEqual(e["ts"], step_end - 1e-3)
                step_end = e["ts"] + e["dur"]
                self.assertLessEqual(step_end, tick_end + 1e-3)
                self.assertGreaterEqual(e["args"]["rows"], 0)

    def test_one_rank(self):
        tracks, r = self.trace("-p", "The cat", "-n", 10, "--threads", 2)
        self.assertEqual(len(tracks), 2)
        self.assertEqual(r.out, self.run_ok("run", "-m", LLAMA, "-p", "The cat", "-n", 10, "--greedy", "--ignore-eos").out)
        for events in tracks.values():
            ticks = [e for e in events if e["cat"] == "tick"]
            self.assertEqual(len(ticks), 10)
            self.assertEqual([e["args"]["tokens"] for e in ticks[1:]], [1] * 9)
            q = [e for e in events if e["name"] == "matmul self_attn.q_proj.weight"]
            self.assertEqual([e["args"]["layer"] for e in q], [0, 1] * 10)
            self.assertFalse([e for e in events if e["cat"] == "collective"])

    def test_collectives(self):
        tracks, _ = self.trace("-p", "The cat", "-n", 10, "--threads", 2, "--tp", 2)
        self.assertEqual(len(tracks), 4)
        busy = []
        for events in tracks.values():
            reduced = [e for e in events if e["cat"] == "collective" and e["name"].startswith("allreduce")]
            if reduced:  # only a rank's first thread takes part
                self.assertEqual(len(reduced), 10 * 5)
                self.assertEqual({e["args"]["bytes"] / e["args"]["rows"] for e in reduced}, {64 * 4})
                busy.append(reduced)
        self.assertEqual(len(busy), 2)
        for a, b in zip(*busy):  # one clock: nobody is out before the other is in
            self.assertLess(max(a["ts"], b["ts"]), min(a["ts"] + a["dur"], b["ts"] + b["dur"]))

    def test_pipeline(self):
        tracks, _ = self.trace(*("-p", "One") * 4, "-n", 10, "--threads", 1, "--pp", 2, "--dp", 2)
        self.assertEqual(len(tracks), 4)
        kinds = [collections.Counter(e["name"].split()[0] for e in tracks[k] if e["cat"] == "collective") for k in sorted(tracks)]
        self.assertEqual([set(k) for k in kinds], [{"send"}, {"recv"}] * 2)
        self.assertEqual(kinds[0]["send"], kinds[1]["recv"])
        self.assertRegex(self.names["process_name"][2, None]["name"], r"rank 1: replica 0, stage 1 of 2, tensor 0 of 1 \(")

    def test_processes(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun")
        launcher = ("mpirun", "--oversubscribe", "-n", "2")
        if "built without MPI" in yoke("run", "-m", LLAMA, "-p", "x", "-n", 1, "--tp", 2, launcher=launcher).err:
            self.skipTest("a yoke without MPI")
        for how in ({}, {"YOKE_COMM": "net"}):
            tracks, _ = self.trace("-p", "The cat", "-n", 5, "--threads", 1, "--pp", 2, launcher=launcher, env=how)
            self.assertEqual([sum(e["cat"] == "tick" for e in x) for x in tracks.values()], [5, 5])

    def test_cannot_write(self):
        """Said before any work is done."""
        r = yoke("run", "-m", LLAMA, "-p", "The cat", "-n", 5, "--trace", "/nowhere/t.json", "--tp", 2)
        self.assertNotEqual(r.code, OK)
        self.assertEqual(r.out, "")
        self.assertIn("/nowhere/t.json", r.err)


class Loads(Case):
    def stats(self, model, *args, prompts=("The cat sat", "One", "Two")):
        path = self.tmp / "stats.json"
        r = self.run_ok("run", "-m", model, "--greedy", "--ignore-eos", "-n", 12, "--stats", "--stats-json", path, "--threads", 1,
                        *args, *(x for p in prompts for x in ("-p", p)))
        return json.loads(path.read_text()), r

    def test_experts(self):
        """Every token meets k experts in each layer, however the model is split; the same tokens meet the same experts."""
        model = synthetic.qwen3(self.tmp / "moe", experts=8, num_experts_per_tok=3, num_hidden_layers=2, hidden_size=64,
                                head_dim=16, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=64)
        seen = []
        for args, ranks in (((), 1), (("--tp", 2), 2), (("--tp", 4, "--ep", 2), 4), (("--pp", 2, "--tp", 2, "--ep", 2), 4),
                            (("--dp", 2, "--tp", 2, "--ep", 4), 4), (("--dp", 2), 2), (("--dp", 4, "--ep", 2), 4),
                            (("--dp", 2, "--pp", 2, "--tp", 3, "--ep", 2), 12)):
            with self.subTest(args):
                s, r = self.stats(model, *args)
                pairs = s["experts"]["pairs"]
                self.assertEqual(sum(pairs), 2 * 3 * (s["prefill_tokens"] + s["decode_tokens"]))
                self.assertAlmostEqual(s["experts"]["imbalance_experts"], max(pairs) * 8 / sum(pairs))
                self.assertGreaterEqual(s["experts"]["imbalance_ranks"], 1)
                self.assertEqual(len(s["ranks"]), ranks)
                self.assertRegex(r.err, rf"experts +{sum(pairs)} token-expert pairs; busiest: expert {pairs.index(max(pairs))} ")
                seen.append(pairs)
        self.assertEqual(seen, seen[:1] * len(seen))
        s, r = self.stats(LLAMA)
        self.assertNotIn("experts", s)
        self.assertNotIn("busiest", r.err)

    def test_ranks_of_experts(self):
        """At ep 4 a rank's pairs are those of its two experts."""
        model = synthetic.qwen3(self.tmp / "moe", experts=8, num_experts_per_tok=3, num_hidden_layers=2, hidden_size=64,
                                head_dim=16, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=64)
        s, _ = self.stats(model, "--tp", 4, "--ep", 4)
        mine = [x["expert_pairs"] for x in s["ranks"]]
        self.assertEqual(mine, [sum(s["experts"]["pairs"][i:i + 2]) for i in range(0, 8, 2)])
        self.assertAlmostEqual(s["experts"]["imbalance_ranks"], max(mine) * 4 / sum(mine))

    def test_ranks_of_spread_experts(self):
        """Over 4 replicas in 2 groups: both ranks of a group meet all pairs of its four experts; weights and work as planned."""
        model = synthetic.qwen3(self.tmp / "moe", experts=8, num_experts_per_tok=3, num_hidden_layers=2, hidden_size=64,
                                head_dim=16, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=64)
        split = ("--dp", 4, "--ep", 2)
        s, r = self.stats(model, *split)
        groups = [sum(s["experts"]["pairs"][i:i + 4]) for i in (0, 4)]
        self.assertEqual([x["expert_pairs"] for x in s["ranks"]], [groups[0], groups[0], groups[1], groups[1]])
        self.assertAlmostEqual(s["experts"]["imbalance_ranks"], max(groups) * 2 / sum(groups))
        self.assertGreater(s["ranks"][1]["collectives"]["alltoall"]["bytes"], 0)
        self.assertRegex(r.err, "alltoall +[0-9]+ calls")
        plan = json.loads(self.run_ok("plan", "-m", model, "--json", "--batch-size", 3, *split).out)
        self.assertEqual((plan["dp"], plan["ep"], plan["experts_spread"], plan["bits_equal"]), (4, 2, True, True))
        for have, want in zip(s["ranks"], plan["ranks"], strict=True):
            self.assertEqual(have["weight_bytes"], want["weight_bytes"])
            self.assertEqual(have["work_bytes"], want["work_bytes"])

    def test_bubble(self):
        for prompts, flight in ((["One"], 1), (["One"] * 4, 2)):
            s, r = self.stats(LLAMA, "--pp", 2, prompts=prompts)
            p = s["pipeline"]
            self.assertEqual(p["stages"], 2)
            self.assertLessEqual(p["ticks_in_flight"], flight + 1e-9)
            self.assertGreater(p["ticks_in_flight"], flight / 2)
            self.assertGreaterEqual(p["bubble_theory"], 1 - p["ticks_in_flight"] / 2 - 1e-9)
            for x in s["ranks"]:
                self.assertTrue(0 <= x["bubble"] < 1)
                self.assertGreater(x["busy_s"], 0)
            self.assertRegex(r.err, r"bubble +[\d.]+% in theory \(2 stages.*measured: stage 0 [\d.]+%, stage 1 [\d.]+%")
        s, r = self.stats(LLAMA)
        self.assertNotIn("pipeline", s)
        self.assertNotIn("bubble", r.err)


if __name__ == "__main__":
    main()
