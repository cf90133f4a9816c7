"""What is wrong with files, models, prompts and outputs is said in one sentence, with the exit code that --help lists;
nothing is printed on standard output, and nothing crashes."""
import unittest

from harness import *


class Checkpoints(Case):
    """Golden folders, spoilt."""

    def spoil(self, model=LLAMA):
        folder = self.copy_model(model)
        self.file = folder / "model.safetensors"
        self.head, self.data = read_safetensors(self.file)
        return folder

    def save(self):
        write_safetensors(self.file, self.head, self.data)

    def refused(self, folder, *words, code=UNREADABLE, command="run"):
        args = {"run": ("run", "-m", folder, "-p", "x"), "plan": ("plan", "-m", folder),
                "logits": ("logits", "-m", folder, "--ids", "1,2")}[command]
        return self.run_fails(code, *map(str, words), args=args)

    def test_missing_tensors_are_all_named(self):
        folder = self.spoil()
        gone = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"]
        for name in gone:
            del self.head[name], self.data[name]
        self.save()
        for command in ("run", "plan", "logits"):
            self.refused(folder, *gone, command=command)
        for tp in (2, 4):
            self.run_fails(UNREADABLE, *gone, args=("run", "-m", folder, "-p", "x", "--tp", tp))

    def test_misshapen_tensors_are_all_named(self):
        folder = self.spoil()
        names = ["model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"]
        for name in names:
            shape = self.head[name]["shape"]
            self.head[name]["shape"] = [shape[0] // 2, *[2 * x for x in shape[1:2]], *shape[2:]]
            if len(shape) == 1:
                self.data[name] = self.data[name][:len(self.data[name]) // 2]
        self.save()
        r = self.refused(folder, *names)
        self.assertIn("[64, 96]", r.err.replace("64 x 96", "[64, 96]"), r)  # what is expected of down_proj
        self.assertIn("[32, 192]", r.err.replace("32 x 192", "[32, 192]"), r)  # what is there

    def test_missing_and_misshapen_together(self):
        folder = self.spoil()
        a, b = "model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight"
        del self.head[a], self.data[a]
        self.head[b]["shape"] = self.head[b]["shape"][::-1]
        self.save()
        self.refused(folder, a, b)

    def test_extra_tensors_are_a_warning(self):
        """All named, once, and the answer is the same."""
        folder = self.spoil()
        extra = ["model.layers.0.self_attn.surprise.weight", "visual.patch_embed.weight", "model.layers.7.mlp.up_proj.weight"]
        for name in extra:
            self.head[name], self.data[name] = {"dtype": "F32", "shape": [2]}, b"12345678"
        self.save()
        want = self.run_ok("run", "-m", LLAMA, "-p", "x", "-n", 5, "--greedy").out
        for tp in (1, 2):
            r = yoke("run", "-m", folder, "-p", "x", "-n", 5, "--greedy", "--tp", tp)
            self.assertEqual((r.code, r.out), (OK, want), r)
            for name in extra:
                self.assertEqual(r.err.count(name), 1, r)
            self.assertIn("warning", r.err)

    def test_a_type_that_cannot_be_computed_with(self):
        folder = self.spoil()
        name = "model.layers.0.mlp.up_proj.weight"
        self.head[name]["dtype"] = "I16"
        self.save()
        self.refused(folder, name, "i16")

    def test_truncated_safetensors(self):
        """Cut anywhere: in the length, in the header, in the data."""
        folder = self.spoil()
        data = self.file.read_bytes()
        for n in (0, 3, 8, 50, len(data) // 2, len(data) - 1):
            self.file.write_bytes(data[:n])
            self.refused(folder, "model.safetensors")

    def test_lying_safetensors(self):
        folder = self.spoil()
        data = self.file.read_bytes()
        n, = struct.unpack("<Q", data[:8])
        head = json.loads(data[8:8 + n])
        names = [k for k in head if k != "__metadata__"]

        def write(h, length=None):
            text = json.dumps(h).encode()
            self.file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data[8 + n:])

        write(head, 1 << 60)
        self.refused(folder, "model.safetensors")
        for change in ({"data_offsets": [0, 1 << 40]}, {"data_offsets": [-1, 5]}, {"data_offsets": [64, 0]},
                       {"shape": [1 << 40, 1 << 40]}, {"shape": [-1]}, {"shape": "x"}, {"dtype": "F99"},
                       {"data_offsets": head[names[1]]["data_offsets"]}):
            write({**head, names[0]: {**head[names[0]], **change}})
            self.refused(folder, names[0])
        self.file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
        self.refused(folder, "LFS")

    def test_truncated_gguf(self):
        data = (GGUF / "llama-q8_0.gguf").read_bytes()
        for n in (0, 3, 4, 20, 200, len(data) // 8, len(data) // 2, len(data) - 1):
            path = self.write("cut.gguf", data[:n])
            self.refused(path, "cut.gguf")
        self.refused(self.write("cut.gguf", b"GGML" + data[4:]), "cut.gguf")
        self.refused(self.write("cut.gguf", data[:4] + struct.pack("<I", 99) + data[8:]), "99")

    def test_sharded(self):
        """A missing shard is named; so is a tensor the index promises and no shard holds."""
        source = MODELS / "llama-sharded"
        folder = self.copy_model(source)
        (folder / "model-00002-of-00002.safetensors").unlink()
        self.refused(folder, "model-00002-of-00002.safetensors", command="logits")

    def test_config(self):
        folder = self.copy_model()
        config = folder / "config.json"
        good = config.read_text()
        self.edit_json(config, model_type="mamba2", architectures=["Mamba2ForCausalLM"])
        for command in ("run", "plan", "logits"):
            self.refused(folder, "Mamba2ForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", command=command)
        config.write_text(good)
        for key, value in (("hidden_size", None), ("num_attention_heads", 0), ("hidden_size", "big"),
                           ("num_hidden_layers", -1), ("vocab_size", 1 << 40), ("rms_norm_eps", "x"),
                           ("num_key_value_heads", 7)):
            config.write_text(good)
            self.edit_json(config, **{key: value})
            self.refused(folder, "key-value heads" if key == "num_key_value_heads" else key)
        config.write_text(good)
        self.edit_json(config, rope_parameters={"rope_type": "spiral", "rope_theta": 1e4})
        self.refused(folder, "spiral")
        config.write_text("{")
        self.refused(folder, "config.json")
        config.unlink()
        self.refused(folder, "config.json")

    def test_more_layers_than_tensors(self):
        folder = self.copy_model()
        self.edit_json(folder / "config.json", num_hidden_layers=3)
        self.refused(folder, "model.layers.2.mlp.down_proj.weight", "model.layers.2.self_attn.o_proj.weight")

    def test_nothing_there(self):
        self.refused(self.tmp / "nowhere", "nowhere")
        (self.tmp / "empty").mkdir()
        self.refused(self.tmp / "empty", "empty")
        self.refused(self.write("model.bin", "PK"), "model.bin")
        self.run_fails(USAGE, "-m", args=("run", "-p", "x"))

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_unreadable_as_user(self):
        folder = self.copy_model()
        (folder / "model.safetensors").chmod(0)
        self.refused(folder, "model.safetensors", "ermission")

    def test_unreadable(self):
        """A directory where a file should be, a dangling link, a link to itself."""
        folder = self.copy_model()
        file = folder / "model.safetensors"
        file.unlink()
        file.symlink_to("model.safetensors")
        self.refused(folder, "model.safetensors")
        file.unlink()
        file.symlink_to("/nowhere/blob")
        self.refused(folder, "model.safetensors")
        file.unlink()
        file.mkdir()
        self.refused(folder, "model.safetensors")

    def test_without_tokenizer(self):
        """run says so; logits on ids needs none."""
        folder = self.copy_model(without=("tokenizer*",))
        self.refused(folder, "tokenizer.json")
        self.run_fails(UNREADABLE, "tokenizer.json", args=("logits", "-m", folder, "-p", "x"))
        self.run_fails(UNREADABLE, "tokenizer.json", args=("tokenize", "-m", folder, "-p", "x"))
        self.assertEqual(self.run_ok("logits", "-m", folder, "--ids", "1,2").out,
                         self.run_ok("logits", "-m", LLAMA, "--ids", "1,2").out)
        self.run_ok("plan", "-m", folder)

    def test_a_broken_tokenizer(self):
        folder = self.copy_model()
        file = folder / "tokenizer.json"
        text = file.read_text()
        for bad in ("", "{", text[:len(text) // 2], "[]", '{"model": {"type": "Magic"}}'):
            file.write_text(bad)
            self.refused(folder, "tokenizer.json")

    def test_without_chat_template(self):
        folder = self.copy_model()
        self.edit_json(folder / "tokenizer_config.json", chat_template=None)
        self.run_fails(UNREADABLE, "chat template", str(folder), args=("run", "-m", folder, "--chat", "-p", "x"))
        self.run_fails(UNREADABLE, "chat template", args=("template", "-m", folder, "-p", "x"))
        self.run_fails(UNREADABLE, "chat template", args=("run", "-m", folder, "-i"), stdin="x\n")
        self.run_ok("run", "-m", folder, "-p", "x", "-n", 2)

    def test_a_broken_chat_template(self):
        folder = self.copy_model()
        for bad in ("{% if %}", "{{ nope( }}", "{% for x in %}"):
            self.edit_json(folder / "tokenizer_config.json", chat_template=bad)
            self.run_fails(UNREADABLE, "template", "line 1", args=("run", "-m", folder, "--chat", "-p", "x"))

    def test_a_template_that_refuses(self):
        """What raise_exception says is told, as what the template says; in a batch it is that prompt's error."""
        folder = self.copy_model()
        self.edit_json(folder / "tokenizer_config.json", chat_template=
                       "{% if messages|length > 1 %}{{ raise_exception('one message, please') }}{% endif %}hello")
        for command in (("run", "-m", folder, "--chat"), ("template", "-m", folder), ("logits", "-m", folder, "--chat")):
            self.run_fails(USAGE, "chat template", "one message, please",
                           args=(*command, "--system", "be brief", "-p", "x"))
        path = self.write("p.jsonl", "\n".join(json.dumps({"messages": [{"role": "user", "content": "x"}] * n})
                                               for n in (1, 2, 1)))
        r = yoke("run", "-m", folder, "--prompts-file", path, "-n", 3)
        self.assertEqual(["text" in x for x in r.lines()], [True, False, True])
        self.assertIn("one message, please", r.lines()[1]["error"])
        r = yoke("run", "-m", folder, "-i", "-n", 3, stdin="a\nb\n")  # a conversation goes on
        self.assertEqual((r.code, r.out.count("\n")), (OK, 1), r)
        self.assertIn("one message, please", r.err)
    def test_it_does_not_fit(self):
        self.run_fails(MEMORY, "--tp", "--quant", args=("run", "-m", LLAMA, "-p", "x", "--memory", 1000))


class Prompts(Case):
    def test_longer_than_the_context(self):
        for args in (("-p", "word " * 300), ("--chat", "-p", "word " * 300)):
            r = self.run_fails(LIMIT, "512", args=("run", "-m", LLAMA, *args))
            self.assertRegex(r.err, r"prompt has \d+ tokens")
        self.run_fails(LIMIT, "num_blocks", args=("run", "-m", LLAMA, "-p", "word " * 30, "--num-blocks", 1))

    def test_empty(self):
        for content in ("", "\n\n  \n"):
            self.run_fails(USAGE, "p.txt", "no prompt",
                           args=("run", "-m", LLAMA, "--prompts-file", self.write("p.txt", content)))
        self.run_fails(USAGE, "-p", "--prompts-file", args=("run", "-m", LLAMA))
        # a tokenizer that adds nothing makes no token of an empty prompt
        self.run_fails(USAGE, "empty", args=("run", "-m", QWEN, "-p", ""))

    def test_unreadable_prompts(self):
        self.run_fails(UNREADABLE, "nowhere.txt", args=("run", "-m", LLAMA, "--prompts-file", self.tmp / "nowhere.txt"))
        self.run_fails(UNREADABLE, str(self.tmp), args=("run", "-m", LLAMA, "--prompts-file", self.tmp))

    def test_bad_lines(self):
        """File, line, what is wrong; nothing is answered."""
        for bad, *words in (("{", ":2:"), ('"x"', ":2:"), ("{}", ":2", "prompt", "messages"),
                            ('{"prompt": 3}', ":2", "prompt"), ('{"messages": []}', ":2", "messages"),
                            ('{"messages": [{"content": "x"}]}', ":2", "role"),
                            ('{"prompt": "x", "temperature": -1}', ":2", "temperature"),
                            ('{"prompt": "x", "top_p": "much"}', ":2", "top_p"),
                            ('{"prompt": "x", "stop": [""]}', ":2", "stop"),
                            ('{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}', ":2")):
            path = self.write("p.jsonl", '{"prompt": "good"}\n' + bad + "\n")
            self.run_fails(USAGE, "p.jsonl" + words[0], *words[1:], args=("run", "-m", LLAMA, "--prompts-file", path))

    def test_unknown_key_of_a_line(self):
        path = self.write("p.jsonl", '{"prompt": "x", "temprature": 0.3}\n')
        r = yoke("run", "-m", LLAMA, "--prompts-file", path, "-n", 2)
        self.assertEqual(r.code, OK, r)
        self.assertRegex(r.err, r'p\.jsonl:1.*"temprature".*"temperature"')

    def test_not_utf8(self):
        """A plain prompt of any bytes is answered (documented: bytes of no character become U+FFFD); a chat message and
        a line of JSON must be UTF-8."""
        bad = b"abc \xff\xfe\xc3 def"
        r = yoke("run", "-m", LLAMA, "--prompts-file", self.write("p.txt", bad + b"\nfine\n"), "-n", 3)
        self.assertEqual(r.code, OK, r)
        self.assertEqual(len(r.lines()), 2)
        r = yoke("run", "-m", LLAMA, "--chat", "--prompts-file", self.write("p.txt", bad + b"\nfine\n"), "-n", 3)
        self.assertIn("UTF-8", r.lines()[0]["error"])
        self.assertIn("text", r.lines()[1])
        self.assertEqual(r.code, LIMIT, r)
        self.run_fails(USAGE, "p.jsonl:1", "0xff", args=(
            "run", "-m", LLAMA, "--prompts-file", self.write("p.jsonl", b'{"prompt": "' + bad + b'"}\n')))

    def test_a_hostile_prompt(self):
        """A megabyte of one letter is refused for its length at once, not after minutes."""
        for text in ("a" * 1000000, " " * 1000000, "\U0001F469\u200D" * 100000):
            began = time.monotonic()
            r = yoke("run", "-m", LLAMA, "--prompts-file", self.write("p.jsonl", {"prompt": text}))
            self.assertEqual(r.code, LIMIT, r.err[:500])
            self.assertIn("512", r.lines()[0]["error"])
            self.assertLess(time.monotonic() - began, 20)


class Outputs(Case):
    def test_disk_full(self):
        r = yoke("run", "-m", LLAMA, "-p", "x", "-p", "y", "-n", 3, "-o", "/dev/full")
        self.assertEqual(r.code, UNREADABLE, r)
        self.assertIn("No space left", r.err)
        self.assertIn("/dev/full", r.err)
        for args in (("run", "-m", LLAMA, "-p", "x", "-n", 3), ("run", "-m", LLAMA, "-p", "x", "-p", "y", "-n", 3),
                     ("plan", "-m", LLAMA), ("plan", "-m", LLAMA, "--json"), ("logits", "-m", LLAMA, "--ids", "1"),
                     ("tokenize", "-m", LLAMA, "-p", "x"), ("template", "-m", LLAMA, "-p", "x"), ("run", "--help"),
                     ("--version",)):
            with open("/dev/full", "wb") as full:
                p = start(*args, stdout=full)
                err = p.communicate(timeout=TIMEOUT)[1].decode()
            self.assertEqual(p.returncode, UNREADABLE, args)
            self.assertIn("No space left", err, args)
            self.assertEqual(err.count("yoke: error"), 1, err)
        r = yoke("run", "-m", LLAMA, "-p", "x", "-n", 3, "--stats-json", "/dev/full")
        self.assertEqual(r.code, UNREADABLE, r)
        self.assertIn("/dev/full", r.err)

    def test_no_such_folder(self):
        self.run_fails(UNREADABLE, "/nowhere/out", args=("run", "-m", LLAMA, "-p", "x", "-o", "/nowhere/out"))

    def test_nobody_listens(self):
        """`yoke ... | head -c 1`: ends soon, says nothing."""
        for args in (("run", "-m", LLAMA, "-p", "x", "-n", 400, "--ignore-eos", "--use-past", "False"),
                     ("run", "-m", LLAMA, *["-p", "x"] * 50, "-n", 100, "--ignore-eos"),
                     ("logits", "-m", LLAMA, "--all", "--ids", ",".join(["1"] * 400)),
                     ("run", "-m", LLAMA, "-p", "x", "-n", 400, "--ignore-eos", "--use-past", "False", "--tp", 2)):
            p = start(*args)
            p.stdout.read(1)
            p.stdout.close()
            err = p.stderr.read().decode()
            p.stderr.close()
            self.assertNotEqual(p.wait(TIMEOUT), 0, args)
            self.assertEqual(err, "", args)

    def test_closed_from_the_start(self):
        """Standard output closed by the shell (>&-) is an error, not a write into some file of ours."""
        p = subprocess.run(["sh", "-c", '"$0" run -m "$1" -p x -n 3 >&-', YOKE, str(LLAMA)], stderr=subprocess.PIPE,
                           env=ENV, timeout=TIMEOUT)
        self.assertEqual(p.returncode, UNREADABLE, p.stderr)
        self.assertIn(b"standard output", p.stderr)


class CommandLine(Case):
    def test_usage(self):
        for words, args in ((("--temprature", "--temperature"), ("run", "-m", LLAMA, "-p", "x", "--temprature", 1)),
                            (("rum", "run"), ("rum",)),
                            (("-m",), ("-m", LLAMA)),
                            (("--tp", "0"), ("run", "-m", LLAMA, "-p", "x", "--tp", 0)),
                            (("-n", "many"), ("run", "-m", LLAMA, "-p", "x", "-n", "many")),
                            (("nowhere.yaml",), ("run", "--config", "nowhere.yaml", "-p", "x"))):
            r = yoke(*args)
            self.assertIn(r.code, (USAGE, UNREADABLE), r)
            self.assertEqual(r.out, "")
            for w in words:
                self.assertIn(w, r.err)

    def test_help(self):
        for args in ((), ("--help",), ("help",), ("run", "--help"), ("plan", "-h"), ("help", "temperature"), ("version",)):
            r = yoke(*args)
            self.assertEqual(r.code, OK if args else USAGE, r)
            self.assertTrue((r.out if args else r.err).strip())
        listed = self.run_ok("run", "--help").out
        for code in (0, 1, 2, 3, 4, 5, 6, 7, 130):
            self.assertRegex(listed, rf"(?m)^ +{code}  ")

    def test_what_is_not_built(self):
        r = yoke("run", "-m", LLAMA, "-p", "x", "--ep", 2, "--dp", 2)
        self.assertEqual(r.code, SPLIT, r)
        self.assertIn("this model has no experts", r.err)


if __name__ == "__main__":
    main()
