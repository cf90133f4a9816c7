"""Writes oracle.json: texts that transformers generates from two golden models, for what the golden vectors lack:
plain prompts, conversations of several turns, ends of text, penalties. Run like tests/golden/make_models.py, in its
environment:

    .venv/bin/python tests/e2e/make_oracle.py

All is greedy, and only cases are kept whose best token leads the second by at least 0.05 standard deviations of the
row's logits at every step, so that rounding keys and values to f16 changes nothing.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
sys.path.insert(0, str(GOLDEN))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


MARGIN = 0.05
SUBJECTS = ["the cat", "one word", "Paris", "12 + 34", "a blue door", "what it is", "Tom & Ann", "the sea", "no-one",
            "rain", "my old bike", "she said", "to be", "yes?", "the end.", "éclair", "日本", "x = 3;", "a  b", "Zoë"]
PROMPTS = [f"{head} {s}" for s in SUBJECTS for head in ("Tell me about", "And", "Why", "I like", "Now then, what", "Go:")]
QUESTIONS = [f"{head} {s}?" for s in SUBJECTS for head in ("What of", "And")]


class Model:
    def __init__(self, name):
        folder = GOLDEN / "models" / name
        self.name = name
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.eos = json.loads((folder / "vectors.json").read_text())["eos"]

    def answer(self, ids, n, **kw):
        """(new ids, margin); without the sampling defaults of generation_config.json unless kw says so."""
        kw = {"repetition_penalty": 1.0, "eos_token_id": self.eos, **kw}
        r = self.model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                                do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=n,
                                pad_token_id=0, output_scores=True, return_dict_in_generate=True, **kw)
        least = 1e9
        for s in r.scores:
            finite = s[0][torch.isfinite(s[0])]
            top = torch.topk(finite, 2).values
            least = min(least, float((top[0] - top[1]) / finite.std()))
        return r.sequences[0, len(ids):].tolist(), least

    def text(self, ids, skip=True):
        return self.tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


def plain(m, n=24, wanted=6):
    """Prompts that run to the length limit, with text that holds no control token unless asked for."""
    cases, special = [], set(m.tokenizer.all_special_ids)
    for p in PROMPTS:
        ids = m.tokenizer.encode(p)
        out, margin = m.answer(ids, n)
        if len(cases) >= wanted and any(special & set(c["ids"]) for c in cases):
            break
        if margin >= MARGIN and len(out) == n and len(set(out)) >= 8:
            cases.append({"prompt": p, "n": n, "prompt_tokens": len(ids), "ids": out, "text": m.text(out),
                          "text_with_special": m.text(out, False)})
    cases.sort(key=lambda c: not special & set(c["ids"]))  # one with control tokens first
    return cases[:wanted]


def ending(m, n):
    """Prompts whose answer ends within n tokens: a search in batches, to be looked at more closely."""
    words = ("Say", "Count", "Number", "So", "Page", "Room", "It is", "Line", "Take", "Day", "No.", "Part", "Note", "Give")
    for w in words:
        prompts = [f"{w} {i}" for i in range(100, 300)]
        ids = torch.tensor([m.tokenizer.encode(p) for p in prompts])  # digits are a token each: all equally long
        out = m.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, temperature=None, top_p=None,
                               top_k=None, repetition_penalty=1.0, max_new_tokens=n, pad_token_id=0,
                               eos_token_id=m.eos)[:, ids.shape[1]:]
        for p, row in zip(prompts, out.tolist()):
            if set(row) & set(m.eos):
                yield p


def ended(m, n=24, wanted=3):
    """Prompts whose answer ends by itself, and how it goes on with ignore_eos and with min_new_tokens."""
    cases, lengths = [], set()
    for p in ending(m, n):
        ids = m.tokenizer.encode(p)
        out, margin = m.answer(ids, n)
        if out[-1] not in m.eos or len(out) < 3 or margin < MARGIN or len(out) in lengths:
            continue
        on, margin_on = m.answer(ids, len(out) + 8, eos_token_id=None)
        least = len(out) + 3
        late, margin_late = m.answer(ids, len(out) + 8, min_new_tokens=least)
        if min(margin_on, margin_late) < MARGIN:
            continue
        lengths.add(len(out))
        cases.append({"prompt": p, "prompt_tokens": len(ids), "ids": out, "text": m.text(out),
                      "text_with_special": m.text(out, False), "ignore_eos_ids": on, "ignore_eos_text": m.text(on),
                      "min_new_tokens": least, "min_new_ids": late, "min_new_text": m.text(late),
                      "min_new_finish": "stop" if late[-1] in m.eos else "length"})
        if len(cases) == wanted:
            break
    return cases


def penalised(m, n=24, wanted=2, penalty=1.1):
    cases = []
    for p in PROMPTS:
        ids = m.tokenizer.encode(p)
        out, margin = m.answer(ids, n, repetition_penalty=penalty)
        if margin >= MARGIN and len(out) == n and out != m.answer(ids, n)[0]:
            cases.append({"prompt": p, "n": n, "repetition_penalty": penalty, "ids": out, "text": m.text(out)})
        if len(cases) == wanted:
            break
    return cases


def conversation(m, system, n=6, turns=3):
    """Questions asked in turn; each answer becomes part of the next prompt as the text that was shown."""
    messages = [{"role": "system", "content": system}] if system else []
    record = []
    for q in QUESTIONS:
        asked = messages + [{"role": "user", "content": q}]
        text = m.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        ids = m.tokenizer.encode(text, add_special_tokens=False)
        out, margin = m.answer(ids, n)
        shown = m.text(out)
        if margin < MARGIN or not shown.strip() or "\n" in shown or "\r" in shown:
            continue
        if record:  # the history must matter
            alone = m.tokenizer.apply_chat_template(messages[:1] * bool(system) + asked[-1:], tokenize=False,
                                                    add_generation_prompt=True)
            if m.answer(m.tokenizer.encode(alone, add_special_tokens=False), n)[0] == out:
                continue
        record.append({"user": q, "prompt_tokens": len(ids), "ids": out, "text": shown})
        messages = asked + [{"role": "assistant", "content": shown}]
        if len(record) == turns:
            break
    assert len(record) >= 2, f"{m.name}: no conversation found"
    return {"system": system, "n": n, "turns": record}


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    doc = {}
    for name in ("llama-gqa", "qwen2-tied"):
        m = Model(name)
        doc[name] = {"ended": ended(m), "plain": plain(m), "penalised": penalised(m),
                     "conversation": [conversation(m, None), conversation(m, "Be brief.")]}
        print(name, {k: len(v) for k, v in doc[name].items()})
        missing = [k for k, v in doc[name].items() if not v]
        assert not missing, f"no case for {missing}"
    (HERE / "oracle.json").write_text(json.dumps(doc, indent=1, ensure_ascii=True) + "\n")


main()
