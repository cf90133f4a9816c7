#!/usr/bin/env python3
"""tally.py [--show] testlog.json: counts the test functions in meson's log, and prints "PASSED FAILED".

A test that is no cmocka group counts as one; a group that dies counts what had passed, and one failure at least.
--show prints, for a person, what failed and what was skipped.
"""
import json
import re
import sys


def names(kind, text):
    return set(re.findall(rf"^\[\s*{kind}\s*\] (\w+)$", text, re.M))


def main():
    show = "--show" in sys.argv
    passed = failed = 0
    try:
        tests = [json.loads(line) for line in open(sys.argv[-1])]
    except OSError:
        tests = []
    for t in tests:
        text = t.get("stdout", "") + "\n" + t.get("stderr", "")
        bad = names("FAILED", text)
        ok = names("OK", text) - bad
        if t["result"] in ("OK", "EXPECTEDFAIL"):
            passed += max(1, len(ok))
        elif t["result"] == "SKIP":
            if show:
                print(f"skipped: {t['name']}")
        else:
            passed += len(ok)
            failed += max(1, len(bad))
            if show:
                print(f"{t['name']} ({t['result']}): {', '.join(sorted(bad))}")
                lines = [x for x in text.splitlines() if not re.match(r"\[\s*(RUN|OK)\s*\]", x)]
                print("\n".join("    " + x for x in lines[-40:]))
    if not tests:  # meson test itself did not come to run anything
        failed += 1
    if not show:
        print(passed, failed)


main()
