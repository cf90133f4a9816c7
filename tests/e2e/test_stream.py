"""What is seen on the pipe while an answer is made: whole characters, as soon as they are certain."""
import codecs

from harness import *


def chunks(*args):
    """What each write() to standard output brought, and when it was read. The pipe is in packet mode: one read takes
    one write, however late the reader is."""
    r, w = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    p = start(*args, stdout=w)
    os.close(w)
    got = []
    while data := os.read(r, 65536):
        got.append((time.monotonic(), data))
    os.close(r)
    err = p.stderr.read()
    p.stderr.close()
    return got, p.wait(), err.decode()


class Stream(Case):
    WILD = ("--temperature", 3, "--top-p", 1, "--top-k", 0, "--ignore-eos")

    def test_whole_characters(self):
        """Random bytes for tokens: every piece that arrives is UTF-8 by itself, and all of it is what a batch says."""
        for seed in range(12):
            for model in (LLAMA, QWEN):
                args = ("run", "-m", model, "-p", "é 日本", "-n", 80, "--seed", seed, *self.WILD)
                got, code, err = chunks(*args)
                with self.subTest(seed=seed, model=model.name):
                    self.assertEqual((code, err), (0, ""))
                    for _, data in got:
                        codecs.decode(data, "utf-8", "strict")
                    whole = b"".join(d for _, d in got).decode()
                    out = self.tmp / "o.jsonl"
                    self.run_ok(*args, "-o", out)
                    self.assertEqual(whole, json.loads(out.read_text())["text"] + "\n")

    def test_characters_of_several_tokens(self):
        """The stream above does hold characters that are spelt by several tokens, and broken ones."""
        seen = ""
        for seed in range(6):
            r = self.run_ok("run", "-m", LLAMA, "-p", "é", "-n", 200, "--seed", seed, *self.WILD)
            seen += r.out
        self.assertIn("\ufffd", seen)
        self.assertTrue(any(ord(c) > 127 and c != "\ufffd" for c in seen))

    def test_text_comes_while_it_is_made(self):
        """Recomputing everything for each token is slow enough to watch: pieces come from begin to end."""
        began = time.monotonic()
        got, code, _ = chunks("run", "-m", LLAMA, "-p", "The cat", "-n", 200, "--use-past", "False", "--ignore-eos",
                              "-t", 1, "--seed", 1)
        self.assertEqual(code, 0)
        took, first, last = time.monotonic() - began, got[0][0] - began, got[-1][0] - began
        self.assertGreater(len(got), 20)
        self.assertLess(first, 0.6 * took)
        self.assertGreater(last, first)

    def test_a_character_is_not_late(self):
        """After n tokens, all that is certain of n tokens' text has been written: the answer cut off at n tokens, but
        for a character that is not whole yet (which then shows as U+FFFD at its end)."""
        args = ("run", "-m", LLAMA, "-p", "Tell me", "--seed", 5, *self.WILD)
        n = 30
        got, _, _ = chunks(*args, "-n", n)
        written, whole = set(), ""
        for _, data in got:
            whole += data.decode()
            written.add(whole.rstrip("\ufffd"))
        self.assertGreater(len(got), n // 2)
        for i in range(1, n):
            cut = self.run_ok(*args, "-n", i).out[:-1]
            certain = os.path.commonprefix([cut, whole]).rstrip("\ufffd")
            self.assertIn(certain, written | {""}, f"after {i} tokens")


if __name__ == "__main__":
    main()
