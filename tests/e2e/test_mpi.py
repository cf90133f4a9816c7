"""Ranks as processes under mpirun: the same text, one voice, and a quick end when a rank is lost."""
from harness import *

GREEDY = ("--greedy", "--repetition-penalty", "1")
ENV.update(NO_LEAK_CHECK)  # some commands are started without the harness


def mpirun(n):
    return ("mpirun", "--oversubscribe", "-n", str(n))


def with_mpi():
    if not shutil.which("mpirun"):
        return False
    r = yoke("run", "-m", LLAMA, "-p", "x", "-n", 1, "--tp", 2, launcher=mpirun(2))
    return "built without MPI" not in r.err


class Mpi(Case):
    @classmethod
    def setUpClass(cls):
        if not with_mpi():
            raise unittest.SkipTest("no mpirun, or a yoke without MPI")

    def setUp(self):
        super().setUp()
        # Where ranks end with an error of their own accord, mpirun need not sit out a second of grace before it does.
        ENV["OMPI_MCA_odls_base_sigkill_timeout"] = "0"
        self.addCleanup(ENV.pop, "OMPI_MCA_odls_base_sigkill_timeout")

    def test_same_text(self):
        for model, n in ((LLAMA, 2), (QWEN, 2), (LLAMA, 4)):
            c = ORACLE[model.name]["plain"][1]
            r = yoke("run", "-m", model, "-p", c["prompt"], "-n", c["n"], "--tp", n, *GREEDY, launcher=mpirun(n))
            self.assertEqual((r.code, r.out), (OK, c["text"] + "\n"), r)
            self.assertNotIn("yoke", r.err)

    def test_pipeline_and_replicas(self):
        """Batches over stages and replicas, each rank a process."""
        cases = ORACLE["llama-gqa"]["plain"]
        for args in (("--pp", 2), ("--dp", 2)):
            r = yoke("run", "-m", LLAMA, "-n", 24, *GREEDY, *args, *[x for c in cases for x in ("-p", c["prompt"])],
                     launcher=mpirun(2))
            self.assertEqual((r.code, [x["text"] for x in r.lines()]), (OK, [c["text"] for c in cases]), r)

    def test_messages_only(self):
        """Without shared memory between the ranks, as between hosts."""
        c = ORACLE["llama-gqa"]["plain"][1]
        r = yoke("run", "-m", LLAMA, "-p", c["prompt"], "-n", c["n"], "--tp", 2, *GREEDY, launcher=mpirun(2),
                 env={"YOKE_COMM": "net"})
        self.assertEqual((r.code, r.out), (OK, c["text"] + "\n"), r)

    def test_batch(self):
        """Prompts from standard input, results of rank 0 alone, once."""
        cases = ORACLE["llama-gqa"]["plain"]
        out, stats = self.tmp / "out.jsonl", self.tmp / "stats.json"
        r = yoke("run", "-m", LLAMA, "--prompts-file", "-", "-n", 24, "--tp", 2, "-o", out, "--stats-json", stats, *GREEDY,
                 launcher=mpirun(2), stdin="".join(c["prompt"] + "\n" for c in cases))
        self.assertEqual((r.code, r.out), (OK, ""), r)
        self.assertEqual([json.loads(x)["text"] for x in out.read_text().splitlines()], [c["text"] for c in cases])
        s = json.loads(stats.read_text())
        self.assertEqual((len(s["ranks"]), s["transport"]), (2, "mpi/shm"))
        self.assertEqual(len({x["where"] for x in s["ranks"]}), 2)

    def test_conversation(self):
        c = ORACLE["llama-gqa"]["conversation"][0]
        r = yoke("run", "-m", LLAMA, "-i", "-n", c["n"], "--tp", 2, *GREEDY, launcher=mpirun(2),
                 stdin="".join(x["user"] + "\n" for x in c["turns"]))
        self.assertEqual((r.code, r.out), (OK, "".join(x["text"] + "\n" for x in c["turns"])), r)

    def test_logits(self):
        args = ("logits", "-m", LLAMA, "--ids", "1,2,3", "--all")
        self.assertEqual(yoke(*args, "--tp", 2, launcher=mpirun(2)).out, yoke(*args).out)

    def test_one_voice(self):
        """Output, warnings and errors come once, from rank 0."""
        for args in (("plan", "-m", LLAMA, "--tp", 2), ("tokenize", "-m", LLAMA, "-p", "x"), ("version",),
                     ("template", "-m", LLAMA, "-p", "x")):
            r = yoke(*args, launcher=mpirun(2))
            self.assertEqual((r.code, r.out), (OK, yoke(*args).out), r)
        r = yoke("run", "-m", LLAMA, "-p", "x", "-n", 2, "--seq-length", 4096, "--tp", 2, launcher=mpirun(2))
        self.assertEqual((r.code, r.err.count("yoke: warning")), (OK, 1), r)
        for code, args in ((USAGE, ("run", "--temprature", 1)), (UNREADABLE, ("run", "-m", "/nowhere", "-p", "x", "--tp", 2)),
                           (SPLIT, ("run", "-m", LLAMA, "-p", "x", "--tp", 64)), (LIMIT, ("run", "-m", LLAMA, "--tp", 2,
                                                                                         "-p", "word " * 600))):
            r = yoke(*args, launcher=mpirun(2))
            self.assertEqual((r.code, r.out, r.err.count("yoke: error")), (code, "", 1), r)

    def test_wrong_number_of_ranks(self):
        """Said clearly, soon, and not with success."""
        for n, tp in ((2, 4), (3, 2), (2, 1)):
            began = time.monotonic()
            r = yoke("run", "-m", LLAMA, "-p", "x", "-n", 2, "--tp", tp, launcher=mpirun(n))
            self.assertEqual((r.code, r.out), (SPLIT, ""), r)
            self.assertIn(f"{n} ranks were launched", r.err)
            self.assertIn(f"tensor {tp}", r.err)
            self.assertLess(time.monotonic() - began, 30)


