"""yoke launch and msrun_launcher.sh: ranks as processes; what is said when one of them fails."""
from harness import *

PROMPT = ["-p", "hello", "-n", "8"]
MSRUN = ROOT / "scripts" / "msrun_launcher.sh"
ENV.update(NO_LEAK_CHECK)  # yoke launch is what starts mpirun
CORES = sorted(os.sched_getaffinity(0))


def run_args(tp=1, model=LLAMA):
    return ["run", "-m", model, *PROMPT, *(["--tp", tp] if tp > 1 else [])]


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def descendants(pid):
    parents = {int(p.name): parent_of(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()}
    found, new = set(), {pid}
    while new:
        new = {c for c, p in parents.items() if p in new} - found
        found |= new
    return found


def ranks_of(launcher):
    """{rank: pid} of the commands, not their supervisors."""
    ranks = {}
    for pid in descendants(launcher):
        if command_of(pid)[:2] == ["yoke", "run"]:
            env = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            for v in env:
                if v.startswith(b"OMPI_COMM_WORLD_RANK="):
                    ranks[int(v.partition(b"=")[2])] = pid
    return ranks


def alive(pids):
    return [p for p in pids if command_of(p)]


def with_mpi():
    if not shutil.which("mpirun"):
        return False
    r = yoke("run", "-m", LLAMA, "-p", "x", "-n", 1, "--tp", 2, launcher=("mpirun", "--oversubscribe", "-n", "2"))
    return "built without MPI" not in r.err


class Launch(Case):
    @classmethod
    def setUpClass(cls):
        if not with_mpi():
            raise unittest.SkipTest("no mpirun, or a yoke without MPI")

    def line(self, args, options):
        return ("launch", "--log-dir", self.tmp / "logs", *options, "--", *args)

    def launch(self, *args, options=(), **kw):
        return yoke(*self.line(args, options), **kw)

    def refused(self, code, *words, options=(), args=None, **kw):
        return self.run_fails(code, *words, args=self.line(run_args(2) if args is None else args, options), **kw)

    def test_same_text_as_a_direct_run(self):
        want = self.run_ok(*run_args()).raw_out
        for n in (1, 2, 4):
            with self.subTest(n=n):
                r = self.launch(*run_args(n), options=["-n", n])
                self.assertEqual((r.code, r.raw_out), (0, want), r)
                self.assertNotIn("error", r.err, r)
                logs = sorted(p.name for p in (self.tmp / "logs").glob("*"))
                self.assertEqual(logs, [f"rank_{i}.log" for i in range(n)] if n > 1 else [], r)
                self.assertEqual("started by mpirun" in r.err, n > 1, r)

    def test_fewer_ranks_leave_no_old_logs(self):
        for n in (4, 2):
            self.assertEqual(self.launch(*run_args(n)).code, 0)
        self.assertEqual(len(list((self.tmp / "logs").glob("rank_*.log"))), 2)

    def test_the_degrees_say_how_many(self):
        r = self.launch(*run_args(2))
        self.assertEqual(r.code, 0, r)
        self.assertIn("yoke: 2 ranks on this host", r.err, r)

    def test_logits(self):
        args = ["logits", "-m", LLAMA, "-p", "hello", "--tp", 2]
        self.assertEqual(self.launch(*args).raw_out, self.run_ok(*args).raw_out)

    def test_prompts_on_standard_input(self):
        text = "".join(f"prompt {i}\n" for i in range(50))
        args = ["run", "-m", LLAMA, "--tp", 2, "-n", 4, "--prompts-file", "-"]
        r = self.launch(*args, stdin=text)
        self.assertEqual(r.code, 0, r)
        self.assertEqual(r.raw_out, self.run_ok(*args, stdin=text).raw_out)
        self.assertEqual(len(r.lines()), 50)

    def test_statistics_name_the_transport(self):
        r = self.launch(*run_args(2), "--stats")
        self.assertRegex(r.err, r"yoke: 2 ranks talk over shared memory \(mpi/shm\), host \S+; rank 0: ")
        r = self.launch(*run_args(2), "--stats", env={"YOKE_COMM": "net"})
        self.assertIn("(mpi/net)", r.err)

    # -- cores

    @unittest.skipIf(len(CORES) < 2, "needs two cores")
    def test_ranks_get_cores_of_their_own(self):
        p, _ = self.start_long("--tp", 2, "--bind", "cores")
        sets = {}
        for rank, pid in ranks_of(p.pid).items():
            sets[rank] = os.sched_getaffinity(pid)
        self.end(p)
        self.assertEqual(len(sets), 2)
        self.assertFalse(sets[0] & sets[1])
        self.assertEqual(len(sets[0] | sets[1]), len(CORES) if len(CORES) % 2 == 0 else len(sets[0] | sets[1]))

    def test_one_core_for_all(self):
        for n in (1, 2, 4):
            r = self.launch(*run_args(n), "--stats", "--bind", "cores", launcher=["taskset", "-c", CORES[0]])
            self.assertEqual(r.code, 0, r)
            self.assertEqual("share 1 core:" in r.err, n > 1, r)
            self.assertIn("rank 0: 1 thread on cores " + (str(CORES[0]) if n == 1 else "any"), r.err, r)

    def test_bind_none(self):
        for args in (run_args(2), ["launch", "--log-dir", self.tmp / "logs", "--", *run_args(2)]):
            r = yoke(*args, "--stats", "--bind", "none")
            self.assertEqual(r.code, 0, r)
            self.assertIn("on cores any", r.err, r)

    # -- what is wrong at the start

    def test_refused_before_anything_starts(self):
        self.refused(USAGE, "nothing to launch", args=[])
        self.refused(USAGE, "'yoke tokenize'", args=["tokenize", "-m", LLAMA, "-p", "x"])
        self.refused(USAGE, "'yoke launch'", args=["launch", "-n", 2])
        self.refused(USAGE, "unknown option --nonsense", args=[*run_args(2), "--nonsense"])
        self.refused(SPLIT, "-n 4", "over 2 ranks", "tp 2", options=["-n", 4])
        self.refused(SPLIT, "--ranks 2", "over 1 rank ", options=["--ranks", 2], args=run_args())
        self.refused(USAGE, "-n should be an integer", options=["-n", 0])
        self.refused(USAGE, "did you mean --log-dir", options=["--log-dri", "x"])
        self.refused(USAGE, "--hosts", "--hostfile", options=["--hosts", "a", "--hostfile", "b"])
        self.refused(USAGE, "\"-oProxyCommand=x\"", options=["--hosts=-oProxyCommand=x"])
        self.refused(USAGE, "\"a b\"", options=["--hosts", "a b"])
        self.refused(USAGE, "\"a:0\"", options=["--hosts", "b,a:0"])
        self.refused(USAGE, "take 1 ranks", "there are 2", options=["--hosts", "a:1"])
        self.refused(UNREADABLE, "cannot read /nonexistent", options=["--hostfile", "/nonexistent"])
        hosts = self.write("hosts", "# nothing\n\n")
        self.refused(USAGE, "names no host", options=["--hostfile", hosts])
        hosts = self.write("hosts", "a slots=2\nb slot=2 # x\n")
        self.refused(USAGE, f"{hosts}:2: \"slot=2\"", options=["--hostfile", hosts])
        self.write("file", "")
        r = yoke("launch", "--log-dir", self.tmp / "file", *run_args(2))
        self.assertEqual(r.code, UNREADABLE, r)
        self.assertIn("cannot make the folder", r.err)
        self.assertFalse((self.tmp / "logs").exists())

    def test_missing_programs(self):
        self.refused(127, "mpirun", "openmpi-bin", env={"PATH": str(self.tmp)})
        (self.tmp / "mpirun").symlink_to(shutil.which("mpirun"))
        self.refused(127, "ssh", "openssh-client", options=["--hosts", "elsewhere.invalid"],
                     env={"PATH": str(self.tmp)})

    def test_unknown_host(self):
        r = self.refused(FAILED, "mpirun could not do it", options=["--hosts", "elsewhere.invalid"])
        self.assertIn("elsewhere.invalid", r.err.replace("yoke: 2 ranks on elsewhere.invalid", ""), r)

    # -- what mpirun is told, and what is made of its words: a script in its place

    def with_script(self, script, *options, **env):
        """The launcher's result and the arguments that the script got in mpirun's place."""
        mpirun = self.write("bin/mpirun", f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{self.tmp}/arguments\n{script}\n")
        mpirun.chmod(0o755)
        r = self.launch(*run_args(4), options=options, env={"PATH": f"{mpirun.parent}:/usr/bin:/bin", **env})
        return r, (self.tmp / "arguments").read_text().splitlines()

    def test_remote_hosts_are_watched(self):
        keepalive = {"oob_tcp_keepalive_time": "1", "oob_tcp_keepalive_intvl": "1", "oob_tcp_keepalive_probes": "5"}
        ssh = "-o BatchMode=yes -o ServerAliveInterval=1 -o ServerAliveCountMax=6"
        hosts = ("--hosts", "n1,n2")
        agent = {"OMPI_MCA_plm_rsh_agent": "other"}
        for options, env, want in (((), {}, {}),
                                   (("--hosts", "localhost"), {}, {}),
                                   (hosts, agent, keepalive),
                                   (hosts, {"OMPI_MCA_plm_rsh_args": "-v"}, keepalive),
                                   (hosts, {"SLURM_JOB_ID": "1"}, {**keepalive, "plm_rsh_args": ssh}),
                                   ((), {"SLURM_JOB_ID": "1"}, keepalive),
                                   ((*hosts, "--mpirun-args", "--mca oob_tcp_keepalive_time 9 --mca plm_rsh_args -v"),
                                    {"OMPI_MCA_oob_tcp_keepalive_probes": "7"}, {"oob_tcp_keepalive_intvl": "1"})):
            with self.subTest(options=options, env=env):
                r, args = self.with_script("exit 0", *options, **env)
                self.assertEqual(r.code, 0, r)
                at = [i for i, a in enumerate(args) if a == "--mca" and args[i + 2] not in ("9", "-v")]
                self.assertEqual({args[i + 1]: args[i + 2] for i in at}, want, args)

    def test_an_mpirun_that_does_not_end_is_ended(self):
        report = r"\036%d 77 %d 0 n%d\037yoke: error: rank 3 on host n2 is gone, says rank %d\037\n"
        hosts = ("--hosts", "n1,n2", "--mpirun-args", "--mca plm_rsh_agent other")
        began = time.monotonic()
        r, _ = self.with_script(f"printf '{report % (1, 6, 1, 1)}' >&2\ntrap '' TERM INT\nwhile :; do sleep 1; done", *hosts)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(r.code, 6, r)
        self.assertRegex(r.err.splitlines()[-1], "^yoke: error: rank 3 on host n2 is gone, says rank 1; logs are in ")

    def test_a_host_that_only_mpirun_misses(self):
        dashes = "-" * 74
        said = (f"[n0:17] plm:rsh: Warning: setpgid(19,19) failed in parent with errno=Permission denied(13)\n{dashes}\nORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[3,0],0] on node n0\n"
                f"  Remote daemon: [[3,0],2] on node n2\n\nThis is usually due to\n{dashes}\n")
        self.write("said", said)
        r, _ = self.with_script(f"cat {self.tmp}/said >&2\nexit 1", "--hosts", "n1:2,n2,n3:1", "--mpirun-args",
                                "--mca plm_rsh_agent other")
        self.assertEqual(r.code, 6, r)
        self.assertIn("HNP daemon", r.err)
        self.assertNotIn("setpgid", r.err)
        self.assertIn("yoke: error: host n2 is lost, with rank 2: ", r.err.splitlines()[-1])

    def test_one_rank_just_runs_without_mpirun(self):
        r = yoke("launch", "-n", 1, *run_args(2), env={"PATH": str(self.tmp)})
        self.assertEqual(r.raw_out, self.run_ok(*run_args()).raw_out, r)

    # -- what goes wrong later

    def start_long(self, *args, options=(), **kw):
        """A run that lasts; returns once it answers."""
        prompts = self.write("many", "".join(f"prompt {i}\n" for i in range(200000)))
        out = self.tmp / "answers"
        out.unlink(missing_ok=True)
        p = start("launch", "--log-dir", self.tmp / "logs", *options, "--", "run", "-m", LLAMA, "-n", 40, "--ignore-eos",
                  "--prompts-file", prompts, "-o", out, *args, **kw)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.kill)
        end = time.monotonic() + TIMEOUT
        while not (out.exists() and out.stat().st_size):
            self.assertIsNone(p.poll(), "ended early")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return p, out

    def end(self, p, signal_to=None, sig=signal.SIGTERM):
        """Sends a signal; returns the exit code, the time to the end, and standard error. No process is left."""
        family = descendants(p.pid)
        began = time.monotonic()
        os.kill(signal_to or p.pid, sig)
        _, err = p.communicate(timeout=30)
        took = time.monotonic() - began
        while alive(family) and time.monotonic() - began < 10:
            time.sleep(0.05)
        self.assertEqual(alive(family), [], "processes left behind")
        return p.returncode, took, err.decode()

    def test_a_killed_rank(self):
        config = self.write("config.yaml", "no_such_key: 1\n")  # a warning: every rank's log has a line
        for rank in (1, 0):
            with self.subTest(rank=rank):
                p, _ = self.start_long("--tp", 2, "--config", config)
                pid = ranks_of(p.pid)[rank]
                code, took, err = self.end(p, pid, signal.SIGKILL)
                self.assertEqual(code, 137, err)
                self.assertLess(took, 10)
                self.assertRegex(err, rf"yoke: error: rank {rank} on host \S+ \(pid {pid}\) was killed by signal 9")
                self.assertNotIn("mpirun noticed", err)
                self.assertNotIn("------", err)
                lines = [x for x in err.splitlines() if "unknown key no_such_key" in x]
                self.assertEqual(len(lines), 1 + (rank != 0), err)  # rank 0's are shown as they come
                if rank:
                    self.assertIn(f"the last lines of rank {rank} on host ", err)
                    self.assertTrue(lines[1].startswith("  | yoke: warning: "), err)
                log = (self.tmp / "logs" / f"rank_{rank}.log").read_text()
                self.assertIn("unknown key no_such_key", log)

    def test_a_crashed_rank(self):
        p, _ = self.start_long("--tp", 2)
        code, took, err = self.end(p, ranks_of(p.pid)[1], signal.SIGABRT)
        self.assertEqual(code, 134, err)
        self.assertIn("rank 1 on host", err)

    def test_an_error_of_all_ranks_is_said_once(self):
        r = self.launch("run", "-m", self.tmp / "nowhere", *PROMPT, "--tp", 2)
        self.assertEqual((r.code, r.out), (UNREADABLE, ""), r)
        self.assertRegex(r.err, r"yoke: error: rank [01] on host \S+ \(pid \d+\) ended with code 3")
        self.assertIn("nowhere", r.err, r)
        self.assertNotIn("Primary job", r.err, r)

    def test_an_error_that_the_ranks_find_together(self):
        model = self.copy_model()
        self.edit_json(model / "config.json", num_key_value_heads=1)  # weights do not fit
        want = yoke(*run_args(2, model))
        r = self.launch(*run_args(2, model))
        self.assertEqual(r.code, want.code, r)
        sentence = want.err.splitlines()[-1].replace("yoke: error: ", "")
        self.assertIn(sentence, r.err)

    def test_prompts_that_fail_end_the_run_in_good_order(self):
        prompts = self.write("p.jsonl", '{"prompt": "a"}\n' + json.dumps({"prompt": "a " * 5000}) + "\n")
        args = ["run", "-m", LLAMA, "-n", 4, "--prompts-file", prompts, "--tp", 2]
        r = self.launch(*args)
        self.assertEqual(r.code, LIMIT, r)
        self.assertEqual(r.raw_out, yoke(*args).raw_out)
        self.assertIn("rank 0 on host", r.err)
        self.assertNotIn("died", r.err, r)

    def test_interrupted(self):
        p, out = self.start_long("--tp", 2)
        code, took, err = self.end(p, sig=signal.SIGINT)
        self.assertEqual(code, INTERRUPTED, err)
        self.assertLess(took, 10)
        self.assertEqual(err.count("interrupted"), 1, err)
        for line in out.read_text().splitlines():  # whole answers
            self.assertEqual(json.loads(line)["completion_tokens"], 40)

    def test_told_to_end(self):
        for sig in (signal.SIGTERM, signal.SIGHUP):
            p, _ = self.start_long("--tp", 2)
            code, took, err = self.end(p, sig=sig)
            self.assertEqual(code, 128 + sig, err)
            self.assertLess(took, 10)

    def test_the_launcher_itself_is_killed(self):
        p, _ = self.start_long("--tp", 2)
        code, took, err = self.end(p, sig=signal.SIGKILL)
        self.assertEqual(code, -9)

    def test_mpirun_is_killed(self):
        p, _ = self.start_long("--tp", 2)
        mpirun = [x for x in descendants(p.pid) if command_of(x)[0].endswith("mpirun")]
        code, took, err = self.end(p, mpirun[0], signal.SIGKILL)
        self.assertNotEqual(code, 0, err)
        self.assertLess(took, 10)


class Hosts(Launch):
    """Two hosts on this machine: mpirun reaches them with a shell that changes the host's name instead of ssh."""

    def setUp(self):
        super().setUp()
        if subprocess.run(["unshare", "-u", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("may not make namespaces")
        agent = self.write("agent", '#!/bin/sh\nhost=$1\nshift\nexec unshare -u sh -c "hostname $host; $*"\n')
        agent.chmod(0o755)
        self.env = {"OMPI_MCA_plm_rsh_agent": str(agent)}

    def test_neighbours_on_a_host(self):
        want = self.run_ok(*run_args()).raw_out
        hosts = self.write("hosts", "n1 slots=3 max_slots=3\nn2 # the other one\n")
        for options, where, warned in ((["--hosts", "n1,n2"], "n1 (ranks 0-1), n2 (ranks 2-3)", True),
                                       (["--hosts", "n2:1,n1"], "n2 (rank 0), n1 (ranks 1-3)", True),
                                       (["--hostfile", hosts], "n1 (ranks 0-2), n2 (rank 3)", True),
                                       (["--hosts", "n1:4,n2"], None, False)):
            with self.subTest(options=options):
                r = self.launch(*run_args(4), options=options, env=self.env)
                self.assertEqual((r.code, r.raw_out), (0, want), r)
                self.assertEqual("goes over the network" in r.err, warned, r)
                if where:
                    self.assertIn("(mpi/net), hosts " + where, r.err, r)
                    self.assertRegex(r.err, r"each token waits for \d+ collectives, in which each rank puts in [\d.]+ KiB")

    def test_a_killed_rank_and_its_host(self):
        config = self.write("config.yaml", "no_such_key: 1\n")
        p, _ = self.start_long("--tp", 2, "--config", config, options=["--hosts", "n1,n2"], env={**ENV, **self.env})
        code, took, err = self.end(p, ranks_of(p.pid)[1], signal.SIGKILL)
        self.assertEqual(code, 137, err)
        self.assertLess(took, 10)
        self.assertIn("yoke: error: rank 1 on host n2 (pid ", err)
        self.assertRegex(err, r"the last lines of rank 1 on host n2 .*\n  \| yoke: warning: .*no_such_key")


for name in [n for n in dir(Launch) if n.startswith("test_") and n not in Hosts.__dict__]:
    setattr(Hosts, name, None)  # once is enough


class Msrun(Case):
    setUpClass = Launch.setUpClass

    def msrun(self, *args, **env):
        env = {**ENV, "YOKE": YOKE, **env}
        r = subprocess.run(["sh", MSRUN, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, env=env,
                           cwd=self.tmp, timeout=TIMEOUT)
        return Result(args, r.returncode, r.stdout, r.stderr)

    def command(self, tp, more=""):
        self.write("predict.yaml", f"run_mode: predict\nuse_parallel: True\nload_checkpoint: {LLAMA}\n"
                                   f"pretrained_model_dir: {LLAMA}\nparallel_config:\n  model_parallel: {tp}\n")
        return ("run_mindformer.py --config predict.yaml --run_mode predict --max_new_tokens 8 "
                f"--predict_data 'hello world' {more}")

    def want(self):
        return self.run_ok("run", "-m", LLAMA, "-p", "hello world", "-n", 8).raw_out

    def test_forms(self):
        want = self.want()
        for args, log in (((2,), "output/msrun_log"), ((2, 8118, "six", "False", 300), "six"),
                          ((2, 2, "127.0.0.1", 8118, 0, "nine", "True", 300), "nine")):
            with self.subTest(args=args):
                r = self.msrun(self.command(2), *args)
                self.assertEqual((r.code, r.raw_out), (0, want), r)
                self.assertTrue((self.tmp / log / "rank_1.log").exists())

    def test_log_suffix(self):
        self.assertEqual(self.msrun(self.command(2), 2, MF_LOG_SUFFIX="a b").code, 0)
        self.assertTrue((self.tmp / "output" / "msrun_log_a b" / "rank_0.log").exists())

    def test_eight_workers_by_default(self):
        r = self.msrun(self.command(2))
        self.assertEqual(r.code, SPLIT, r)
        self.assertIn("-n 8", r.err)

    def test_one_worker_just_runs(self):
        for command in (self.command(1), "python " + self.command(1), "/opt/mindformers/" + self.command(1)):
            r = self.msrun(command, 1)
            self.assertEqual((r.code, r.raw_out, r.err), (0, self.want(), ""), r)
        self.assertFalse((self.tmp / "output").exists())

    def test_quotes_in_the_command(self):
        r = self.msrun(self.command(1, "--stop 'a \"b\" $c'"), 1)
        self.assertEqual((r.code, r.raw_out), (0, self.want()), r)

    def test_failure(self):
        r = self.msrun(self.command(2, "--load_checkpoint ./nowhere"), 2)
        self.assertEqual(r.code, UNREADABLE, r)
        self.assertIn("rank ", r.err)

    def test_usage(self):
        for args, words in (((), "0 arguments"), (("a", 2, 3), "3 arguments"), (("a", "two"), "WORKER_NUM"),
                            (("a", "-2"), "WORKER_NUM"), (("a", 0), "at least 1"), (("a", "2", "p", "l", "J", "1"), "MASTER_PORT"),
                            (("a", 2, 1, "l", "J", "x"), "CLUSTER_TIME_OUT"), (("train.py --x", 2), "train.py"), (("", 2), "run_mindformer.py"),
                            (("a", 4, 3, "h", 1, 0, "l", "J", 1), "multiple"), (("a", 4, 2, "h", 1, 2, "l", "J", 1), "NODE_RANK 2"),
                            (("a", 4, 2, "h", 1, "x", "l", "J", 1), "NODE_RANK")):
            with self.subTest(args=args):
                r = self.msrun(*args)
                self.assertEqual((r.code, r.out), (1, ""), r)
                self.assertIn(words, r.err)
                self.assertIn("WORKER_NUM LOCAL_WORKER MASTER_ADDR MASTER_PORT NODE_RANK", r.err)

    def test_several_nodes(self):
        form = (self.command(4), 4, 2, "10.0.0.1", 8118)
        r = self.msrun(*form, 1, "logs", "False", 300)
        self.assertEqual(r.code, 0, r)
        self.assertIn("nothing to do on this node", r.out)
        r = self.msrun(*form, 0, "logs", "False", 300)
        self.assertEqual((r.code, r.out), (1, ""), r)
        self.assertIn("YOKE_HOSTS=10.0.0.1,", r.err)
        for env in ({"YOKE_HOSTS": "localhost:4"}, {"YOKE_HOSTFILE": str(self.write("hosts", "localhost\n"))}):
            r = self.msrun(*form, 0, "logs", "False", 300, **env)
            self.assertEqual((r.code, r.raw_out), (0, self.want()), r)

    def test_no_program(self):
        script = self.write("scripts/msrun_launcher.sh", MSRUN.read_text())
        r = subprocess.run(["sh", script, "run_mindformer.py", "1"], capture_output=True,
                           env={"PATH": "/usr/bin:/bin"}, timeout=TIMEOUT)
        self.assertEqual(r.returncode, 127 if not shutil.which("yoke", path="/usr/bin:/bin") else r.returncode)


if __name__ == "__main__":
    main()
