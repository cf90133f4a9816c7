"""Expert models as llama.cpp's converter and quantiser write them, and their oracle; see make_gguf.py."""
import pathlib

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from gguf import LlamaFileType as F
from transformers import modeling_gguf_pytorch_utils as hf_gguf

import make_gguf as dense
import oracle
import routing
from toy_tokenizer import Toy

ARCHS = {"Qwen2Moe": "qwen2moe", "Qwen3Moe": "qwen3moe", "Mixtral": "llama", "DeepseekV2": "deepseek2",
         "DeepseekV3": "deepseek2"}
NAMES = {
    **dense.NAMES,
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.{s}.{part}_proj": f"ffn_{part}_shexp" for s in ("shared_expert", "shared_experts")
       for part in ("gate", "up", "down")},
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
ALWAYS_F32 = ("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", ".bias")

SMALL = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
QWEN2 = dict(SMALL, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64,
             norm_topk_prob=False)
QWEN3 = dict(SMALL, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)
MIXTRAL = dict(SMALL, intermediate_size=32, num_local_experts=8, num_experts_per_tok=2)
MLA = dict(SMALL, num_hidden_layers=2, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=32,
           qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=8, n_shared_experts=1, moe_intermediate_size=32,
           first_k_dense_replace=1)
V2_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
           "mscale": 0.707, "mscale_all_dim": 0.707}