class Lost(Case):
    setUpClass = Mpi.setUpClass

    def ranks_of(self, mpirun_pid, n):
        """{rank: pid} of the processes that this mpirun started, once they are all there."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            found = {}
            for d in pathlib.Path("/proc").iterdir():
                if not d.name.isdigit():
                    continue
                try:
                    parent = int((d / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    env = (d / "environ").read_bytes().split(b"\0")
                except (OSError, IndexError, ValueError):
                    continue
                if parent != mpirun_pid:
                    continue
                for x in env:
                    if x.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[int(x.split(b"=")[1])] = int(d.name)
            if len(found) == n:
                return found
            time.sleep(0.05)
        raise AssertionError("the ranks did not start")

    def kill_one(self, victim, n=4, env=None, signal_no=signal.SIGKILL):
        p = start("run", "-m", LLAMA, "-p", "Tell me", "-n", 480, "--ignore-eos", "--use-past", "False", "--tp", n,
                  launcher=mpirun(n), env={**ENV, **(env or {})})
        try:
            pids = self.ranks_of(p.pid, n)
            self.assertTrue(p.stdout.read(1))  # it has begun to answer
            os.kill(pids[victim], signal_no)
            began = time.monotonic()
            out, err = p.communicate(timeout=TIMEOUT)
            took = time.monotonic() - began
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()
        self.assertNotEqual(p.returncode, 0)
        self.assertLess(took, 10)
        self.assertRegex((out + err).decode(), rf"rank {victim}\b")
        # mpirun may end a moment before the last rank, whose memory the kernel takes down first.
        while time.monotonic() < began + 10 and any(self.alive(x) for x in pids.values()):
            time.sleep(0.05)
        self.assertFalse([x for x in pids.values() if self.alive(x)])
        return err.decode()

    def alive(self, pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def test_killed(self):
        for victim in (3, 0):
            self.kill_one(victim)

    def test_killed_between_hosts(self):
        self.kill_one(1, n=2, env={"YOKE_COMM": "net"})

    def test_a_survivor_says_it(self):
        """A launcher that does not notice (mpirun stopped for a moment) is not needed: the ranks themselves see it."""
        n, victim = 4, 2
        p = start("run", "-m", LLAMA, "-p", "Tell me", "-n", 480, "--ignore-eos", "--use-past", "False", "--tp", n,
                  launcher=mpirun(n), env=ENV)
        try:
            pids = self.ranks_of(p.pid, n)
            self.assertTrue(p.stdout.read(1))
            p.send_signal(signal.SIGSTOP)
            os.kill(pids[victim], signal.SIGKILL)
            end = time.monotonic() + 10
            time.sleep(4)  # long enough for the survivors to notice
            p.send_signal(signal.SIGCONT)
            out, err = p.communicate(timeout=TIMEOUT)
            self.assertLess(time.monotonic(), end)
        finally:
            if p.poll() is None:
                p.send_signal(signal.SIGCONT)
                p.kill()
                p.wait()
        self.assertNotEqual(p.returncode, 0)
        self.assertRegex(err.decode(), rf"yoke: error: .*rank {victim} on host \S+ \(pid {pids[victim]}\) has died")

    def test_a_rank_that_cannot_load(self):
        """One rank alone has a problem (here: too little memory to say yes): all end, and the rank is named."""
        sh = self.write("launch.sh", '#!/bin/sh\nif [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then shift 2; m=' +
                        f'{self.tmp}/broken; else m={LLAMA}; shift 2; fi\nexec {YOKE} run -m "$m" "$@"\n')
        sh.chmod(0o755)
        folder = self.copy_model(name="broken")
        file = folder / "model.safetensors"
        head, data = read_safetensors(file)
        del head["model.norm.weight"], data["model.norm.weight"]
        write_safetensors(file, head, data)
        began = time.monotonic()
        p = subprocess.run([*mpirun(2), str(sh), "-m", "x", "-p", "x", "-n", "2", "--tp", "2"], stdin=subprocess.DEVNULL,
                           capture_output=True, env=ENV, timeout=TIMEOUT)
        self.assertNotEqual(p.returncode, 0)
        self.assertLess(time.monotonic() - began, 15)
        self.assertRegex(p.stderr.decode(), r"rank 1: .*model\.norm\.weight")


if __name__ == "__main__":
    main()
