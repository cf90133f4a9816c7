#!/usr/bin/env python3
"""make_gguf.py SHAPE OUT.gguf TOKENIZER.gguf: a model of a real large shape with random weights in Q4_0.

For measuring what no checkpoint at hand is large enough for: bytes, shapes and number formats are the real ones, answers are
noise. Matrices are random 4-bit codes with one scale (a standard deviation of 0.02), norms 1, routers and norms in F32, embedding and head in
Q8_0. The tokenizer is another GGUF file's, filled up with unused tokens. Python's standard library only; the same arguments
make the same bytes.
"""
import random
import struct
import sys

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
T_F32, T_Q4_0, T_Q8_0 = 0, 2, 8

# Published configurations; vocabularies as in the checkpoints.
SHAPES = {
    "llama-3.1-8b": dict(arch="llama", layers=32, hidden=4096, heads=32, kv=8, head=128, ffn=14336, vocab=128256, context=131072,
                         theta=500000.0),
    "qwen3-30b-a3b": dict(arch="qwen3moe", layers=48, hidden=2048, heads=32, kv=4, head=128, ffn=6144, vocab=151936,
                          context=40960, theta=1000000.0, experts=128, used=8, expert_ffn=768),
    "deepseek-v2-lite": dict(arch="deepseek2", layers=27, hidden=2048, heads=16, kv=16, ffn=10944, vocab=102400, context=163840,
                             theta=10000.0, experts=64, used=6, expert_ffn=1408, shared=2, dense=1, latent=512, rope=64,
                             nope=128, value=128),
}


class Reader:
    """Just enough of a GGUF file: its metadata, values as raw bytes."""

    def __init__(self, path):
        self.f = open(path, "rb")
        magic, version, _, n = struct.unpack("<4sIQQ", self.f.read(24))
        assert magic == b"GGUF" and version in (2, 3)
        self.meta = {}
        for _ in range(n):
            key = self.string().decode()
            kind, = struct.unpack("<I", self.f.read(4))
            self.meta[key] = (kind, self.value(kind))

    def string(self):
        return self.f.read(struct.unpack("<Q", self.f.read(8))[0])

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, n = struct.unpack("<IQ", self.f.read(12))
            return of, [self.value(of) for _ in range(n)]
        return self.f.read(SIZES[kind])


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def packed(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        of, items = v
        return struct.pack("<IQ", of, len(items)) + b"".join(packed(of, x) for x in items)
    return v if isinstance(v, bytes) else struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], v)


def metadata(s, tokenizer):
    a = s["arch"]
    u = {"block_count": s["layers"], "embedding_length": s["hidden"], "feed_forward_length": s["ffn"],
         "attention.head_count": s["heads"], "attention.head_count_kv": s["kv"], "context_length": s["context"],
         "vocab_size": s["vocab"]}
    f = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": s["theta"]}
    if a == "deepseek2":
        u |= {"attention.kv_lora_rank": s["latent"], "rope.dimension_count": s["rope"], "attention.key_length": s["nope"] + s["rope"],
              "attention.value_length": s["value"], "expert_shared_count": s["shared"], "leading_dense_block_count": s["dense"]}
        f |= {"expert_weights_scale": 1.0}
    else:
        u |= {"attention.key_length": s["head"], "attention.value_length": s["head"], "rope.dimension_count": s["head"]}
    if "experts" in s:
        u |= {"expert_count": s["experts"], "expert_used_count": s["used"], "expert_feed_forward_length": s["expert_ffn"]}
    meta = {"general.architecture": (STRING, a)}
    meta |= {f"{a}.{k}": (U32, v) for k, v in u.items()} | {f"{a}.{k}": (F32, v) for k, v in f.items()}
    for key, (kind, v) in tokenizer.meta.items():
        if not key.startswith("tokenizer."):
            continue
        if kind == ARRAY and key.rsplit(".", 1)[1] in ("tokens", "token_type", "scores"):
            of, items = v
            for i in range(len(items), s["vocab"]):
                items.append({STRING: b"<unused_%d>" % i, 5: struct.pack("<i", 5), 6: bytes(4)}[of])
        meta[key] = (kind, v)
    return meta


