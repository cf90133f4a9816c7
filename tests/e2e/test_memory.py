"""Memory as measured: what the kernel says that each rank holds (proportional set size, between two turns of a conversation)
beside what the plan says.

What the plan does not know (program, libraries, tokenizer, the transport's shared memory) comes from a small model run in the
same shape: what it holds beyond its own plan. Weights are random, some hundred MB of them, in shapes with which weights and KV
dwarf what a page here and there can blur.
"""
import ctypes
import threading

import synthetic
from harness import *

ENV.update({"ASAN_OPTIONS": "detect_leaks=0:" + os.environ.get("ASAN_OPTIONS", "")})  # for the check below
BLOCKS, BLOCK = 96, 16  # KV pages, and tokens in one
WORDS = 480             # three tokens each, and the template's: all but a few of the KV's 1536
HIDDEN = 512
CHUNK = 128  # little work memory: what the plan keeps for the worst case of routing need not all be touched


def children(pid):
    found = []
    for d in pathlib.Path("/proc").iterdir():
        if d.name.isdigit():
            try:
                if int((d / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(d.name))
            except (OSError, IndexError, ValueError):
                pass
    return found


def rank_of(pid):
    for x in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if x.startswith(b"OMPI_COMM_WORLD_RANK="):
            return int(x.split(b"=")[1])
    return 0


def pss(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss: +(\d+) kB", text, re.M)[1]) * 1024


def small_pages():
    """Huge ones, which there may or may not be, count what nobody has touched. Inherited by the ranks."""
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE


def launcher(ranks):
    return ("mpirun", "--oversubscribe", "-n", str(ranks)) if ranks > 1 else ()


class Memory(Case):
    @classmethod
    def setUpClass(cls):
        program = pathlib.Path(YOKE).read_bytes()
        if b"__asan_init" in program or b"__tsan_init" in program:
            raise unittest.SkipTest("sanitizers keep memory of their own")
        if not shutil.which("mpirun"):
            raise unittest.SkipTest("no mpirun")
        r = yoke("run", "-m", LLAMA, "-p", "x", "-n", 1, "--tp", 2, launcher=launcher(2))
        if "built without MPI" in r.err:
            raise unittest.SkipTest("a yoke without MPI")

    def plan(self, model, ranks, *args):
        r = self.run_ok("plan", "-m", model, "--json", "--tp", ranks, "--kv-dtype", "f32", "--block-size", BLOCK,
                        "--prefill-chunk", CHUNK, *args)
        return json.loads(r.out)["ranks"]

    def planned(self, rank):
        return rank["weight_bytes"] + rank["work_bytes"] + BLOCKS * BLOCK * rank["kv_bytes_per_token"]

    def pss_of_ranks(self, model, ranks, *args):
        p = start("run", "-m", model, "-i", "-n", 8, "--ignore-eos", "--greedy", "--tp", ranks, "--threads", 1, "--kv-dtype", "f32",
                  "--num-blocks", BLOCKS, "--block-size", BLOCK, "--seq-length", BLOCKS * BLOCK, "--prefill-chunk", CHUNK, *args, launcher=launcher(ranks),
                  stdin=subprocess.PIPE, env=ENV, preexec_fn=small_pages)
        watchdog = threading.Timer(TIMEOUT, p.kill)
        watchdog.start()
        try:
            p.stdin.write(b"word " * WORDS + b"\n")
            p.stdin.flush()
            if not p.stdout.read(1):
                raise AssertionError(p.stderr.read().decode())
            time.sleep(0.5)  # the answer's other tokens, whatever they are
            seen = {rank_of(x): pss(x) for x in (children(p.pid) if ranks > 1 else [p.pid])}
            p.communicate(timeout=TIMEOUT)
        finally:
            watchdog.cancel()
            p.kill()
            p.wait()
        self.assertEqual(sorted(seen), list(range(ranks)))
        return [seen[r] for r in range(ranks)]

    def measure(self, model, small, ranks, *args):
        """[(measured less overhead, the plan's rank)], each measured within 5% of the plan."""
        overhead = [m - self.planned(p) for m, p in zip(self.pss_of_ranks(small, ranks, *args), self.plan(small, ranks, *args))]
        found = [m - o for m, o in zip(self.pss_of_ranks(model, ranks, *args), overhead)]
        plans = self.plan(model, ranks, *args)
        for r, (m, p) in enumerate(zip(found, plans)):
            print(f"{model.name}, rank {r} of {ranks}: measured {m / 1e6:.1f} MB, planned {self.planned(p) / 1e6:.1f} MB, "
                  f"overhead {overhead[r] / 1e6:.1f} MB")
            self.assertLess(abs(m - self.planned(p)), 0.05 * self.planned(p))
        return list(zip(found, plans))

    def tensors(self, rank, wanted):
        return sum(t["bytes"] for layer in rank["layers"] for t in layer["tensors"] if wanted(t))

    def test_experts(self):
        """At ep 4 each rank holds a quarter of the experts."""
        small = synthetic.qwen3(self.tmp / "small", experts=8, num_experts_per_tok=4, num_hidden_layers=1, hidden_size=HIDDEN,
                                head_dim=64, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=64)
        model = synthetic.qwen3(self.tmp / "experts", experts=64, num_experts_per_tok=4, num_hidden_layers=2, hidden_size=HIDDEN,
                                head_dim=64, num_attention_heads=8, num_key_value_heads=8, moe_intermediate_size=640)

        def experts(measured, rank):
            return measured - self.planned(rank) + self.tensors(rank, lambda t: ".experts." in t["name"])

        (one,) = self.measure(model, small, 1)
        self.assertGreater(experts(*one), 200e6)
        for measured, rank in self.measure(model, small, 4, "--ep", 4):
            self.assertAlmostEqual(experts(measured, rank) / experts(*one), 0.25, delta=0.0125)

    def test_tensor_parallel(self):
        """At tp 4 each rank holds a quarter of weights and KV, and what the plan says that all hold."""
        shape = {"hidden_size": HIDDEN, "head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 16}
        small = synthetic.qwen3(self.tmp / "small", num_hidden_layers=1, intermediate_size=64, **shape)
        model = synthetic.qwen3(self.tmp / "dense", num_hidden_layers=8, intermediate_size=2048, **shape)
        ((one, alone),) = self.measure(model, small, 1)
        one -= alone["work_bytes"]
        for measured, rank in self.measure(model, small, 4):
            whole = self.tensors(rank, lambda t: t["layout"] == "whole")
            self.assertLess(whole, 0.02 * one)
            expected = (one - whole) / 4 + whole
            self.assertLess(abs(measured - rank["work_bytes"] - expected), 0.05 * expected)


if __name__ == "__main__":
    main()
