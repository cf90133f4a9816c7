#!/usr/bin/env python3
"""Makes tests/golden/formats/: small checkpoints written by the formats' own libraries (safetensors, gguf), and
what gguf's reference dequantisation makes of them; and the seeds of fuzz_gguf and fuzz_safetensors. Needs numpy,
torch, safetensors, gguf.

    python tests/golden/make_formats.py
"""
import json
import os
import shutil
import struct

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import save_file

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "formats")
rng = np.random.default_rng(7)

ROWS, COLS = 3, 512  # two blocks of 256, sixteen of 32


def bytes_of(qtype, rows, cols):
    """Rows of one type. The simple types are quantised from normal numbers; the k-types, for which gguf has no
    quantiser, are random bytes with scales that are finite (of any sign, also tiny and zero)."""
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    if qtype not in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        return gguf.quants.quantize(x, qtype)
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    b = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    d = (rng.standard_normal((len(b), 2)) * 0.01).astype(np.float16)
    d[0] = [0.0, -6e-8]
    if qtype == Q.Q6_K:
        b[:, 208:210] = d[:, :1].copy().view(np.uint8)
    else:
        b[:, 0:4] = d.copy().view(np.uint8)
    return b.reshape(rows, -1)


TENSORS = [  # one of each type, under names that a llama has
    ("token_embd.weight", Q.Q8_0),
    ("output_norm.weight", Q.F32),
    ("blk.0.attn_q.weight", Q.F16),
    ("blk.0.attn_k.weight", Q.BF16),
    ("blk.0.attn_v.weight", Q.Q4_0),
    ("blk.0.attn_output.weight", Q.Q4_1),
    ("blk.0.ffn_gate.weight", Q.Q5_0),
    ("blk.0.ffn_up.weight", Q.Q5_1),
    ("blk.0.ffn_down.weight", Q.Q4_K),
    ("blk.1.attn_q.weight", Q.Q5_K),
    ("blk.1.attn_k.weight", Q.Q6_K),
]


def llama_metadata(w):
    w.add_block_count(2)
    w.add_context_length(2048)
    w.add_embedding_length(COLS)
    w.add_feed_forward_length(768)
    w.add_head_count(8)
    w.add_head_count_kv(2)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(64)
    w.add_tokenizer_model("gpt2")
    w.add_token_list(["a", "b", "", "\u0120c"])
    w.add_token_types([1, 1, 3, 1])
    w.add_token_scores([0.0, -1.0, -2.5, 3.0])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_eot_token_id(3)
    w.add_pad_token_id(2)


def write(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def every_type():
    path = os.path.join(OUT, "every_type.gguf")
    w = gguf.GGUFWriter(path, "llama")
    llama_metadata(w)
    expected = b""
    for name, qtype in TENSORS:
        rows = 1 if "norm" in name else ROWS
        b = bytes_of(qtype, rows, COLS)
        y = gguf.quants.dequantize(b, qtype).astype(np.float32)
        expected += y.tobytes()
        if rows == 1:
            b = b.reshape(-1)
        w.add_tensor(name, b, raw_dtype=qtype)
    write(w)
    with open(path + ".f32", "wb") as f:
        f.write(expected)


def split():
    """As the splitter of llama.cpp makes it: metadata in the first part, split.* in all."""
    x = rng.standard_normal((4, 32)).astype(np.float32)
    parts = [["token_embd.weight"], ["blk.0.attn_q.weight", "output_norm.weight"]]
    for no, names in enumerate(parts):
        w = gguf.GGUFWriter(os.path.join(OUT, f"split-{no + 1:05}-of-{len(parts):05}.gguf"), "llama")
        if no == 0:
            llama_metadata(w)
        w.add_uint16("split.no", no)
        w.add_uint16("split.count", len(parts))
        w.add_int32("split.tensors.count", sum(map(len, parts)))
        for n in names:
            w.add_tensor(n, x[0] if "norm" in n else x)
        write(w)


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 8,
}