V3_YARN = {**V2_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
LITE = dict(MLA, q_lora_rank=None, num_experts_per_tok=3, n_shared_experts=2, topk_method="greedy", n_group=1,
            topk_group=1, rope=V2_YARN)
V2 = dict(MLA, num_experts_per_tok=3, n_group=4, topk_group=2, topk_method="group_limited_greedy",
          routed_scaling_factor=4.0, rope=V2_YARN)
TINY = dict(qk_nope_head_dim=16, v_head_dim=16, kv_lora_rank=24, moe_intermediate_size=16)  # for the exact types
V3 = dict(MLA, num_experts_per_tok=3, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
          rope=V3_YARN)


class Gguf(dense.Gguf):
    """`past`: as converters wrote it before they changed it. deepseek2: one attn_kv_b instead of attn_k_b and
    attn_v_b, no key for the router's function (then softmax) nor for groups; qwen2moe: a vector ffn_gate_inp_shexp."""

    def __init__(self, *args, past=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.past = past

    def type_of(self, name, x):
        if x.ndim == 1 or name.endswith(ALWAYS_F32):
            return Q.F32
        return super().type_of(name, x.ndim)


HALF = {"file_type": F.MOSTLY_F16, "type": Q.F16}
GGUFS = {
    "qwen2moe-f16.gguf": Gguf("Qwen2Moe", base=QWEN2, **HALF, tied=False),
    "qwen2moe-q8_0-old.gguf": Gguf("Qwen2Moe", F.MOSTLY_Q8_0, Q.Q8_0, QWEN2, tied=False, past=True),
    "qwen3moe-f16.gguf": Gguf("Qwen3Moe", base=QWEN3, **HALF, moe_intermediate_size=16, num_hidden_layers=2,
                              head_dim=16),
    # Rows of 32 and 128 are no multiple of 256: there the quantiser falls back to blocks of 32.
    "qwen3moe-q4_k_m.gguf": Gguf("Qwen3Moe", F.MOSTLY_Q4_K_M, Q.Q4_K, QWEN3, hidden_size=256, head_dim=32,
                                 num_experts=4, moe_intermediate_size=32, tied=True,
                                 types={**dense.K_MORE, "ffn_down": Q.Q8_0, "attn_output": Q.Q5_0}),
    "mixtral-f16.gguf": Gguf("Mixtral", base=MIXTRAL, **HALF, tied=False),
    "mixtral-q4_0.gguf": Gguf("Mixtral", F.MOSTLY_Q4_0, Q.Q4_0, MIXTRAL, hidden_size=64, tied=False,
                              types={"output.weight": Q.Q8_0, "attn_v": Q.Q8_0}),
    "deepseek2-lite-f16-old.gguf": Gguf("DeepseekV2", base=LITE, **HALF, **TINY, tied=False, past=True),
    "deepseek2-lite-q8_0-old.gguf": Gguf("DeepseekV2", F.MOSTLY_Q8_0, Q.Q8_0, LITE, tied=False, past=True),
    "deepseek2-v2-f16.gguf": Gguf("DeepseekV2", base=V2, **HALF, **TINY),
    "deepseek2-v3-f16.gguf": Gguf("DeepseekV3", base=V3, **HALF, **TINY, tied=False),
    "deepseek2-v3-mixed.gguf": Gguf("DeepseekV3", F.MOSTLY_Q4_0, Q.Q8_0, V3, tied=False,
                                    types={"_exps": Q.Q4_0, "attn_q_b": Q.Q5_0, "attn_v_b": Q.Q5_1,
                                           "attn_output": Q.Q4_1}),
}


def write_header(w, spec, config, toy, name):
    arch, c = ARCHS[spec.arch], config
    mla, now = arch == "deepseek2", not spec.past
    w.add_type("model")
    w.add_name(name.removesuffix(".gguf"))
    w.add_size_label("8x10K")
    w.add_license("apache-2.0")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(1 if mla and now else c.num_key_value_heads)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_expert_count(c.num_local_experts if arch == "llama" or spec.arch == "DeepseekV3" else c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_file_type(spec.file_type)
    rope = c.rope_parameters
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if now:
            w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if arch == "llama":
        w.add_vocab_size(c.vocab_size)
        w.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    elif arch == "qwen3moe":
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    if arch in ("qwen2moe", "qwen3moe"):
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if arch == "qwen2moe":
        w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    if mla:
        qk, rank = c.qk_nope_head_dim + c.qk_rope_head_dim, c.kv_lora_rank
        w.add_vocab_size(c.vocab_size)
        w.add_leading_dense_block_count(c.first_k_dense_replace)
        if c.q_lora_rank:
            w.add_q_lora_rank(c.q_lora_rank)
        w.add_kv_lora_rank(rank)
        w.add_key_length(rank + c.qk_rope_head_dim if now else qk)
        w.add_value_length(rank if now else c.v_head_dim)
        w.add_rope_dimension_count(c.qk_rope_head_dim)
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
        w.add_expert_shared_count(c.n_shared_experts)
        w.add_expert_weights_scale(c.routed_scaling_factor)
        if c.norm_topk_prob or not now:
            w.add_expert_weights_norm(c.norm_topk_prob)
        if now:
            w.add_key_length_mla(qk)
            w.add_value_length_mla(c.v_head_dim)
            w.add_expert_group_count(c.n_group)
            w.add_expert_group_used_count(c.topk_group)
            w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if spec.arch == "DeepseekV3"
                                     else gguf.ExpertGatingFuncType.SOFTMAX)
    dense.write_tokenizer(w, c, toy)


def gguf_name(key):
    if key in NAMES:
        return NAMES[key]
    _, _, layer, *part = key.split(".")
    kind = part.pop() if part[-1] in ("weight", "bias") else "weight"
    return f"blk.{layer}.{NAMES['.'.join(part)]}.{kind}"


def pieces(spec, config, key, a):
    """(GGUF's name, view of `a`) of each tensor that a parameter becomes."""
    name = gguf_name(key) if not key.endswith("gate_up_proj") else None
    if key.endswith("experts.gate_up_proj"):
        n, layer = a.shape[1] // 2, key.split(".")[2]
        return [(f"blk.{layer}.ffn_gate_exps.weight", a[:, :n]), (f"blk.{layer}.ffn_up_exps.weight", a[:, n:])]
    if key.endswith("kv_b_proj.weight") and not spec.past:
        per_head = a.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        k, v = np.split(per_head, [config.qk_nope_head_dim], 1)
        return [(name.replace("kv_b", "k_b"), k.swapaxes(1, 2)), (name.replace("kv_b", "v_b"), v)]
    if key.endswith("shared_expert_gate.weight") and spec.past:
        return [(name, a[0])]
    return [(name, a)]


def make_gguf(name, out):
    out.mkdir(parents=True, exist_ok=True)
    path, spec = pathlib.Path(out) / name, GGUFS[name]
    arch = ARCHS[spec.arch]
    toy = Toy("qwen2", 317) if arch.startswith("qwen") else Toy("llama3", 320)
    c = dict(spec.config)
    rope = {"rope_theta": 10000.0, **c.pop("rope", {"rope_type": "default"})}
    config = getattr(transformers, spec.arch + "Config")(
        vocab_size=320, max_position_embeddings=512, rms_norm_eps=1e-6, rope_parameters=rope,
        tie_word_embeddings=spec.tied, eos_token_id=toy.id(toy.eos), attn_implementation="eager",
        experts_implementation="eager", **c)
    model = getattr(transformers, spec.arch + "ForCausalLM")(config).eval()
    oracle.randomize(model, name, spec.tied)
    biases = {k: b for k, b in model.named_buffers() if k.endswith("e_score_correction_bias")}
    for key, b in biases.items():
        b.copy_(0.1 * torch.randn(b.shape, generator=oracle.rng_for(name + key)))
    rng = np.random.default_rng(list(name.encode()))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    w = gguf.GGUFWriter(path, arch)
    write_header(w, spec, config, toy, name)
    types = {}
    for key, p in model.named_parameters():
        std = oracle.weight_std(key, p.shape, spec.tied) if p.dim() > 1 else 0
        turn = next((n for part, n in heads.items() if part in key), 0) if arch == "llama" else 0
        for piece, there in pieces(spec, config, key, p.numpy()):
            x = np.ascontiguousarray(dense.permute(there, turn) if turn else there)
            q = spec.type_of(piece, x)
            data = dense.quantize(rng, x, q, std)
            w.add_tensor(piece, data, raw_dtype=q)
            y = gguf.quants.dequantize(data, q).reshape(x.shape)
            there[...] = dense.permute(y, turn, inverse=True) if turn else y
            types[q.name] = types.get(q.name, 0) + 1
    for key, b in biases.items():
        w.add_tensor(f"blk.{key.split('.')[2]}.exp_probs_b.bias", b.numpy().astype(np.float32))
        types["F32"] += 1
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()

    oracle.check_context(model)
    routing.check(model, name)
    exact = set(types) <= {"F32", "F16", "BF16"}
    v = routing.Vectors(model, name, [config.eos_token_id], want_greedy=exact, spare=not exact)
    v.add_random(1, [0])
    v.add_random(9, [4, 8])
    v.add_random(130, [0, 31, 32, 64, 100, 127, 128, 129])
    extra = {"exact": exact, "types": types}
    if not exact:
        extra["int8_rms_block32"] = v.int8_rms(32)
        extra["int8_rms_token"] = v.int8_rms(0)
    v.write(path.with_suffix(""), extra)
    if arch.startswith("qwen"):
        cross_check(path, config, v)
    return v


def cross_check(path, config, v):
    """transformers' own reader must see the same model. (It knows the Qwens only, and passes the sizes of their
    experts over.)"""
    hf_gguf.tqdm = lambda x, **_: x  # no progress bars
    parsed = hf_gguf.load_gguf_checkpoint(path)["config"]
    for key in "moe_intermediate_size", "shared_expert_intermediate_size":
        if hasattr(config, key):
            parsed[key] = getattr(config, key)
    theirs = transformers.AutoConfig.for_model(**parsed)
    theirs._attn_implementation = theirs._experts_implementation = "eager"
    other = transformers.AutoModelForCausalLM.from_config(theirs).eval()
    tensors = hf_gguf.load_gguf_checkpoint(path, return_tensors=True, model_to_load=other)["tensors"]
    tensors = {k: t.reshape(1, -1) if k.endswith("shared_expert_gate.weight") else t for k, t in tensors.items()}
    missing, unknown = other.load_state_dict(tensors, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}, (missing, unknown)
    for p in v.prompts:
        a, b = oracle.logits_of(other, p["ids"]), oracle.logits_of(v.model, p["ids"])
        assert (a - b).abs().max() < 1e-4, f"{path.name}: transformers reads another model from it"
