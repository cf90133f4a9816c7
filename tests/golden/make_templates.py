#!/usr/bin/env python3
"""Renders templates/*.jinja and template_snippets.py with jinja2 as transformers sets it up, and writes what came out
to templates/chat.json and templates/snippets.json, which tests/unit/text/test_template.c replays.

    python tests/golden/make_templates.py

needs transformers (the files here were made with 5.24.0, jinja2 3.1.6). The clock is nailed to NOW, in UTC.
"""
import datetime
import json
import os
import pathlib
import time

import transformers.utils.chat_template_utils as chat

import template_snippets

HERE = pathlib.Path(__file__).parent / "templates"
NOW = 1722470400  # 2024-08-01 00:00:00 UTC

os.environ["TZ"] = "UTC"
time.tzset()


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW)


chat.datetime = Clock

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The <weather> of a \"city\" & its surroundings",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "e.g. Zürich"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": ["integer", "null"]},
        "extra": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}}},
        "required": ["city"]}, "return": {"type": "string"}}}
NOOP = {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}}

SYSTEM = {"role": "system", "content": "You are héllo 🙂.\n"}
USER = {"role": "user", "content": "  Hi <b>there</b>\n\nyou \n"}
REPLY = {"role": "assistant", "content": "Hello!\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nIt is 4"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "abc123xyz", "type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "x": 1.5, "y": None, "z": True}}}]}
CALLS = {"role": "assistant", "content": "Two.", "tool_calls": [
    {"id": "a23456789", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "A"}}},
    {"id": "b23456789", "type": "function", "function": {"name": "noop", "arguments": {}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abc123xyz", "content": "{\"temp\": 20}"}
RESULT2 = {"role": "tool", "name": "noop", "tool_call_id": "b23456789", "content": "ok"}
PICTURE = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image", "image": "x.png"}, {"type": "text", "text": " ok"}]}

CONVERSATIONS = {
    "user": [USER], "system": [SYSTEM, USER], "turns": [SYSTEM, USER, REPLY, USER], "no system": [USER, REPLY, USER, REPLY],
    "thought": [USER, THOUGHT, USER, THOUGHT], "reasoning": [USER, {"role": "assistant", "content": "Ans", "reasoning_content": "secret\n", "thinking": "secret\n"}],
    "call": [SYSTEM, USER, CALL, RESULT], "calls": [USER, CALLS, RESULT, RESULT2, REPLY, USER], "picture": [PICTURE],
    "empty content": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": "再见"}],
    "empty": [], "bad order": [REPLY, USER], "odd role": [{"role": "clown", "content": "x"}], "no content": [{"role": "user"}],
}
OPTIONS = {
    "prompt": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": [WEATHER, NOOP], "enable_thinking": False, "thinking": True},
    "documents": {"add_generation_prompt": False, "tools": None, "documents": [{"title": "T", "text": "doc text"}], "date_string": "26 Jul 2024",
                  "reasoning_effort": "high", "builtin_tools": ["noop", "code_interpreter"], "add_vision_id": True},
}
COMMON = {"bos_token": "<s>", "eos_token": "</s>"}
# Every conversation with the prompt; the ones that show something new with the others.
ALSO = {"tools": ["system", "call", "calls"], "documents": ["turns", "call", "picture"]}


def render(source, variables):
    """(text, None), (None, raise_exception's message), or (None, "") for any other error."""
    try:
        return chat._compile_jinja_template(source).render(**json.loads(json.dumps(variables))), None
    except Exception as e:
        import jinja2
        return None, str(e) if type(e) is jinja2.exceptions.TemplateError else ""


def main():
    templates = {}
    for path in sorted(HERE.glob("*.jinja")):
        source = path.read_bytes().decode()
        cases = []
        for option, values in OPTIONS.items():
            for name in CONVERSATIONS if option == "prompt" else ALSO[option]:
                text, error = render(source, {**COMMON, **values, "messages": CONVERSATIONS[name]})
                cases.append([name, option, text, error])
        assert any(c[2] for c in cases), path
        templates[path.name] = cases
    out = {"now": NOW, "common": COMMON, "conversations": CONVERSATIONS, "options": OPTIONS, "templates": templates}
    (HERE / "chat.json").write_text(json.dumps(out, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n")
    cases = []
    for source in ["{{ " + e + " }}" for e in template_snippets.EXPRESSIONS] + template_snippets.STATEMENTS:
        text, error = render(source, template_snippets.VARS)
        assert text is None or " at 0x" not in text, source
        cases.append([source, text, error])
    snippets = {"now": NOW, "vars": template_snippets.VARS, "cases": cases}
    text = json.dumps(snippets, ensure_ascii=False).replace('], ["', '],\n["')
    (HERE / "snippets.json").write_text(text + "\n")
    print(sum(map(len, templates.values())), "chats,", len(cases), "snippets,", sum(c[1] is None for c in cases), "of them errors")


if __name__ == "__main__":
    main()
