"""Checkpoints made on the fly: Qwen3-MoE shapes, Qwen2 shapes, random bfloat16 weights, the golden models' tokenizer."""
import json
import random
import shutil
import struct

from harness import LLAMA

VOCAB = 320  # of the golden tokenizer; more is fine


def _norms_and_attention(c, add):
    h, d = c["hidden_size"], c["head_dim"]
    heads, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    add("model.embed_tokens", c["vocab_size"], h)
    add("lm_head", c["vocab_size"], h)
    add("model.norm", h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(p + name, h)
        for name in ("q_norm", "k_norm"):
            add(p + "self_attn." + name, d)
        add(p + "self_attn.q_proj", heads, h)
        add(p + "self_attn.k_proj", kv, h)
        add(p + "self_attn.v_proj", kv, h)
        add(p + "self_attn.o_proj", h, heads)
        yield p


def _feed_forward(p, h, ffn, add):
    add(p + "gate_proj", ffn, h)
    add(p + "up_proj", ffn, h)
    add(p + "down_proj", h, ffn)


def qwen3(folder, experts=0, **config):
    """Writes a Qwen3 model, or with experts a Qwen3-MoE one, into the folder; returns it."""
    c = {"architectures": ["Qwen3MoeForCausalLM" if experts else "Qwen3ForCausalLM"],
         "model_type": "qwen3_moe" if experts else "qwen3", "attention_bias": False, "hidden_act": "silu",
         "bos_token_id": 316, "eos_token_id": 319, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
         "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
         "vocab_size": VOCAB, "sliding_window": None, "use_sliding_window": False, **config}
    if experts:
        c |= {"num_experts": experts, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
              "intermediate_size": c["moe_intermediate_size"]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(c))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(LLAMA / name, folder / name)
    head, at = {}, 0

    def add(name, *shape):
        nonlocal at
        n = 2
        for x in shape:
            n *= x
        head[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n

    for p in _norms_and_attention(c, add):
        if experts:
            add(p + "mlp.gate", experts, c["hidden_size"])
        for e in range(experts):
            _feed_forward(f"{p}mlp.experts.{e}.", c["hidden_size"], c["moe_intermediate_size"], add)
        if not experts:
            _feed_forward(p + "mlp.", c["hidden_size"], c["intermediate_size"], add)
    # One block of random numbers about a thirtieth in size, over and over. Its length is odd, so no two rows are equal.
    rng = random.Random(1)
    block = b"".join(struct.pack("<f", rng.gauss(0, 1 / 32))[2:] for _ in range(262139))
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for i in range(at // len(block)):
            f.write(block)
        f.write(block[:at % len(block)])
    return folder
