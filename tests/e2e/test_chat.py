"""A conversation at a terminal: history, commands, Ctrl-C, Ctrl-D; and what a terminal alone sees (progress)."""
import fcntl
import pty
import select
import termios

from harness import *

GREEDY = ("--greedy", "--repetition-penalty", "1")


class Terminal:
    """The program with a pseudo-terminal for everything."""

    def __init__(self, *args, echo=False, **kw):
        self.master, slave = pty.openpty()
        attr = termios.tcgetattr(slave)
        if not echo:
            attr[3] &= ~termios.ECHO
        attr[1] &= ~termios.OPOST  # newlines come as written
        termios.tcsetattr(slave, termios.TCSANOW, attr)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        env = {**ENV, "TERM": "xterm"}
        self.p = start(*args, stdin=slave, stdout=kw.get("stdout", slave), stderr=slave, preexec_fn=own_terminal,
                       env=env)
        os.close(slave)
        self.seen = b""  # all of it
        self.at = 0      # what has been waited for

    def wait_for(self, text, timeout=TIMEOUT):
        """Reads until text comes, and returns what was before it."""
        text = text.encode() if isinstance(text, str) else text
        end = time.monotonic() + timeout
        while (found := self.seen.find(text, self.at)) < 0:
            if not self.read(end - time.monotonic()):
                raise AssertionError(f"no {text!r} in {self.seen[self.at:]!r}; before: {self.seen[:self.at]!r}")
        before, self.at = self.seen[self.at:found], found + len(text)
        return before.decode("utf-8", "replace")

    def read(self, timeout):
        if timeout <= 0 or not select.select([self.master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other side has closed
            return False
        self.seen += data
        return bool(data)

    def type(self, text):
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def ask(self, text):
        """One entry, and what is said until the next prompt."""
        self.type(text + "\n")
        return self.wait_for("\n> ")

    def end(self):
        while self.read(TIMEOUT):
            pass
        os.close(self.master)
        return self.p.wait(TIMEOUT)

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()


class Conversation(Case):
    def open(self, *args, model=LLAMA):
        t = Terminal("run", "-m", model, *args)
        self.addCleanup(t.kill)
        t.wait_for("> ")
        return t

    def leave(self, t):
        t.type(b"\x04")
        self.assertEqual(t.end(), 0)

    def test_history(self):
        """Each answer is the oracle's for the conversation so far."""
        for model in (LLAMA, QWEN):
            for c in ORACLE[model.name]["conversation"]:
                args = ("--system", c["system"]) if c["system"] else ()
                t = self.open("-n", c["n"], *GREEDY, *args, model=model)
                for turn in c["turns"]:
                    self.assertEqual(t.ask(turn["user"]), turn["text"])
                self.leave(t)

    def test_reset(self):
        c = ORACLE["llama-gqa"]["conversation"][0]
        t = self.open("-n", c["n"], *GREEDY)
        first, second = c["turns"][:2]
        self.assertEqual(t.ask(first["user"]), first["text"])
        t.type("/reset\n")
        t.wait_for("> ")
        self.assertEqual(t.ask(first["user"]), first["text"])
        self.assertEqual(t.ask(second["user"]), second["text"])
        self.leave(t)

    def test_system(self):
        """/system starts anew with a system message."""
        plain, brief = ORACLE["llama-gqa"]["conversation"]
        t = self.open("-n", brief["n"], *GREEDY)
        self.assertEqual(t.ask(plain["turns"][0]["user"]), plain["turns"][0]["text"])
        t.type(f"/system {brief['system']}\n")
        t.wait_for("> ")
        for turn in brief["turns"]:
            self.assertEqual(t.ask(turn["user"]), turn["text"])
        self.leave(t)

    def test_help_and_exit(self):
        t = self.open("-n", 4)
        self.assertRegex(t.seen.decode(), r"llama-gqa.*512.*/help")
        t.type("/help\n")
        said = t.wait_for("\n> ")
        for word in ("/reset", "/system", "/exit", "Ctrl-D", "Ctrl-C"):
            self.assertIn(word, said)
        t.type("/exit\n")
        self.assertEqual(t.end(), 0)

    def test_an_unknown_command_is_no_question(self):
        """A typing error in a command is said, not sent to the model."""
        t = self.open("-n", 4)
        t.type("/rest\n")
        said = t.wait_for("> ")
        self.assertIn("/rest", said)
        self.assertIn("/help", said)
        self.leave(t)

    def test_ctrl_c_stops_the_answer(self):
        """... and keeps the session: what was said so far is part of it."""
        t = self.open("-n", 450, "--ignore-eos", "--use-past", "False", "-t", 1, "--seed", 3)
        t.type("Tell me everything\n")
        while len(t.seen) - t.at < 40:
            self.assertTrue(t.read(TIMEOUT))
        t.type(b"\x03")
        said = t.wait_for("\n> ")
        self.assertLess(len(said), 450)
        t.type("/reset\n")
        t.wait_for("> ")
        t.type("Again\n")
        while len(t.seen) - t.at < 20:
            self.assertTrue(t.read(TIMEOUT))
        t.type(b"\x03")
        t.wait_for("\n> ")
        self.leave(t)

    def test_ctrl_c_at_the_prompt(self):
        """A half-typed line is dropped and the session goes on; so it does on an empty line, with a hint."""
        c = ORACLE["llama-gqa"]["conversation"][0]
        t = self.open("-n", c["n"], *GREEDY)
        t.type("half a li")
        time.sleep(0.1)
        t.type(b"\x03")
        t.wait_for("> ")
        self.assertEqual(t.ask(c["turns"][0]["user"]), c["turns"][0]["text"])
        t.type(b"\x03")
        self.assertIn("Ctrl-D", t.wait_for("> "))
        self.assertEqual(t.ask(c["turns"][1]["user"]), c["turns"][1]["text"])
        self.leave(t)

    def test_no_ctrl_c_is_lost(self):
        """Also one that comes between the prompt and the wait for a line (the moment after "> " is written)."""
        t = self.open("-n", 4, *GREEDY)
        for i in range(200):
            t.type(b"\x03")
            self.assertIn("Ctrl-D", t.wait_for("> "), i)
        self.leave(t)

    def test_a_line_that_goes_on(self):
        """A backslash at the end joins lines: one message with a newline in it."""
        a = self.open("-n", 8, *GREEDY)
        a.type("First line\\\n")
        a.wait_for(". ")
        said = a.ask("second line")
        self.leave(a)
        path = self.write("p.jsonl", {"messages": [{"role": "user", "content": "First line\nsecond line"}]})
        r = self.run_ok("run", "-m", LLAMA, "--prompts-file", path, "-n", 8, *GREEDY)
        self.assertEqual(said, r.lines()[0]["text"])

    def test_a_full_conversation(self):
        """What does not fit the context is said; the session goes on, and /reset helps."""
        c = ORACLE["llama-gqa"]["conversation"][0]
        t = self.open("-n", c["n"], *GREEDY)
        t.type("word " * 550 + "\n")
        said = t.wait_for("> ")
        self.assertIn("512", said)
        self.assertIn("/reset", said)
        self.assertEqual(t.ask(c["turns"][0]["user"]), c["turns"][0]["text"])
        self.leave(t)

    def test_split(self):
        c = ORACLE["llama-gqa"]["conversation"][1]
        t = self.open("-n", c["n"], *GREEDY, "--system", c["system"], "--tp", 2)
        for turn in c["turns"]:
            self.assertEqual(t.ask(turn["user"]), turn["text"])
        self.leave(t)

    def test_piped_conversation(self):
        """-i without a terminal: entries from a pipe, answers alone on standard output."""
        c = ORACLE["llama-gqa"]["conversation"][0]
        r = self.run_ok("run", "-m", LLAMA, "-i", "-n", c["n"], *GREEDY, stdin="".join(x["user"] + "\n" for x in c["turns"]))
        self.assertEqual(r.out, "".join(x["text"] + "\n" for x in c["turns"]))
        self.assertEqual(r.err, "")


class Once(Case):
    def test_ctrl_c_of_a_single_answer(self):
        """Ends with 130 and the text so far on standard output."""
        t = Terminal("run", "-m", LLAMA, "-p", "Tell me", "-n", 500, "--ignore-eos", "--use-past", "False", "-t", 1)
        self.addCleanup(t.kill)
        while b"\x1b" not in t.seen[-3:] and len(t.seen) < 60:
            self.assertTrue(t.read(TIMEOUT))
        t.type(b"\x03")
        self.assertEqual(t.end(), INTERRUPTED)
        self.assertIn(b"interrupted", t.seen)

    def test_ctrl_c_of_a_batch(self):
        """What is finished has been written; exit code 130."""
        out = self.tmp / "out.jsonl"
        prompts = self.write("p.txt", "".join(f"prompt {i}\n" for i in range(200)))
        t = Terminal("run", "-m", LLAMA, "--prompts-file", prompts, "-o", out, "-n", 200, "--ignore-eos", "--batch-size", 2,
                     "--use-past", "False", "-t", 1)
        self.addCleanup(t.kill)
        end = time.monotonic() + TIMEOUT
        while not (out.exists() and out.stat().st_size) and time.monotonic() < end:
            t.read(0.02)
        t.type(b"\x03")
        self.assertEqual(t.end(), INTERRUPTED)
        lines = [json.loads(x) for x in out.read_text().splitlines()]
        self.assertTrue(0 < len(lines) < 200)
        self.assertEqual([x["index"] for x in lines], list(range(len(lines))))

    def test_terminated(self):
        """kill ends a run, and no exit code says that all is well."""
        p = start("run", "-m", LLAMA, "-p", "Tell me", "-n", 500, "--ignore-eos", "--use-past", "False", "-t", 1)
        p.stdout.read(1)
        p.terminate()
        p.communicate(timeout=TIMEOUT)
        self.assertNotEqual(p.returncode, 0)


class Progress(Case):
    def test_only_on_a_terminal(self):
        prompts = self.write("p.txt", "".join(f"prompt {i}\n" for i in range(40)))
        args = ("run", "-m", LLAMA, "--prompts-file", prompts, "-n", 40, "--batch-size", 4, "--ignore-eos")
        r = self.run_ok(*args)
        self.assertEqual(r.err, "")
        t = Terminal(*args, "-o", self.tmp / "o.jsonl")
        self.addCleanup(t.kill)
        self.assertEqual(t.end(), 0)
        self.assertRegex(t.seen.decode(), r"\ranswering .*/40 prompts")
        self.assertTrue(t.seen.endswith(b"\r\x1b[K"), t.seen[-80:])  # and is wiped away

    def test_results_stay_clean(self):
        """With results on standard output and the bar on the terminal, the results are lines of JSON alone."""
        prompts = self.write("p.txt", "".join(f"prompt {i}\n" for i in range(20)))
        out = self.tmp / "results"
        with open(out, "wb") as f:
            t = Terminal("run", "-m", LLAMA, "--prompts-file", prompts, "-n", 20, stdout=f)
            self.addCleanup(t.kill)
            self.assertEqual(t.end(), 0)
        self.assertEqual(len([json.loads(x) for x in out.read_text().splitlines()]), 20)


if __name__ == "__main__":
    main()
