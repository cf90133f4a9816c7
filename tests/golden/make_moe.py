"""Makes the golden expert models: small mixture-of-experts checkpoints with random weights, named and laid out as on
the hub, and what transformers computes from them.

    python make_moe.py            writes moe/ and moe_gguf/ beside this file
    python make_moe.py --check    makes them elsewhere and compares with what is here
    python make_moe.py NAME...    only these
"""
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import make_models
import oracle
import routing
from make_moe_gguf import GGUFS, make_gguf

BASE = dict(hidden_size=32, intermediate_size=64, rms_norm_eps=1e-6)
MLA = dict(BASE, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=16,
           v_head_dim=16, n_routed_experts=16, moe_intermediate_size=32, first_k_dense_replace=1)
YARN = dict(type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1)
V2_YARN = dict(YARN, mscale=0.707, mscale_all_dim=0.707)
V3_YARN = dict(YARN, mscale=1.0, mscale_all_dim=1.0)
# What the hub's config.json have besides, and nobody needs.
DEEPSEEK = dict(aux_loss_alpha=0.001, ep_size=1, moe_layer_freq=1, seq_aux=True)
V2_HUB = dict(DEEPSEEK, scoring_func="softmax")
V3_HUB = dict(DEEPSEEK, scoring_func="sigmoid", topk_method="noaux_tc")
PROBE = list(range(90))
NOT_ON_HUB = ["head_dim", "qk_head_dim", "rope_interleave", "output_router_logits"]


class Model(make_models.Model):
    """As make_models.Model. `hub`: keys added to config.json as they stand. `fused`: experts as transformers 5 has
    them in memory. `mtp`: with the layer for multi-token prediction that nobody reads. `fp8`: size of the blocks."""

    def __init__(self, arch, dtype="bfloat16", old=False, hub=None, fused=False, mtp=False, fp8=None, **more):
        super().__init__(arch, dtype, old, **more)
        self.hub, self.fused, self.mtp, self.fp8 = hub or {}, fused, mtp, fp8


