"""The oracle: random weights of a sane scale, and what Hugging Face transformers computes from them in f32.

Everything here is deterministic: the same versions (requirements.txt) give the same bytes of weights, and the same
logits up to the order in which the machine's BLAS adds.
"""
import contextlib
import json
import pathlib
import zlib

import numpy as np
import torch

GREEDY = 24  # tokens in each continuation
# What makes a continuation a good test: the least distance between the two best logits along the path, in standard
# deviations of a row (no ties), and the number of different tokens (no dull loops). Tried in this order.
CLEAR = [(0.05, 8), (0.03, 5), (0.01, 3)]
TRIES = 250

torch.set_grad_enabled(False)


def rng_for(name):
    """A generator of its own for each purpose, so that adding a model does not change the others."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def weight_std(name, shape, tied):
    """A trained model's activations stay near 1 and its attention is neither flat nor one-hot; so here."""
    if name.endswith("embed_tokens.weight"):
        return 0.15 if tied else 0.5  # small when tied: or every token would predict itself
    if name.endswith("lm_head.weight"):
        return 2.0 / shape[-1] ** 0.5
    gain = 1.0
    if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj")):
        gain = 1.3
    elif name.endswith("mlp.gate.weight"):
        gain = 1.5  # a router of clear preferences
    return gain / shape[-1] ** 0.5


def randomize(model, name, tied):
    """Fills a model's parameters: matrices N(0, std), norms around 1, biases around 0."""
    g = rng_for(name)
    for key, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=g, dtype=torch.float32)
        if p.dim() > 1:
            p.copy_(noise * weight_std(key, p.shape, tied))
        elif key.endswith("norm.weight"):
            p.copy_(1.0 + 0.2 * noise)
        else:
            p.copy_(0.2 * noise)


def logits_of(model, ids):
    """[positions, vocab] in the model's own dtype, the whole sequence at once."""
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, ids, n, eos, wants_eos=False, unwanted=(), clear=CLEAR[0]):
    """The greedy continuation and its margin, or None if it will not do as a test."""
    out, least = [], 1e9
    cache, feed = None, ids
    for _ in range(n):
        r = model(torch.tensor([feed]), cache=cache, use_cache=True)
        cache, row = r.cache, r.logits[0, -1]
        top = torch.topk(row, 2)
        least = min(least, float((top.values[0] - top.values[1]) / row.std()))
        best = int(top.indices[0])
        if least < clear[0] or best in unwanted or (best in eos and not wants_eos):
            return None
        out.append(best)
        if best in eos:
            break
        feed = [best]
    if wants_eos:
        if out[-1] not in eos or len(out) < 4:
            return None
    elif len(set(out)) < clear[1]:
        return None
    # The cache was only a short cut for the search; the truth is one pass over everything.
    again = logits_of(model, ids + out)[len(ids) - 1 : -1].argmax(-1).tolist()
    return (out, round(least, 4)) if again == out else None


@contextlib.contextmanager
def fake_int8(model, group):
    """Rounds the input of every matrix product to int8, one scale per `group` values (0: per token). Routers and
    the gate of a shared expert are spared: their weights stay f32 in every format."""
    exact = {id(p) for n, p in model.named_parameters() if n.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))}
    linear = torch.nn.functional.linear

    def rounded(x, w, bias=None):
        if id(w) in exact:
            return linear(x, w, bias)
        y = x.reshape(*x.shape[:-1], -1, group) if group else x.unsqueeze(-2)
        scale = y.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return linear(((y / scale).round() * scale).reshape(x.shape), w, bias)

    torch.nn.functional.linear = rounded
    try:
        yield
    finally:
        torch.nn.functional.linear = linear


class Vectors:
    """Collects prompts and logits of one model; writes <stem>.json and <stem>.f32."""

    def __init__(self, model, name, eos, want_greedy=True):
        self.model, self.name, self.eos, self.want_greedy = model, name, eos, want_greedy
        self.vocab = model.config.vocab_size
        self.prompts, self.rows, self.noise = [], [], 0.0
        self.g = rng_for(name + "/prompts")

    def keep(self, ids, positions, extra):
        x = logits_of(self.model, ids)
        self.model.double()
        self.noise = max(self.noise, float((logits_of(self.model, ids) - x).abs().max()))
        self.model.float()
        self.prompts.append({"ids": ids, "positions": positions, "row": len(self.rows), **extra})
        self.rows += list(x[positions])

    def draw(self, n):
        return torch.randint(self.vocab, (n,), generator=self.g).tolist()

    def judge(self, ids):
        """What else is to be said of a prompt with its continuation; None if it is no good."""
        return {}

    def add_random(self, n, positions, wants_eos=False, unwanted=()):
        """A prompt of n random ids whose continuation is well-defined; found by trying."""
        for clear in CLEAR:
            for _ in range(TRIES):
                ids = self.draw(n)
                if not self.want_greedy:
                    if (more := self.judge(ids)) is not None:
                        return self.keep(ids, positions, more)
                    continue
                found = greedy(self.model, ids, GREEDY, self.eos, wants_eos, unwanted, clear)
                more = self.judge(ids + found[0][:-1]) if found else None
                if more is not None:
                    finish = "eos" if wants_eos else "length"
                    return self.keep(ids, positions, {"greedy": found[0], "margin": found[1], "finish": finish, **more})
        raise SystemExit(f"{self.name}: no prompt of {n} ids with a clear continuation; other weights are needed")

    def int8_rms(self, group):
        """Root mean square of the logits' change when activations are int8, in standard deviations of logits."""
        with fake_int8(self.model, group):
            d = torch.cat([logits_of(self.model, p["ids"])[p["positions"]] for p in self.prompts])
        x = torch.stack(self.rows)
        return float((d - x).square().mean().sqrt() / x.std())

    def write(self, stem, extra=None):
        stem = pathlib.Path(stem)
        x = torch.stack(self.rows).numpy().astype("<f4")
        assert np.isfinite(x).all()
        x.tofile(f"{stem}.f32")
        doc = {
            "model": self.name,
            "vocab": self.vocab,
            "logits": f"{stem.name}.f32",
            "rows": len(self.rows),
            "scale": float(x.std()),
            "noise": self.noise,
            **(extra or {}),
            "prompts": self.prompts,
        }
        write_json(f"{stem}.json", doc)


def check_context(model, window_reach=None):
    """The first token of a long prompt must matter to the last logits; or not at all, if windows hide it."""
    ids = torch.randint(model.config.vocab_size, (150,), generator=rng_for("context")).tolist()
    a = logits_of(model, ids)[-1]
    b = logits_of(model, [(ids[0] + 1) % model.config.vocab_size] + ids[1:])[-1]
    change = float((a - b).abs().max() / a.std())
    if window_reach and window_reach < 149:
        assert change < 1e-5, f"outside the windows, yet the logits move by {change}"
    else:
        assert change > 1e-3, f"the context does not matter: {change}"


def write_json(path, doc):
    """JSON with one key, and one item of each list, on a line: small, and readable in a diff."""

    def dump(v):
        return json.dumps(v, ensure_ascii=False)

    def body(v):
        if not isinstance(v, list) or not v or isinstance(v[0], int):
            return dump(v)
        return "[\n  " + ",\n  ".join(map(dump, v)) + "\n ]"

    text = "{\n " + ",\n ".join(f"{dump(k)}: {body(v)}" for k, v in doc.items()) + "\n}\n"
    pathlib.Path(path).write_text(text)
