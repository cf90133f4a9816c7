"""GGUF files as llama.cpp's converter and quantiser make them, from random weights, and their oracle.

The file comes first: its tensors are quantised (or, for the K formats, which the gguf package reads but does not
write, made of random codes with sane scales), then dequantised by the gguf package, un-permuted, and given to
transformers.
"""
import pathlib

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from gguf import LlamaFileType as F
from transformers import modeling_gguf_pytorch_utils as hf_gguf

import oracle
from toy_tokenizer import CHATML, Toy

NAMES = {  # Hugging Face's name: GGUF's
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}
SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
BLOCK32 = dict(hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
BLOCK256 = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=8,
                num_key_value_heads=2)


class Gguf:
    """`type` for every matrix, but `types` (by a part of the GGUF name) where given."""

    def __init__(self, arch, file_type, type, base, types=None, tied=True, **config):
        self.arch, self.file_type, self.type, self.types, self.tied = arch, file_type, type, types or {}, tied
        self.config = {**base, **config}

    def type_of(self, name, ndim):
        if ndim == 1:  # norms and biases stay f32, as everywhere
            return Q.F32
        return next((t for part, t in self.types.items() if part in name), self.type)


K_MORE = {"attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q6_K}  # what the _M mixtures keep finer
GGUFS = {
    "llama-f32.gguf": Gguf("Llama", F.ALL_F32, Q.F32, SMALL),
    "llama-f16.gguf": Gguf("Llama", F.MOSTLY_F16, Q.F16, SMALL, tied=False),
    "llama-bf16-llama3.gguf": Gguf("Llama", F.MOSTLY_BF16, Q.BF16, SMALL, rope=LLAMA3_ROPE),
    "llama-q8_0.gguf": Gguf("Llama", F.MOSTLY_Q8_0, Q.Q8_0, BLOCK32),
    "llama-q4_0.gguf": Gguf("Llama", F.MOSTLY_Q4_0, Q.Q4_0, BLOCK32, tied=False, types={"output.weight": Q.Q8_0}),
    "llama-q4_1.gguf": Gguf("Llama", F.MOSTLY_Q4_1, Q.Q4_1, BLOCK32, types={"token_embd": Q.Q8_0}),
    "llama-q5_0.gguf": Gguf("Llama", F.MOSTLY_Q5_0, Q.Q5_0, BLOCK32),
    "llama-q5_1.gguf": Gguf("Llama", F.MOSTLY_Q5_1, Q.Q5_1, BLOCK32),
    "llama-q4_k_m.gguf": Gguf("Llama", F.MOSTLY_Q4_K_M, Q.Q4_K, BLOCK256, K_MORE),
    "llama-q5_k_m.gguf": Gguf("Llama", F.MOSTLY_Q5_K_M, Q.Q5_K, BLOCK256, K_MORE),
    "llama-q6_k.gguf": Gguf("Llama", F.MOSTLY_Q6_K, Q.Q6_K, BLOCK256),
    # Rows of 96 are no multiple of 256: there the quantiser falls back to the formats with blocks of 32.
    "qwen2-mixed.gguf": Gguf("Qwen2", F.MOSTLY_Q4_K_M, Q.Q5_0, BLOCK32, num_hidden_layers=1,
                             types={"attn_v": Q.Q8_0, "ffn_down": Q.Q8_0, "token_embd": Q.Q8_0}),
    "qwen3-mixed-yarn.gguf": Gguf("Qwen3", F.MOSTLY_Q5_K_M, Q.Q5_1, BLOCK32, num_hidden_layers=1, head_dim=32,
                                  num_attention_heads=4, types={"attn_v": Q.Q8_0, "ffn_up": Q.Q4_1,
                                                                "attn_k": Q.F16, "ffn_down": Q.Q4_0},
                                  rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.{kind}"


def permute(w, heads, inverse=False):
    """Rows of each head from halves (x[i], x[i + d/2] rotate together) to pairs (x[2i], x[2i + 1]), or back."""
    shape = (heads, -1, 2) if inverse else (heads, 2, w.shape[0] // heads // 2)
    return w.reshape(*shape, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def random_k_blocks(rng, q, rows, cols, std):
    """Every code and nearly every scale occurs; the weights' mean is near 0 and their deviation near std."""
    n = rows * cols // 256

    def half(x):
        return x.astype("<f2").view(np.uint8).reshape(n, 2)

    jitter = rng.uniform(0.8, 1.2, n)
    if q == Q.Q6_K:  # ql[128] qh[64] scales[16] d; w = d * scale * (code - 32)
        scales = rng.integers(-127, 128, (n, 16)).astype(np.int8).view(np.uint8)
        d = std / (18.5 * 73.6) * jitter
        block = [rng.integers(0, 256, (n, 192)).astype(np.uint8), scales, half(d)]
    else:  # d dmin scales[12] (qh[32]) qs[128]; w = d * scale * code - dmin * min
        top = 15 if q == Q.Q4_K else 31
        sc = rng.integers(0, 64, (n, 8))
        mn = np.clip(sc + rng.integers(-4, 5, (n, 8)), 0, 63)
        d = std / ((top + 1) / 12**0.5 * 36.4) * jitter
        lo, hi = slice(0, 4), slice(4, 8)
        packed = np.hstack([sc[:, lo] | (sc[:, hi] >> 4) << 6, mn[:, lo] | (mn[:, hi] >> 4) << 6,
                            (sc[:, hi] & 15) | (mn[:, hi] & 15) << 4]).astype(np.uint8)
        codes = rng.integers(0, 256, (n, 128 if q == Q.Q4_K else 160)).astype(np.uint8)
        block = [half(d), half(d * top / 2), packed, codes]
    return np.hstack(block).reshape(rows, -1)


def quantize(rng, x, q, std):
    if q in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        data = random_k_blocks(rng, q, x.size // x.shape[-1], x.shape[-1], std).reshape(*x.shape[:-1], -1)
        y = gguf.quants.dequantize(data, q)
        assert 0.7 * std < y.std() < 1.4 * std and abs(y.mean()) < 0.1 * std, (q, y.std() / std, y.mean() / std)
        return data
    return gguf.quants.quantize(x, q)


def rope_factors(config):
    """rope_freqs.weight: by what llama.cpp's converter has each frequency divided, from the rule of Llama 3."""
    r, n = config.rope_parameters, config.head_dim
    base = 1.0 / r["rope_theta"] ** (np.arange(0, n, 2, dtype=np.float64) / n)
    wavelen = 2 * np.pi / base
    old = r["original_max_position_embeddings"]
    smooth = (old / wavelen - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
    between = 1 / ((1 - smooth) / r["factor"] + smooth)
    factors = np.where(wavelen < old / r["high_freq_factor"], 1.0,
                       np.where(wavelen > old / r["low_freq_factor"], r["factor"], between))
    return factors.astype(np.float32)


def write_header(w, spec, config, toy, name):
    w.add_type("model")
    w.add_name(name.removesuffix(".gguf"))
    w.add_size_label("100K")
    w.add_license("apache-2.0")
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    if spec.arch == "Qwen3":
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    w.add_file_type(spec.file_type)
    if spec.arch == "Llama":
        w.add_vocab_size(config.vocab_size)
        w.add_rope_dimension_count(head_dim)
    if config.rope_parameters["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(config.rope_parameters["factor"])
        w.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
    write_tokenizer(w, config, toy)


def write_tokenizer(w, config, toy):
    tokens, types, merges = toy.pieces(config.vocab_size)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(toy.pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    if toy.bos:
        w.add_bos_token_id(toy.id(toy.bos))
    w.add_eos_token_id(toy.id(toy.eos))
    if toy.pad:
        w.add_pad_token_id(toy.id(toy.pad))
    w.add_add_bos_token(bool(toy.bos))
    w.add_chat_template(CHATML)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)


def make_gguf(name, out):
    out.mkdir(parents=True, exist_ok=True)
    path, spec = pathlib.Path(out) / name, GGUFS[name]
    toy = Toy("llama3", 320) if spec.arch == "Llama" else Toy("qwen2", 317)
    c = dict(spec.config)
    rope = {"rope_theta": 10000.0, **c.pop("rope", {"rope_type": "default"})}
    config = getattr(transformers, spec.arch + "Config")(
        vocab_size=320, max_position_embeddings=512, rms_norm_eps=1e-5, rope_parameters=rope,
        tie_word_embeddings=spec.tied, eos_token_id=toy.id(toy.eos), attn_implementation="eager", **c)
    model = getattr(transformers, spec.arch + "ForCausalLM")(config).eval()
    oracle.randomize(model, name, spec.tied)
    rng = np.random.default_rng(list(name.encode()))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    w = gguf.GGUFWriter(path, spec.arch.lower())
    write_header(w, spec, config, toy, name)
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(config))
    types = {}
    for key, p in model.named_parameters():
        x = p.numpy().copy()
        turn = next((n for part, n in heads.items() if part in key), 0) if spec.arch == "Llama" else 0
        if turn:
            x = permute(x, turn)
        q = spec.type_of(gguf_name(key), x.ndim)
        std = oracle.weight_std(key, x.shape, spec.tied) if x.ndim > 1 else 0
        data = quantize(rng, x, q, std)
        w.add_tensor(gguf_name(key), data, raw_dtype=q)
        y = gguf.quants.dequantize(data, q).reshape(x.shape)
        p.copy_(torch.from_numpy(permute(y, turn, inverse=True) if turn else y))
        types[q.name] = types.get(q.name, 0) + 1
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()

    oracle.check_context(model)
    exact = set(types) <= {"F32", "F16", "BF16"}
    v = oracle.Vectors(model, name, [config.eos_token_id], want_greedy=exact)
    v.add_random(1, [0])
    v.add_random(9, [4, 8])
    v.add_random(130, [0, 31, 32, 63, 64, 65, 100, 127, 128, 129])
    extra = {"exact": exact, "types": types}
    if not exact:  # how far int8 activations may move the logits: the yardstick for integer kernels
        extra["int8_rms_block32"] = v.int8_rms(32)
        extra["int8_rms_token"] = v.int8_rms(0)
    v.write(path.with_suffix(""), extra)
    cross_check(path, spec, v)
    return v


def cross_check(path, spec, v):
    """transformers' own GGUF reader, which shares nothing with this file, must see the same model."""
    if spec.config.get("rope"):
        return  # it does not read frequency factors or scaling rules
    hf_gguf.tqdm = lambda x, **_: x  # no progress bars
    parsed = hf_gguf.load_gguf_checkpoint(path)["config"]
    config = transformers.AutoConfig.for_model(**parsed)
    config._attn_implementation = "eager"
    other = transformers.AutoModelForCausalLM.from_config(config).eval()
    tensors = hf_gguf.load_gguf_checkpoint(path, return_tensors=True, model_to_load=other)["tensors"]
    missing, unknown = other.load_state_dict(tensors, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}, (missing, unknown)
    for p in v.prompts:
        a, b = oracle.logits_of(other, p["ids"]), oracle.logits_of(v.model, p["ids"])
        assert (a - b).abs().max() < 1e-4, f"{path.name}: transformers reads another model from it"