MODELS = {
    "qwen2moe": Model("Qwen2Moe", old=True, **BASE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                      shared_expert_intermediate_size=64, norm_topk_prob=False, rope_theta=1000000.0,
                      use_sliding_window=False, sliding_window=32, max_window_layers=2, drop=["layer_types"],
                      hub=dict(sliding_window=32)),
    "qwen2moe-norm-sparse": Model("Qwen2Moe", **BASE, num_experts=10, num_experts_per_tok=4, norm_topk_prob=True,
                                  moe_intermediate_size=16, shared_expert_intermediate_size=40, num_hidden_layers=4,
                                  decoder_sparse_step=2, mlp_only_layers=[3], tie_word_embeddings=True),
    "qwen3moe-h8": Model("Qwen3Moe", old=True, **BASE, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=64,
                         norm_topk_prob=True, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
                         drop=["num_local_experts"], hub=dict(num_experts=8)),
    "qwen3moe-fused": Model("Qwen3Moe", **BASE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                            norm_topk_prob=True, head_dim=16, mlp_only_layers=[0], fused=True),
    "mixtral": Model("Mixtral", old=True, **{**BASE, "intermediate_size": 32}, num_local_experts=8,
                     num_experts_per_tok=2, sliding_window=None),
    "mixtral-fused-f32": Model("Mixtral", "float32", **{**BASE, "intermediate_size": 32}, num_local_experts=4,
                               num_experts_per_tok=2, num_hidden_layers=1, fused=True),
    "deepseek-v2-lite": Model("DeepseekV2", old=True, **{**MLA, "q_lora_rank": None, "n_routed_experts": 8,
                                                            "moe_intermediate_size": 16},
                              num_hidden_layers=3, num_experts_per_tok=3, n_shared_experts=2, n_group=1, topk_group=1,
                              topk_method="greedy", routed_scaling_factor=1.0, rope_scaling=V2_YARN, hub=V2_HUB,
                              drop=NOT_ON_HUB),
    "deepseek-v2": Model("DeepseekV2", old=True, **{**MLA, "moe_intermediate_size": 16}, num_experts_per_tok=4,
                         n_shared_experts=2, n_group=4, topk_group=2, topk_method="group_limited_greedy",
                         routed_scaling_factor=4.0, rope_scaling=V2_YARN, hub=V2_HUB, drop=NOT_ON_HUB),
    "deepseek-v3": Model("DeepseekV3", old=True, **{**MLA, "moe_intermediate_size": 16}, num_experts_per_tok=4,
                         n_shared_experts=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
                         rope_scaling=V3_YARN, mtp=True, hub=V3_HUB, drop=NOT_ON_HUB),
    # Even at any degree up to 8, with integer weights too; transformers 5's config; the two mscales differ.
    "deepseek-v3-h8": Model("DeepseekV3", **{**MLA, "q_lora_rank": 32, "qk_rope_head_dim": 8, "v_head_dim": 32,
                                             "num_key_value_heads": 8, "n_routed_experts": 8},
                            num_attention_heads=8, num_experts_per_tok=2, n_shared_experts=2, n_group=1, topk_group=1,
                            norm_topk_prob=False, routed_scaling_factor=1.5, num_mtp_layers=0,
                            rope_scaling=dict(V3_YARN, mscale=1.0, mscale_all_dim=0.6)),
    "deepseek-v3-fp8": Model("DeepseekV3", old=True, **{**MLA, "kv_lora_rank": 24, "n_routed_experts": 8},
                             num_experts_per_tok=3, n_shared_experts=1, n_group=2, topk_group=1, norm_topk_prob=True,
                             routed_scaling_factor=2.5, rope_scaling=V3_YARN, mtp=True, fp8=16, hub=V3_HUB,
                             drop=NOT_ON_HUB),
    # The block that all real ones have, whole and in part: ffn 160, kv_b 288 rows, o_proj 160 columns.
    "deepseek-v3-fp8-128": Model("DeepseekV3", old=True, **{**MLA, "intermediate_size": 160, "q_lora_rank": None,
                                                            "num_key_value_heads": 8, "v_head_dim": 20,
                                                            "n_routed_experts": 8},
                                 num_attention_heads=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2,
                                 topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, fp8=128, hub=V3_HUB,
                                 drop=NOT_ON_HUB),
}


def randomize(model, name, tied):
    oracle.randomize(model, name, tied)
    g = oracle.rng_for(name + "/bias")
    for key, b in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            b.copy_(0.1 * torch.randn(b.shape, generator=g))


