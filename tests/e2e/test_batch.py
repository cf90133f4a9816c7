"""yoke run with many prompts: JSON lines in input order, whatever the batch; one bad prompt spoils no other."""
from harness import *

GREEDY = ("--greedy", "--repetition-penalty", "1")
KEYS = ["index", "text", "prompt_tokens", "completion_tokens", "finish_reason"]


def plain_cases(model=LLAMA):
    o = ORACLE[model.name]
    return o["plain"] + [{**c, "n": 40} for c in o["ended"]]


class Files(Case):
    def check(self, lines, cases):
        self.assertEqual([x["index"] for x in lines], list(range(len(cases))))
        for x, c in zip(lines, cases):
            self.assertEqual(list(x), KEYS if "id" not in c else ["index", "id"] + KEYS[1:])
            self.assertEqual(x["text"], c["text"])
            self.assertEqual(x["completion_tokens"], len(c["ids"]))
            self.assertEqual(x["prompt_tokens"], c["prompt_tokens"])
            self.assertEqual(x["finish_reason"], "length" if "n" in c and len(c["ids"]) == c["n"] else "stop")

    def test_text_file(self):
        """A prompt a line; blank lines and CRLF do not matter; a BOM neither."""
        for model in (LLAMA, QWEN):
            cases = [{**c, "n": 24} for c in ORACLE[model.name]["plain"]]
            text = "\ufeff\n" + "\r\n  \n".join(c["prompt"] for c in cases)
            r = self.run_ok("run", "-m", model, "--prompts-file", self.write("p.txt", text), "-n", 24, *GREEDY)
            self.check(r.lines(), cases)
            self.assertEqual(r.err, "")

    def test_jsonl(self):
        """Prompts, messages and settings of their own, with ids of both kinds."""
        for model in (LLAMA, QWEN):
            cases, lines = [], []
            for i, c in enumerate(plain_cases(model)):
                cases.append({**c, "id": f"p{i}"})
                lines.append({"prompt": c["prompt"], "id": f"p{i}", "max_new_tokens": c["n"]})
            for i, c in enumerate(vectors(model)["chat"]):
                cases.append({"text": c["greedy_text"], "ids": c["greedy"], "prompt_tokens": len(c["ids"]),
                              "n": len(c["greedy"]), "id": i})
                lines.append({"messages": c["messages"], "id": i, "max_tokens": len(c["greedy"])})
            for t in [t for c in ORACLE[model.name]["conversation"] for t in self.turns(c)]:
                cases.append(t[0])
                lines.append(t[1])
            text = "".join(json.dumps(x) + "\n" for x in lines)
            r = self.run_ok("run", "-m", model, "--prompts-file", self.write("p.jsonl", text), *GREEDY)
            self.check(r.lines(), cases)

    def turns(self, conversation):
        """Each turn of a conversation as a line with its whole history."""
        messages = [{"role": "system", "content": conversation["system"]}] if conversation["system"] else []
        for t in conversation["turns"]:
            messages = messages + [{"role": "user", "content": t["user"]}]
            yield {**t, "n": conversation["n"]}, {"messages": messages, "max_new_tokens": conversation["n"]}
            messages = messages + [{"role": "assistant", "content": t["text"]}]

    def test_settings_of_a_line(self):
        c = ORACLE["llama-gqa"]["plain"][1]
        e = ORACLE["llama-gqa"]["ended"][0]
        stop = c["text"][5:7]
        lines = [{"prompt": c["prompt"], "stop": [stop, "never"]},
                 {"prompt": c["prompt"], "stop": stop},
                 {"prompt": c["prompt"], "temperature": 3, "top_p": 1, "seed": 1},
                 {"prompt": c["prompt"], "temperature": 0},
                 {"prompt": e["prompt"], "ignore_eos": True, "max_new_tokens": len(e["ignore_eos_ids"])},
                 {"prompt": e["prompt"], "min_new_tokens": e["min_new_tokens"],
                  "max_new_tokens": len(e["ids"]) + 8},
                 {"prompt": c["prompt"], "eos_token_id": c["ids"][0]}]
        text = "\n".join(json.dumps(x) for x in lines)
        got = self.run_ok("run", "-m", LLAMA, "--prompts-file", self.write("p.jsonl", text), "-n", c["n"],
                          *GREEDY).lines()
        want = c["text"][:c["text"].index(stop)]
        self.assertEqual([got[0]["text"], got[1]["text"]], [want, want])
        self.assertEqual(got[0]["finish_reason"], "stop")
        self.assertNotEqual(got[2]["text"], c["text"])
        self.assertEqual(got[3]["text"], c["text"])
        self.assertEqual(got[4]["text"], e["ignore_eos_text"])
        self.assertEqual(got[5]["text"], e["min_new_text"])
        self.assertEqual((got[6]["completion_tokens"], got[6]["finish_reason"]), (1, "stop"))

    def test_chat_applies_to_prompts(self):
        for model in (LLAMA, QWEN):
            for system in (None, "Be brief."):
                chats = [c for c in vectors(model)["chat"]
                         if (c["messages"][0]["role"] == "system") == (system is not None)]
                lines = "".join(json.dumps({"prompt": c["messages"][-1]["content"]}) + "\n" for c in chats)
                args = ("--system", system) if system else ()
                r = self.run_ok("run", "-m", model, "--chat", "--prompts-file", "-", "--prompts-format", "jsonl", "-n", 24,
                                *args, *GREEDY, stdin=lines)
                self.assertEqual([x["text"] for x in r.lines()], [c["greedy_text"] for c in chats])

    def test_standard_input(self):
        cases = [{**c, "n": 24} for c in ORACLE["llama-gqa"]["plain"]]
        r = self.run_ok("run", "-m", LLAMA, "--prompts-file", "-", "-n", 24, *GREEDY,
                        stdin="".join(c["prompt"] + "\n" for c in cases))
        self.check(r.lines(), cases)

    def test_several_p(self):
        cases = [{**c, "n": 24} for c in ORACLE["llama-gqa"]["plain"]]
        r = self.run_ok("run", "-m", LLAMA, "-n", 24, *GREEDY, *[x for c in cases for x in ("-p", c["prompt"])])
        self.check(r.lines(), cases)

    def test_output_file(self):
        """-o FILE takes the results; standard output stays empty; an older file is replaced."""
        out = self.write("out.jsonl", "old\n" * 1000)
        cases = [{**c, "n": 24} for c in ORACLE["llama-gqa"]["plain"]]
        r = self.run_ok("run", "-m", LLAMA, "-n", 24, "-o", out, *GREEDY,
                        *[x for c in cases for x in ("-p", c["prompt"])])
        self.assertEqual(r.out, "")
        self.check([json.loads(x) for x in out.read_text().splitlines()], cases)