def tensors(s):
    """(name, shape as [rows, cols] with any number of outer axes, type)"""
    h, out = s["hidden"], [("token_embd.weight", (s["vocab"], s["hidden"]), T_Q8_0)]
    for i in range(s["layers"]):
        def add(name, *shape, kind=T_Q4_0):
            out.append((f"blk.{i}.{name}.weight", shape, kind))
        add("attn_norm", h, kind=T_F32)
        if s["arch"] == "deepseek2":
            add("attn_q", s["heads"] * (s["nope"] + s["rope"]), h)
            add("attn_kv_a_mqa", s["latent"] + s["rope"], h)
            add("attn_kv_a_norm", s["latent"], kind=T_F32)
            add("attn_kv_b", s["heads"] * (s["nope"] + s["value"]), s["latent"])
            add("attn_output", h, s["heads"] * s["value"])
        else:
            add("attn_q", s["heads"] * s["head"], h)
            add("attn_k", s["kv"] * s["head"], h)
            add("attn_v", s["kv"] * s["head"], h)
            add("attn_output", h, s["heads"] * s["head"])
        if s["arch"] == "qwen3moe":
            add("attn_q_norm", s["head"], kind=T_F32)
            add("attn_k_norm", s["head"], kind=T_F32)
        add("ffn_norm", h, kind=T_F32)
        if "experts" in s and i >= s.get("dense", 0):
            e, n = s["expert_ffn"], s["experts"]
            add("ffn_gate_inp", n, h, kind=T_F32)
            add("ffn_gate_exps", n, e, h)
            add("ffn_up_exps", n, e, h)
            add("ffn_down_exps", n, h, e)
            if "shared" in s:
                e *= s["shared"]
                add("ffn_gate_shexp", e, h)
                add("ffn_up_shexp", e, h)
                add("ffn_down_shexp", h, e)
        else:
            add("ffn_gate", s["ffn"], h)
            add("ffn_up", s["ffn"], h)
            add("ffn_down", h, s["ffn"])
    return out + [("output_norm.weight", (h,), T_F32), ("output.weight", (s["vocab"], h), T_Q8_0)]


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def size(shape, kind):
    return count(shape) * 4 if kind == T_F32 else count(shape) // 32 * (18 if kind == T_Q4_0 else 34)


def blocks(n, step, scale):
    """n blocks of a 16-bit scale and random codes."""
    data = bytearray(random.randbytes(n * step))
    lo, hi = struct.pack("<e", scale)
    data[0::step], data[1::step] = bytes([lo]) * n, bytes([hi]) * n
    return data


def write(f, shape, kind):
    if kind == T_F32:
        f.write(struct.pack("<f", 1.0) * count(shape) if len(shape) == 1 else
                b"".join(struct.pack("<f", random.gauss(0, 0.02)) for _ in range(count(shape))))
        return
    step, scale = (18, 0.02 / 4.61) if kind == T_Q4_0 else (34, 0.02 / 73.9)
    left = count(shape) // 32
    while left:
        n = min(left, 1 << 20)
        f.write(blocks(n, step, scale))
        left -= n


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__ + "\nShapes: " + ", ".join(SHAPES))
    s, path = SHAPES[sys.argv[1]], sys.argv[2]
    random.seed(1)
    meta, all_tensors, align = metadata(s, Reader(sys.argv[3])), tensors(s), 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(all_tensors), len(meta))
    head += b"".join(text(k) + struct.pack("<I", kind) + packed(kind, v) for k, (kind, v) in meta.items())
    at = 0
    for name, shape, kind in all_tensors:
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in reversed(shape))
        head += struct.pack("<IQ", kind, at)
        at += -(-size(shape, kind) // align) * align
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % align))
        for name, shape, kind in all_tensors:
            write(f, shape, kind)
            f.write(bytes(-f.tell() % align))
    print(f"{path}: {sum(count(x[1]) for x in all_tensors) / 1e9:.2f} billion weights, {at / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
