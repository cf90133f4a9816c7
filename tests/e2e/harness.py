"""What the end-to-end tests share: the program, the golden models, a runner.

Each test_*.py is a script of its own: unittest classes, and main() at the end. It is run by meson with YOKE (the
executable) and YOKE_ROOT (the source tree) in the environment; by hand:

    YOKE=build/cli/yoke YOKE_ROOT=. python3 tests/e2e/test_run.py [Class.test_name ...]

Python's standard library only, and nothing but the program's own output is looked at.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ.get("YOKE_ROOT", pathlib.Path(__file__).resolve().parents[2])).resolve()
YOKE = str(pathlib.Path(os.environ.get("YOKE", ROOT / "build" / "cli" / "yoke")).resolve())
MODELS = ROOT / "tests" / "golden" / "models"
GGUF = ROOT / "tests" / "golden" / "gguf"
LLAMA = MODELS / "llama-gqa"
QWEN = MODELS / "qwen2-tied"
ORACLE = json.loads((ROOT / "tests" / "e2e" / "oracle.json").read_text())

# Exit codes, as `yoke run --help` lists them.
OK, FAILED, USAGE, UNREADABLE, SPLIT, MEMORY, RANK_LOST, LIMIT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130

TIMEOUT = 120  # no single run takes that long, not even under a sanitizer on a busy machine
ENV = {**os.environ, "LC_ALL": "C.UTF-8", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def vectors(path):
    """The golden vectors beside a model: models/NAME/vectors.json, gguf/NAME.json."""
    path = pathlib.Path(path)
    return json.loads((path / "vectors.json" if path.is_dir() else path.with_suffix(".json")).read_text())


def golden_logits(path):
    """The file of logits that goes with vectors(): a list of rows."""
    path = pathlib.Path(path)
    v = vectors(path)
    data = ((path if path.is_dir() else path.parent) / v["logits"]).read_bytes()
    flat = struct.unpack(f"<{len(data) // 4}f", data)
    return [flat[i:i + v["vocab"]] for i in range(0, len(flat), v["vocab"])]


class Result:
    """What a run left behind. out is text; raw_out the bytes."""

    def __init__(self, args, code, out, err):
        self.args, self.code, self.raw_out = args, code, out
        self.out = out.decode("utf-8", "surrogateescape")
        self.err = err.decode("utf-8", "replace")

    def __str__(self):
        return f"{' '.join(map(str, self.args))}\nexit code {self.code}\nstdout: {self.out!r}\nstderr: {self.err}"

    def lines(self):
        return [json.loads(x) for x in self.out.splitlines()]


# Open MPI keeps memory until its end, of which a leak checker complains.
NO_LEAK_CHECK = {"ASAN_OPTIONS": "detect_leaks=0:" + os.environ.get("ASAN_OPTIONS", "")}


def start(*args, launcher=(), **kw):
    kw = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENV, **kw}
    if launcher:
        kw["env"] = {**kw["env"], **NO_LEAK_CHECK}
    return subprocess.Popen([*map(str, launcher), YOKE, *map(str, args)], **kw)


def yoke(*args, stdin=None, env=None, launcher=(), cwd=None):
    """Runs the program to its end."""
    p = start(*args, launcher=launcher, env={**ENV, **(env or {})}, cwd=cwd,
              stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
    if isinstance(stdin, str):
        stdin = stdin.encode()
    try:
        out, err = p.communicate(stdin, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        p.kill()
        raise AssertionError(f"still running after {TIMEOUT} s: {args}") from None
    r = Result(args, p.returncode, out, err)
    if "Sanitizer" in r.err or ": runtime error: " in r.err or p.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        raise AssertionError(f"crashed: {r}")
    return r


class Case(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        self._tmp = tempfile.TemporaryDirectory(prefix="yoke_e2e_")
        self.addCleanup(self._tmp.cleanup)
        self.tmp = pathlib.Path(self._tmp.name)

    def run_ok(self, *args, **kw):
        """A run that must succeed without a warning."""
        r = yoke(*args, **kw)
        self.assertEqual(r.code, OK, r)
        self.assertNotIn("warning", r.err, r)
        return r

    def run_fails(self, code, *words, args, **kw):
        """A run that must end with this code, an empty stdout, and one sentence that holds all the words."""
        r = yoke(*args, **kw)
        self.assertEqual(r.code, code, r)
        self.assertEqual(r.out, "", r)
        errors = [x for x in r.err.splitlines() if x.startswith("yoke: error: ")]
        self.assertEqual(len(errors), 1, r)
        for w in words:
            self.assertIn(w, errors[0], r)
        return r

    def write(self, name, content):
        path = self.tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def copy_model(self, model=LLAMA, name="model", without=()):
        """A copy of a golden folder to spoil."""
        to = self.tmp / name
        shutil.copytree(model, to, ignore=shutil.ignore_patterns("vectors.*", *without))
        return to

    def edit_json(self, path, **changes):
        """Sets keys of a JSON object on disk; None removes one."""
        o = json.loads(path.read_text())
        for k, v in changes.items():
            if v is None:
                o.pop(k, None)
            else:
                o[k] = v
        path.write_text(json.dumps(o))


def read_safetensors(path):
    """(header without __metadata__, {name: bytes})"""
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    body = data[8 + n:]
    return head, {k: body[v["data_offsets"][0]:v["data_offsets"][1]] for k, v in head.items()}


def write_safetensors(path, head, data):
    at, out = 0, {}
    for k, v in head.items():
        out[k] = {"dtype": v["dtype"], "shape": v["shape"], "data_offsets": [at, at + len(data[k])]}
        at += len(data[k])
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data[k] for k in head))


class _Report(unittest.TestResult):
    """One line per test, in cmocka's words, which scripts/tally.py counts."""

    def __init__(self):
        super().__init__()
        self.good, self.bad = set(), set()

    def startTest(self, test):
        super().startTest(test)
        self._began = time.monotonic()

    def _say(self, kind, test):
        if not hasattr(test, "_testMethodName"):  # setUpClass
            self.bad.add(str(test))
            print(f"[  FAILED  ] {re.sub(r'[^0-9a-zA-Z_]+', '_', str(test)).strip('_')}", flush=True)
            return
        took = time.monotonic() - self._began
        if took > 2:
            print(f"({took:.1f} s)")
        print(f"[{kind:^10}] {type(test).__name__}_{test._testMethodName}", flush=True)
        (self.good if kind == "OK" else self.bad).add(test.id())

    def addSuccess(self, test):
        super().addSuccess(test)
        self._say("OK", test)

    def addError(self, test, err):
        super().addError(test, err)
        print(self.errors[-1][1])
        self._say("FAILED", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        print(self.failures[-1][1])
        self._say("FAILED", test)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            print(f"{subtest}\n{(self.failures + self.errors)[-1][1]}")
            self._say("FAILED", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        name = f"{type(test).__name__}_{test._testMethodName}" if hasattr(test, "_testMethodName") else str(test)  # a class
        print(f"[ SKIPPED  ] {name}: {reason}", flush=True)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    loader = unittest.defaultTestLoader
    module = sys.modules["__main__"]
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)
    result = _Report()
    suite.run(result)
    good, bad = len(result.good), len(result.bad)
    print(f"{good} passed, {bad} failed" + (f", {len(result.skipped)} skipped" if result.skipped else ""))
    sys.exit(1 if bad else 77 if result.skipped and not good else 0)
