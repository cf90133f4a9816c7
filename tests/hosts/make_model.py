#!/usr/bin/env python3
"""make_model.py OUT TOKENIZER_DIR [--hidden 96 --layers 3 ...]: a Llama of any size with random bf16 weights.

The same arguments make the same bytes. Python's standard library only. Weights are +-2^-7 to +-2^-5 (uniform bits below a
fixed exponent), norms 1: activations stay finite, answers are noise. The tokenizer is copied from another model's folder;
its ids must be below --vocab.
"""
import argparse
import json
import pathlib
import random
import shutil
import struct

ap = argparse.ArgumentParser()
ap.add_argument("out", type=pathlib.Path)
ap.add_argument("tokenizer", type=pathlib.Path)
for name, value in {"hidden": 96, "layers": 3, "heads": 4, "kv": 2, "ffn": 160, "vocab": 320, "context": 4096}.items():
    ap.add_argument("--" + name, type=int, default=value)
a = ap.parse_args()
head = a.hidden // a.heads
random.seed(1)
SIGNS = bytes(0x3C if b & 1 else 0xBC for b in range(256))


def weights(n):
    data = bytearray(2 * n)
    data[0::2] = random.randbytes(n)
    data[1::2] = random.randbytes(n).translate(SIGNS)
    return data


shapes = {"model.embed_tokens.weight": (a.vocab, a.hidden), "model.norm.weight": (a.hidden,)}
for i in range(a.layers):
    p = f"model.layers.{i}."
    shapes |= {p + "input_layernorm.weight": (a.hidden,), p + "post_attention_layernorm.weight": (a.hidden,),
               p + "self_attn.q_proj.weight": (a.heads * head, a.hidden), p + "self_attn.k_proj.weight": (a.kv * head, a.hidden),
               p + "self_attn.v_proj.weight": (a.kv * head, a.hidden), p + "self_attn.o_proj.weight": (a.hidden, a.heads * head),
               p + "mlp.gate_proj.weight": (a.ffn, a.hidden), p + "mlp.up_proj.weight": (a.ffn, a.hidden),
               p + "mlp.down_proj.weight": (a.hidden, a.ffn)}
header, at = {}, 0
for name, shape in shapes.items():
    size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
a.out.mkdir(parents=True, exist_ok=True)
with open(a.out / "model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for shape in shapes.values():
        f.write(b"\x80\x3f" * shape[0] if len(shape) == 1 else weights(shape[0] * shape[1]))
(a.out / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": a.hidden,
    "intermediate_size": a.ffn, "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv,
    "head_dim": head, "vocab_size": a.vocab, "max_position_embeddings": a.context, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 316, "eos_token_id": 317}))
for name in "tokenizer.json", "tokenizer_config.json", "generation_config.json":
    if (a.tokenizer / name).exists():
        shutil.copy(a.tokenizer / name, a.out / name)