def put(folder, name, value):
    os.makedirs(os.path.join(OUT, folder), exist_ok=True)
    with open(os.path.join(OUT, folder, name), "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def one_file():
    put("one_file", "config.json", CONFIG)
    put("one_file", "generation_config.json", {"eos_token_id": [2, 3], "temperature": 0.6})
    n = torch.arange(0, 12 * 5, dtype=torch.float32).reshape(12, 5) / 7
    save_file(
        {
            "a.f32": n,
            "b.f16": n.to(torch.float16),
            "c.bf16": n.to(torch.bfloat16).reshape(3, 4, 5),
            "d.vector": n[:, 0].contiguous(),
            "e.i64": torch.arange(6),
            "f.f8": n.to(torch.float8_e4m3fn),
            "g.f8_e5m2": n.to(torch.float8_e5m2),
            "h.scalar": torch.tensor(2.5),
            "i.empty": torch.zeros(0, 5),
            "j.bool": torch.tensor([True, False]),
        },
        os.path.join(OUT, "one_file", "model.safetensors"),
        metadata={"format": "pt"},
    )


def sharded():
    put("sharded", "config.json", {k: v for k, v in CONFIG.items() if k != "architectures"})
    shards = [{"x": torch.ones(4, 4), "y": torch.arange(8.0)}, {"z": torch.full((2, 2), 3.0).to(torch.bfloat16)}]
    weight_map = {}
    for i, s in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(s, os.path.join(OUT, "sharded", name), metadata={"format": "pt"})
        weight_map.update({k: name for k in s})
    total = sum(t.numel() * t.element_size() for s in shards for t in s.values())
    put("sharded", "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def seeds():
    """What the fuzzers start from: one small file of each kind."""
    fuzz = os.path.join(os.path.dirname(OUT), "..", "..", "fuzz", "corpus")

    def put_seed(kind, name, b):
        os.makedirs(os.path.join(fuzz, kind), exist_ok=True)
        with open(os.path.join(fuzz, kind, name), "wb") as f:
            f.write(b)

    def s8(s):
        return struct.pack("<Q", len(s)) + s.encode()

    def gguf_file(keys, tensors, version=3, align=32, data=b""):
        b = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
        return b + b"\0" * (-len(b) % align) + data

    u32 = lambda k, v: s8(k) + struct.pack("<II", 4, v)
    f32 = lambda k, v: s8(k) + struct.pack("<If", 6, v)
    text = lambda k, v: s8(k) + struct.pack("<I", 8) + s8(v)
    tensor = lambda n, dims, t, at: s8(n) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t, at)

    def model(arch, more=()):
        return [
            text("general.architecture", arch),
            u32(arch + ".embedding_length", 32),
            u32(arch + ".block_count", 1),
            u32(arch + ".attention.head_count", 4),
            u32(arch + ".feed_forward_length", 64),
            u32(arch + ".context_length", 128),
            f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6),
            *(u32(f"{arch}.{k}", v) for k, v in more),
        ]

    moe = (("expert_count", 8), ("expert_used_count", 2), ("expert_feed_forward_length", 24))
    mla = (
        ("expert_shared_count", 1),
        ("leading_dense_block_count", 1),
        ("attention.kv_lora_rank", 16),
        ("attention.key_length", 24),
        ("attention.value_length", 16),
        ("rope.dimension_count", 8),
    )
    embed = [tensor("token_embd.weight", (32, 2), 0, 0), tensor("blk.0.attn_q.weight", (32,), 8, 256)]
    data = bytes(range(256)) + b"\0" * 34
    for arch, more in (
        ("llama", ()),
        ("qwen2", ()),
        ("qwen3", (("attention.key_length", 16), ("attention.value_length", 16))),
        ("qwen2moe", moe + (("expert_shared_feed_forward_length", 16),)),
        ("qwen3moe", moe),
        ("deepseek2", moe + mla),
    ):
        put_seed("gguf", arch, gguf_file(model(arch, more), embed, data=data))
    yarn = [
        text("llama.rope.scaling.type", "yarn"),
        f32("llama.rope.scaling.factor", 4.0),
        u32("llama.rope.scaling.original_context_length", 32),
        u32("tokenizer.ggml.eos_token_id", 2),
        f32("general.sampling.temp", 0.5),
    ]
    put_seed("gguf", "yarn", gguf_file(model("llama") + yarn, embed, data=data))
    values = [
        s8(f"v{t}") + struct.pack("<I", t) + b"\1" * n
        for t, n in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8))
    ]
    array = lambda k, t, n, b: s8(k) + struct.pack("<IIQ", 9, t, n) + b
    arrays = [
        array("bytes", 0, 5, b"abcde"),
        array("bools", 7, 2, b"\0\1"),
        array("strings", 8, 2, s8("x") + s8("")),
        array("nested", 9, 1, struct.pack("<IQ", 8, 1) + s8("y")),
        array("nothing", 12, 0, b""),
    ]
    put_seed("gguf", "values", gguf_file(values, []))
    put_seed("gguf", "arrays_v2", gguf_file(arrays, [], version=2))
    blocks, at = [], 0
    for t in (0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 24, 26, 30):
        block, size = gguf.GGML_QUANT_SIZES[Q(t)]
        blocks.append(tensor(f"t{t}", (block,), t, at))
        at += size + -size % 64
    put_seed("gguf", "types_align_64", gguf_file([u32("general.alignment", 64)], blocks, align=64, data=b"\1" * at))
    put_seed("gguf", "big_endian", gguf_file([], [], version=0x03000000))
    put_seed("gguf", "lfs_pointer", b"version https://git-lfs.github.com/spec/v1\n")

    def st(name, header, n):
        h = json.dumps(header).encode()
        put_seed("safetensors", name, struct.pack("<Q", len(h)) + h + bytes(n))

    t = lambda dtype, shape, begin, end: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    st("empty", {}, 0)
    st("metadata", {"__metadata__": {"format": "pt"}}, 0)
    st("two", {"__metadata__": {"a": "b"}, "x": t("F32", [2, 3], 0, 24), "y": t("BF16", [4], 24, 32)}, 32)
    st("order", {"x": t("I64", [1], 8, 16), "y": t("U8", [2, 2, 2], 0, 8)}, 16)
    st("scalar", {"x": t("F16", [], 0, 2), "e": t("F32", [0, 9], 2, 2)}, 2)
    st("small_types", {"x": t("F4", [4], 0, 2), "y": t("F6_E3M2", [4], 2, 5), "z": t("F8_E4M3", [1], 5, 6)}, 6)
    st("overlap", {"x": t("U8", [4], 0, 4), "y": t("U8", [4], 2, 6)}, 6)
    st("hole", {"x": t("U8", [4], 0, 4), "y": t("U8", [4], 5, 9)}, 9)
    st("overflow", {"x": t("F32", [1 << 62, 4], 0, 0)}, 0)
    st("eight_dims", {"x": t("BOOL", [1, 1, 1, 1, 1, 1, 1, 3], 0, 3)}, 3)


shutil.rmtree(OUT, ignore_errors=True)
os.makedirs(OUT)
every_type()
split()
one_file()
sharded()
seeds()
for folder, _, files in os.walk(OUT):
    for f in files:
        os.chmod(os.path.join(folder, f), 0o644)  # safetensors writes 0600
