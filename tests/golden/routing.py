"""Routers of expert models, watched: which experts each token gets, and how close a call it was.

A router is a step function: where two experts are nearly even, rounding decides, and two correct programs part ways.
So the prompts here are drawn until no call is close.
"""
import torch

import oracle

# The least gap, at every token and layer, between the last expert (or group) taken and the first left out: in logits
# of the router where it takes the largest of a softmax, in scores (sigmoid + bias, whose slope is up to 4 times less)
# where DeepSeek V3's does. Rounding of f32 moves them by some 1e-5, f16 KV by some 1e-3.
CLOSE = {"logits": 0.01, "scores": 0.0025}
CLOSE_INT8 = {"logits": 0.06, "scores": 0.015}  # for int8 activations; and none may change hands (see below)


def gap(x, k):
    """Between the k-th largest and the next, over the last dimension; infinite where all are taken."""
    if k >= x.shape[-1]:
        return torch.full(x.shape[:-1], float("inf"), dtype=x.dtype)
    top = x.topk(k + 1).values
    return top[..., k - 1] - top[..., k]


def verdict(router, logits):
    """(gap per token, kind) of one router's decisions."""
    x, kind = logits.double(), "logits"
    if hasattr(router, "e_score_correction_bias"):
        x, kind = x.sigmoid() + router.e_score_correction_bias.double(), "scores"
    grouped = getattr(router, "topk_method", "group_limited_greedy") == "group_limited_greedy"
    n = getattr(router, "num_group", None) or 1
    least = torch.full((len(x),), float("inf"), dtype=torch.float64)
    if grouped and n > 1:
        g = x.view(len(x), n, -1)
        group = g.topk(2).values.sum(-1) if kind == "scores" else g.max(-1).values
        least = gap(group, router.topk_group)
        kept = torch.zeros_like(group).scatter_(1, group.topk(router.topk_group).indices, 1).bool()
        x = g.masked_fill(~kept.unsqueeze(-1), float("-inf")).view(len(x), -1)
    return torch.minimum(least, gap(x, router.top_k)), kind


class Watch:
    """Within `with Watch(model) as w:`, w.seen has (router, logits, weights, chosen) of each call, in order."""

    def __init__(self, model):
        self.routers = [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]

    def __enter__(self):
        self.seen = []
        self.hooks = [
            m.register_forward_hook(lambda m, _, out: self.seen.append((m, out[0].reshape(-1, m.num_experts), *out[1:])))
            for m in self.routers
        ]
        return self

    def __exit__(self, *_):
        for h in self.hooks:
            h.remove()

    def least(self):
        """For each token, the least gap of any layer, as a multiple of what is close."""
        each = [(g / self.close[kind]) for g, kind in (verdict(m, logits) for m, logits, *_ in self.seen)]
        return torch.stack(each).min(0).values

    close = CLOSE


def run(model, ids, close=CLOSE):
    with Watch(model) as w:
        oracle.logits_of(model, ids)
    w.close = close
    return w


def chosen(w):
    return [c.reshape(-1, m.top_k).sort(-1).values for m, _, _, c in w.seen]


class Vectors(oracle.Vectors):
    """As oracle.Vectors, of prompts without close calls. `spare`: none under int8 activations either."""

    def __init__(self, *args, spare=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.close = CLOSE_INT8 if spare else CLOSE
        self.spare = spare

    def draw(self, n):
        """Random ids; then, from the left, each that makes a close call is drawn again. Later ones do not matter to
        earlier ones."""
        ids = super().draw(n)
        for _ in range(200 * n):
            near = (run(self.model, ids, self.close).least() < 1).nonzero()
            if len(near) == 0:
                return ids
            at = int(near[0])
            ids[at] = super().draw(1)[0]
        raise SystemExit(f"{self.name}: routers of nothing but close calls")

    def judge(self, ids):
        w = run(self.model, ids, self.close)
        if w.least().min() < 1:
            return None
        if self.spare:
            for group in 32, 0:
                with oracle.fake_int8(self.model, group):
                    if any((a != b).any() for a, b in zip(chosen(w), chosen(run(self.model, ids)))):
                        return None
        gaps = {}
        for m, logits, *_ in w.seen:
            g, kind = verdict(m, logits)
            gaps[kind] = min(gaps.get(kind, 1e9), float(g.min()))
        assert len(gaps) == 1, gaps
        return {"routing": round(min(gaps.values()), 4)}


def choose(m, s):
    """DeepSeek V3's choice by scores that are given."""
    g = s.view(len(s), m.num_group, -1)
    group = g.topk(2).values.sum(-1)
    kept = torch.zeros_like(group).scatter_(1, group.topk(m.topk_group).indices, 1).bool()
    return g.masked_fill(~kept.unsqueeze(-1), float("-inf")).view(len(s), -1).topk(m.top_k).indices


def check(model, name):
    """What a router does must matter: every expert gets tokens, and so does each of its rules."""
    ids = torch.randint(model.config.vocab_size, (400,), generator=oracle.rng_for(name + "/routing")).tolist()
    with Watch(model) as w:
        oracle.logits_of(model, ids)
    assert w.seen, f"{name}: no routers"
    for m, logits, weights, c in w.seen:
        k = m.top_k
        counts = torch.bincount(c.flatten(), minlength=m.num_experts)
        assert counts.min() > 0, f"{name}: idle experts: {counts.tolist()}"
        plain = logits.topk(k).indices.sort(-1).values
        differ = float((plain != c.sort(-1).values).any(-1).float().mean())
        bias = getattr(m, "e_score_correction_bias", None)
        groups = getattr(m, "topk_method", "group_limited_greedy") == "group_limited_greedy" and \
            (getattr(m, "num_group", None) or 1) > 1
        if bias is not None or groups:
            assert differ > 0.1, f"{name}: bias and groups do not matter: {differ}"
        else:
            assert differ == 0
        if bias is not None and groups:  # each of the two by itself
            s = logits.sigmoid()
            unbiased = choose(m, s).sort(-1).values
            ungrouped = (s + bias).topk(k).indices.sort(-1).values
            for what, other in ("bias", unbiased), ("groups", ungrouped):
                d = float((other != c.sort(-1).values).any(-1).float().mean())
                assert d > 0.1, f"{name}: {what} hardly matter: {d}"