class Batches(Case):
    """The same ragged work in every order and size."""

    @classmethod
    def setUpClass(cls):
        cls.lines = []
        for i, c in enumerate(plain_cases() * 2):
            cls.lines.append({"prompt": c["prompt"] + " and" * (7 * i % 23), "max_new_tokens": 1 + 9 * i % 31})
        for i in range(6):
            cls.lines.append({"prompt": "and so on " * (i * i), "max_new_tokens": 20, "ignore_eos": True,
                              "temperature": 1.2, "seed": i} if i else {"prompt": "x", "max_new_tokens": 90})
        cls.text = "".join(json.dumps(x) + "\n" for x in cls.lines)
        cls.want = cls.batch("--batch-size", 1)

    @classmethod
    def batch(cls, *args, code=OK):
        r = yoke("run", "-m", LLAMA, "--prompts-file", "-", "--prompts-format", "jsonl", *GREEDY, *args, stdin=cls.text)
        assert r.code == code, r
        return r.lines()

    def test_alone(self):
        for x, want in list(zip(self.lines, self.want))[::3]:
            args = [a for k, v in x.items() if k not in ("prompt", "ignore_eos") for a in (f"--{k}", v)]
            r = self.run_ok("run", "-m", LLAMA, "-p", x["prompt"], *GREEDY[:0 if "seed" in x else 1], *GREEDY[1:], *args,
                            *(["--ignore-eos"] if "ignore_eos" in x else []))
            self.assertEqual(r.out, want["text"] + "\n")

    def test_batch_sizes(self):
        self.assertEqual(len(self.want), len(self.lines))
        for n in (2, 3, 5, 16, 64):
            self.assertEqual(self.batch("--batch-size", n), self.want, n)

    def test_chunks_and_pages(self):
        for args in (("--prefill-chunk", 1), ("--prefill-chunk", 7), ("--block-size", 1), ("--block-size", 5),
                     ("--block-size", 128), ("-t", 1)):
            self.assertEqual(self.batch("--batch-size", 4, *args), self.want, args)

    def test_preemption(self):
        """So few pages that requests push each other out, and answer the same in the end."""
        longest = max(x["prompt_tokens"] + x["completion_tokens"] for x in self.want)
        stats = self.tmp / "stats.json"
        pages = -(-longest // 8)
        self.assertEqual(self.batch("--batch-size", 8, "--block-size", 8, "--num-blocks", pages, "--stats-json", stats),
                         self.want)
        self.assertGreater(json.loads(stats.read_text())["preemptions"], 0)

    def test_use_past_false(self):
        self.assertEqual(self.batch("--batch-size", 4, "--use-past", "False"), self.want)

    def test_split(self):
        for tp in (2, 4):
            self.assertEqual(self.batch("--batch-size", 5, "--tp", tp), self.want, tp)

    def test_order(self):
        """The other way round: results follow the input."""
        text = self.text
        try:
            type(self).text = "".join(json.dumps(x) + "\n" for x in reversed(self.lines))
            got = self.batch("--batch-size", 4)
        finally:
            type(self).text = text
        self.assertEqual([x["index"] for x in got], list(range(len(got))))
        self.assertEqual([{**x, "index": 0} for x in reversed(got)], [{**x, "index": 0} for x in self.want])


class Spoilt(Case):
    def test_a_prompt_too_long(self):
        """Its line says why, the others are answered, and the exit code tells."""
        cases = ORACLE["llama-gqa"]["plain"][:2]
        lines = [{"prompt": cases[0]["prompt"], "id": "a"}, {"prompt": "word " * 600, "id": "b"},
                 {"prompt": cases[1]["prompt"], "id": "c"}]
        path = self.write("p.jsonl", "\n".join(json.dumps(x) for x in lines))
        for n in (1, 8):
            r = yoke("run", "-m", LLAMA, "--prompts-file", path, "-n", 24, "--batch-size", n, *GREEDY)
            got = r.lines()
            self.assertEqual(r.code, LIMIT, r)
            self.assertEqual([x["index"] for x in got], [0, 1, 2])
            self.assertEqual([x["id"] for x in got], ["a", "b", "c"])
            self.assertEqual([got[0]["text"], got[2]["text"]], [c["text"] for c in cases])
            self.assertEqual(list(got[1]), ["index", "id", "error"])
            self.assertIn("512", got[1]["error"])
            self.assertIn("1 of 3 prompts", r.err)

    def test_max_length_below_the_prompt(self):
        text = json.dumps({"prompt": "The capital of France is", "max_length": 3}) + "\n" + json.dumps({"prompt": "x"})
        r = yoke("run", "-m", LLAMA, "--prompts-file", self.write("p.jsonl", text), "-n", 4)
        self.assertEqual(r.code, LIMIT, r)
        # a line's max_length gives way to -n (flags win); without -n it counts
        r = yoke("run", "-m", LLAMA, "--prompts-file", self.write("p.jsonl", text))
        self.assertEqual(r.code, LIMIT, r)
        self.assertIn("max_length", r.lines()[0]["error"])
        self.assertIn("text", r.lines()[1])


if __name__ == "__main__":
    main()
