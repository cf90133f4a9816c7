#!/usr/bin/env python3
"""make_sampling.py: what transformers' generate() would draw from, for given logits, contexts and parameters.

    python make_sampling.py             # writes sampling/
    python make_sampling.py --check     # makes it elsewhere and compares

The processors and warpers, and their order, are those that GenerationMixin itself sets up. Presence and frequency
penalties, which transformers does not have, follow OpenAI's formula, right after the repetition penalty. No case is
kept in which a token lies so near a threshold that rounding decides.
"""
import argparse
import json
import pathlib
import tempfile

import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

HERE = pathlib.Path(__file__).parent


class OpenAIPenalty(LogitsProcessor):
    def __init__(self, n_prompt, presence, frequency):
        self.n_prompt, self.presence, self.frequency = n_prompt, presence, frequency

    def __call__(self, ids, scores):
        count = torch.bincount(ids[0, self.n_prompt:], minlength=scores.shape[-1]).float()
        return scores - (count * self.frequency + (count > 0) * self.presence)


def rows(rng):
    tied = np.round(rng.normal(0, 1, 48) * 2) / 2  # many equals
    holes = rng.normal(0, 3, 48)
    holes[rng.choice(48, 20, replace=False)] = -np.inf
    steep = rng.normal(0, 2, 2500)
    steep[rng.choice(2500, 40, replace=False)] += 7
    return {
        "small": rng.normal(0, 2, 48), "tied": tied, "holes": holes,
        "steep": steep, "flat": rng.normal(0, 0.3, 2500), "wide": rng.normal(0, 2500 ** 0.5 / 5, 2500),
    }


CASES = [
    ("small", {}), ("small", {"temperature": 0.7}), ("small", {"temperature": 2.5}), ("small", {"top_k": 5}),
    ("small", {"top_k": 1}), ("small", {"top_k": 1000}), ("small", {"top_p": 0.9}), ("small", {"top_p": 0.0}),
    ("small", {"top_p": 0.3, "temperature": 1.5}), ("small", {"min_p": 0.1}), ("small", {"min_p": 1.0}),
    ("small", {"temperature": 0.8, "top_k": 20, "top_p": 0.8, "min_p": 0.05}),
    ("small", {"repetition_penalty": 1.3}), ("small", {"repetition_penalty": 0.7, "top_k": 12}),
    ("small", {"presence_penalty": 0.6}), ("small", {"frequency_penalty": 0.4}),
    ("small", {"presence_penalty": -0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "top_p": 0.95}),
    ("small", {"min_new_tokens": 9, "eos": [7, 31]}), ("small", {"min_new_tokens": 8, "eos": [7, 31]}),
    ("small", {"greedy": True}), ("small", {"greedy": True, "repetition_penalty": 1.8}),
    ("small", {"greedy": True, "min_new_tokens": 20, "eos": ["best"]}),
    ("tied", {"top_k": 3}), ("tied", {"top_k": 9, "temperature": 0.5}), ("tied", {"min_p": 0.2}),
    ("tied", {"top_k": 11, "min_p": 0.3}),
    ("holes", {}), ("holes", {"top_k": 40}), ("holes", {"top_k": 28}), ("holes", {"top_p": 0.99}),
    ("steep", {"top_p": 0.9}), ("steep", {"top_k": 50, "top_p": 0.95, "temperature": 0.6}),
    ("flat", {"top_p": 0.5}), ("flat", {"top_k": 50}), ("flat", {"top_k": 900}), ("flat", {"min_p": 0.5, "top_p": 0.8}),
    ("wide", {"temperature": 3.0}), ("wide", {"top_k": 100, "min_p": 0.01, "repetition_penalty": 1.2}),
]


def near_threshold(before, top_p=None, min_p=None):
    """True if some token's fate hangs by a rounding, or by how a sort orders equals."""
    p = torch.softmax(before.double(), -1)[0]
    p = torch.sort(p[p > 0], descending=True)[0]
    if top_p is not None:
        cum = torch.cumsum(p, 0)
        last = int((cum - p < top_p).sum()) - 1
        equals = 0 <= last < len(p) - 1 and bool(p[last] - p[last + 1] < 1e-12)
        return equals or bool(torch.any(torch.abs(cum[:-1] - top_p) < 2e-6))
    return min_p < 1 and bool(torch.any(torch.abs(p / p.max() - min_p) < 1e-5))