def mtp_layer(tensors, config, name):
    """R1's layer after the last: what multi-token prediction needs, and a block as the others."""
    last, extra = config.num_hidden_layers - 1, f"model.layers.{config.num_hidden_layers}."
    g = oracle.rng_for(name + "/mtp")
    for key, t in list(tensors.items()):
        if key.startswith(f"model.layers.{last}."):
            std = 0.1 if t.dim() == 1 else t.float().std()
            tensors[key.replace(f"layers.{last}.", f"layers.{last + 1}.")] = (
                torch.randn(t.shape, generator=g) * std + (1 if key.endswith("norm.weight") else 0)).to(t.dtype)
    n, dtype = config.hidden_size, tensors["model.norm.weight"].dtype
    for key in "enorm", "hnorm", "shared_head.norm":
        tensors[f"{extra}{key}.weight"] = (1 + 0.2 * torch.randn(n, generator=g)).to(dtype)
    tensors[extra + "eh_proj.weight"] = (torch.randn(n, 2 * n, generator=g) / (2 * n) ** 0.5).to(dtype)
    tensors[extra + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[extra + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()


def spread(scale, shape, block):
    """One value for each weight, from one for each block; the last blocks may be cut off."""
    return scale.repeat_interleave(block, 0).repeat_interleave(block, 1)[: shape[0], : shape[1]]


def to_fp8(tensors, block):
    """Matrices within blocks to e4m3, as DeepSeek's: the largest of each block becomes 448."""
    for key, t in list(tensors.items()):
        if t.dim() != 2 or "_proj" not in key or "eh_proj" in key:
            continue
        rows, cols = (-(-n // block) for n in t.shape)
        padded = torch.zeros(rows * block, cols * block)
        padded[: t.shape[0], : t.shape[1]] = t.float()
        scale = padded.view(rows, block, cols, block).abs().amax((1, 3)) / 448
        tensors[key] = (t.float() / spread(scale, t.shape, block)).to(torch.float8_e4m3fn)
        tensors[key + "_scale_inv"] = scale


def from_fp8(tensors, block):
    out = {}
    for key, t in tensors.items():
        if not key.endswith("_scale_inv"):
            scale = tensors.get(key + "_scale_inv")
            out[key] = t.float() if scale is None else t.float() * spread(scale, t.shape, block)
    return out


def write_config(spec, folder):
    path = folder / "config.json"
    c = json.loads(path.read_text())
    if spec.old:
        c = make_models.old_config(c, spec.drop)
        if "rope_scaling" in spec.config:
            c["rope_scaling"] = spec.config["rope_scaling"]
    c.update(spec.hub)
    if spec.fp8:
        c["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                    "weight_block_size": [spec.fp8, spec.fp8]}
    path.write_text(json.dumps(dict(sorted(c.items())), indent=2) + "\n")


def save(spec, name, folder):
    """Returns what the model that was written makes of PROBE."""
    config = make_models.config_for(spec)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, spec.arch + "ForCausalLM")(config).eval()
    randomize(model, f"{name}/{spec.seed}" if spec.seed else name, config.tie_word_embeddings)
    dtype = getattr(torch, spec.dtype)
    for p in model.parameters():
        p.copy_(p.to(dtype))
    logits = oracle.logits_of(model, PROBE)
    model.to(dtype)
    for key, b in model.named_buffers():
        if key.endswith("e_score_correction_bias"):  # f32 in every checkpoint
            b.data = b.data.float()
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id)
    model.save_pretrained(folder, save_original_format=not spec.fused)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    fused = [k for k in tensors if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    single = [k for k in tensors if ".experts.0." in k]
    assert (fused and not single) if spec.fused else (single and not fused), sorted(tensors)
    if spec.mtp:
        mtp_layer(tensors, config, name)
    if spec.fp8:
        to_fp8(tensors, spec.fp8)
    save_file(tensors, path, metadata={"format": "pt"})
    write_config(spec, folder)
    return logits


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    mtp = f"model.layers.{model.config.num_hidden_layers}."
    assert all(k.startswith(mtp) for k in info["unexpected_keys"]), info
    return model.eval()


def load_dequantised(spec, folder):
    """transformers does not take blocks that are cut off; so it is given the weights they stand for, in f32."""
    with tempfile.TemporaryDirectory() as plain:
        plain = pathlib.Path(plain)
        c = json.loads((folder / "config.json").read_text())
        del c["quantization_config"]
        (plain / "config.json").write_text(json.dumps(c))
        save_file(from_fp8(load_file(folder / "model.safetensors"), spec.fp8), plain / "model.safetensors",
                  metadata={"format": "pt"})
        return load(plain)


def make_model(name, out):
    spec, folder = MODELS[name], out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = save(spec, name, folder)
    model = load_dequantised(spec, folder) if spec.fp8 else load(folder)
    if not spec.fp8:  # whatever the names, it is read back as what it was
        off = float((oracle.logits_of(model, PROBE) - written).abs().max())
        assert off < 1e-5, f"{name}: reads back differently: {off}"
    oracle.check_context(model)
    routing.check(model, name)
    eos = [spec.config["eos_token_id"]]
    v = routing.Vectors(model, name, eos)
    v.add_random(1, [0])
    v.add_random(5, list(range(5)))
    v.add_random(41, list(range(33, 41)))
    v.add_random(150, [0, 15, 16, 31, 32, 63, 64, 95, 96, 127, 128, 148, 149])
    v.write(folder / "vectors", {"eos": eos})
    for path in folder.iterdir():
        path.chmod(0o644)
    return v


if __name__ == "__main__":
    make_models.main(__doc__, MODELS, GGUFS, make_model, make_gguf, "moe", "moe_gguf")