def run(model, logits, tokens, n_prompt, what):
    ids = torch.tensor([tokens])
    greedy = what.get("greedy", False)
    config = GenerationConfig(
        do_sample=not greedy, temperature=what.get("temperature", 1.0), top_k=what.get("top_k", 0),
        top_p=what.get("top_p", 1.0), min_p=what.get("min_p"), repetition_penalty=what.get("repetition_penalty", 1.0),
        min_new_tokens=what.get("min_new_tokens"), eos_token_id=what.get("eos"), max_length=10000)
    config._eos_token_tensor = torch.tensor(what["eos"]) if "eos" in what else None
    if greedy:
        config.temperature = config.top_k = config.top_p = None
    processors = LogitsProcessorList(model._get_logits_processor(
        config, input_ids_seq_length=n_prompt, encoder_input_ids=ids[:, :n_prompt], prefix_allowed_tokens_fn=None,
        logits_processor=LogitsProcessorList(), device="cpu"))
    openai = OpenAIPenalty(n_prompt, what.get("presence_penalty", 0.0), what.get("frequency_penalty", 0.0))
    at = sum(isinstance(p, RepetitionPenaltyLogitsProcessor) for p in processors)
    processors.insert(at, openai)
    scores = torch.tensor(logits)[None]
    for p in processors:
        before, scores = scores, p(ids, scores)
        name = type(p).__name__
        part = {"TopPLogitsWarper": "top_p", "MinPLogitsWarper": "min_p"}.get(name)
        if part and near_threshold(before, **{part: what[part]}):
            raise SystemExit(f"{what}: too near a threshold; change the seed")
    if greedy:
        probs = torch.zeros_like(scores)
        probs[0, scores.argmax()] = 1
        return probs[0], [type(p).__name__ for p in processors]
    return torch.softmax(scores, -1)[0], [type(p).__name__ for p in processors]


def make(out):
    rng = np.random.default_rng(20)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                         num_attention_heads=1, num_key_value_heads=1))
    data, cases, row_info = [], [], {}

    def store(x):
        data.append(np.asarray(x, "<f4"))
        return sum(len(d) for d in data) - len(x)

    row = {k: v.astype("f4") for k, v in rows(rng).items()}
    for name, x in row.items():
        row_info[name] = {"at": store(x), "vocab": len(x)}
    for name, what in CASES:
        what, x = dict(what), row[name]
        n_prompt, n_output = 7, 8
        tokens = [int(t) for t in rng.integers(0, len(x), n_prompt + n_output)]
        tokens[3] = tokens[1]
        tokens[-2] = tokens[-1] = tokens[-4]  # three times in the output
        if what.get("eos") == ["best"]:
            what["eos"] = [int(x.argmax())]
        probs, order = run(model, x, tokens, n_prompt, what)
        cases.append({"row": name, "params": what, "tokens": tokens, "n_prompt": n_prompt,
                      "survivors": int((probs > 0).sum()), "probs": store(probs.numpy()), "order": order})
    out.mkdir(exist_ok=True)
    np.concatenate(data).tofile(out / "sampling.f32")
    lines = ",\n".join("  " + json.dumps(c) for c in cases)
    (out / "sampling.json").write_text(
        '{"data": "sampling.f32",\n "rows": %s,\n "cases": [\n%s\n]}\n' % (json.dumps(row_info), lines))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--check", action="store_true")
    if not ap.parse_args().check:
        return make(HERE / "sampling")
    with tempfile.TemporaryDirectory() as tmp:
        make(pathlib.Path(tmp))
        for name in ("sampling.json", "sampling.f32"):
            if (pathlib.Path(tmp) / name).read_bytes() != (HERE / "sampling" / name).read_bytes():
                raise SystemExit(f"{name} differs")


if __name__ == "__main__":
    main()
