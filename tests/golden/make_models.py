"""Makes the golden models: small checkpoints with random weights, and what transformers computes from them.

    python make_models.py            writes models/ and gguf/ beside this file
    python make_models.py --check    makes them elsewhere and compares with what is here
    python make_models.py NAME...    only these

README.md says what each model is for and how the vectors are written.
"""
import argparse
import contextlib
import json
import logging
import pathlib
import shutil
import sys
import tempfile
import warnings

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import oracle
from make_gguf import GGUFS, make_gguf
from toy_tokenizer import Toy

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

COMMON = dict(vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, rope_theta=10000.0, rms_norm_eps=1e-5,
              bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
# The smallest model that still has pairs of heads, for what concerns positions only.
TINY = dict(hidden_size=32, head_dim=16, intermediate_size=64)


class Model:
    """One folder. `config` overrides COMMON; `old` writes config.json as the hub's older checkpoints have it."""

    def __init__(self, arch, dtype="bfloat16", old=False, reach=None, tokenizer=None, eos=None, sampling=None,
                 shard=None, drop=(), extra_tensors=False, seed=0, **config):
        self.arch, self.dtype, self.old, self.reach = arch, dtype, old, reach
        self.tokenizer, self.eos, self.sampling = tokenizer, eos, sampling
        self.shard, self.drop, self.extra_tensors = shard, drop, extra_tensors
        self.seed = seed  # where the first weights had no clear continuations
        self.config = {**COMMON, **config}


QWEN_SAMPLING = dict(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)

MODELS = {
    # Llama: the shapes
    "llama-gqa": Model("Llama", tokenizer=("llama3", 320), vocab_size=320, hidden_size=64, eos="all",
                       sampling=dict(do_sample=True, temperature=0.6, top_p=0.9), rope_theta=500000.0),
    "llama-mha-tied-f16": Model("Llama", "float16", old=True, num_key_value_heads=4, tie_word_embeddings=True,
                                drop=["num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "rope_theta"],
                                extra_tensors=True),
    "llama-bias-f32": Model("Llama", "float32", old=True, attention_bias=True, mlp_bias=True, **TINY),
    "llama-odd": Model("Llama", vocab_size=131, hidden_size=72, intermediate_size=100, num_attention_heads=6,
                       head_dim=24, tie_word_embeddings=True, rms_norm_eps=1e-6, eos=[2, 5]),
    "llama-mqa": Model("Llama", num_key_value_heads=1, num_hidden_layers=3),
    "llama-sharded": Model("Llama", old=True, shard="62KB"),
    "llama-h8kv8": Model("Llama", vocab_size=256, hidden_size=64, intermediate_size=256, num_attention_heads=8,
                         num_key_value_heads=8, head_dim=16, tie_word_embeddings=True),
    "llama-h8d32": Model("Llama", vocab_size=96, hidden_size=64, intermediate_size=256, num_attention_heads=8,
                         num_key_value_heads=4, head_dim=32, tie_word_embeddings=True),
    "llama-h9kv3": Model("Llama", old=True, hidden_size=72, num_attention_heads=9, num_key_value_heads=3,
                         tie_word_embeddings=True, rope_theta=100000.0),
    # Llama: the positions
    "llama-rope-linear": Model("Llama", rope_scaling={"rope_type": "linear", "factor": 2.5}, **TINY),
    "llama-rope-linear-old": Model("Llama", old=True, rope_scaling={"type": "linear", "factor": 4.0}, **TINY),
    "llama-rope-dynamic": Model("Llama", old=True, rope_scaling={"type": "dynamic", "factor": 2.0}, **TINY),
    "llama-rope-llama3": Model("Llama", rope_scaling=LLAMA3_ROPE, **TINY),
    "llama-rope-llama3-old": Model("Llama", old=True, rope_scaling=LLAMA3_ROPE, rope_theta=500000.0, **TINY),
    "llama-rope-yarn": Model("Llama", rope_scaling={**YARN_ROPE, "beta_fast": 16.0, "beta_slow": 2.0,
                                                    "attention_factor": 1.25}, **TINY),
    # Qwen 2: biases on q, k, v; windows that the config mentions and does not use, and windows in use
    "qwen2-tied": Model("Qwen2", old=True, seed=4, tokenizer=("qwen2", 317), vocab_size=320, hidden_size=64,
                        eos="all", sampling=QWEN_SAMPLING, tie_word_embeddings=True, rope_theta=1000000.0,
                        rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=32, max_window_layers=1),
    "qwen2-window": Model("Qwen2", use_sliding_window=True, sliding_window=37, max_window_layers=1,
                          num_hidden_layers=3, intermediate_size=64),
    "qwen2-window-all-old": Model("Qwen2", old=True, use_sliding_window=True, sliding_window=37, max_window_layers=0,
                                  reach=2 * 36, hidden_size=32, intermediate_size=64),
    "qwen2-h14kv2": Model("Qwen2", old=True, hidden_size=112, intermediate_size=76, num_attention_heads=14,
                          tie_word_embeddings=True, vocab_size=97),
    "qwen2-yarn-old": Model("Qwen2", old=True, hidden_size=32, intermediate_size=64, num_attention_heads=2,
                            num_key_value_heads=1, rope_scaling={"type": "yarn", "factor": 4.0,
                                                                 "original_max_position_embeddings": 64}),
    # Qwen 3: norms on q and k, head_dim of its own
    "qwen3-tied": Model("Qwen3", old=True, head_dim=16, tie_word_embeddings=True, eos=[2, 3], rms_norm_eps=1e-6,
                        rope_theta=1000000.0, use_sliding_window=False, sliding_window=None, max_window_layers=2),
    "qwen3-bias": Model("Qwen3", attention_bias=True, head_dim=32, hidden_size=32, intermediate_size=64),
    # Mistral: Llama's mathematics with a window on every layer, or none
    "mistral-window": Model("Mistral", sliding_window=40, reach=2 * 39),
    "mistral-plain-old": Model("Mistral", old=True, sliding_window=None, **TINY),
}

ENCODE = ["Hello, world!", "The capital of France is", "It's 12345 o'clock; they'll be back.",
          "  two  spaces\n\n\ttab", "naïve café — 日本語 😀", "if (x[0] != 3) {\n    return;\n}\n", ""]
QUESTIONS = ["What is the capital of France?", "How many oxen pull the log?", "Who are you?", "Name three things.",
             *(f"What is {a} + {b}?" for a in range(1, 10) for b in range(1, 10))]


def old_config(c, drop):
    """config.json as transformers 4 wrote it, and as most checkpoints on the hub still have it."""
    rope = c.pop("rope_parameters")
    c["rope_theta"] = rope.pop("rope_theta")
    kind = rope.get("rope_type")
    c["rope_scaling"] = None if kind == "default" else rope
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.46.0"
    c.pop("layer_types", None)
    for key in drop:
        c.pop(key, None)
    return dict(sorted(c.items()))


def config_for(spec):
    c = dict(spec.config)
    rope = {"rope_theta": c.pop("rope_theta"), **(c.pop("rope_scaling", None) or {"rope_type": "default"})}
    rope.setdefault("rope_type", rope.get("type"))
    return getattr(transformers, spec.arch + "Config")(rope_parameters=rope, **c)


def eos_ids(spec, toy):
    if spec.eos == "all":  # chat models stop at several
        return [toy.id(s) for s in toy.specials if s in ("<|im_end|>", "<|end_of_text|>", "<|endoftext|>")][::-1]
    return spec.eos or [spec.config["eos_token_id"]]


def save(spec, name, folder, toy):
    config = config_for(spec)
    eos = eos_ids(spec, toy)
    config.eos_token_id = eos[0]
    if toy:
        config.bos_token_id = toy.id(toy.bos) if toy.bos else toy.id("<|endoftext|>")
    model = getattr(transformers, spec.arch + "ForCausalLM")(config)
    oracle.randomize(model, f"{name}/{spec.seed}" if spec.seed else name, config.tie_word_embeddings)
    model.to(getattr(torch, spec.dtype))
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=eos if len(eos) > 1 else eos[0], **(spec.sampling or {}))
    model.save_pretrained(folder, **({"max_shard_size": spec.shard} if spec.shard else {}))
    if spec.old:
        path = folder / "config.json"
        c = old_config(json.loads(path.read_text()), spec.drop)
        for key in "sliding_window", "max_window_layers":  # as on the hub: there even when not in use
            if key in spec.config:
                c[key] = spec.config[key]
        if "rope_scaling" in spec.config:  # as its author spelled it: "type" or "rope_type"
            c["rope_scaling"] = spec.config["rope_scaling"]
        path.write_text(json.dumps(dict(sorted(c.items())), indent=2) + "\n")
    if spec.extra_tensors:  # Llama 2's checkpoints carry these; they are to be passed over
        path = folder / "model.safetensors"
        tensors = load_file(path)
        for layer in range(config.num_hidden_layers):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = model.model.rotary_emb.inv_freq.float()
        save_file(tensors, path, metadata={"format": "pt"})
    return eos


def chat_vectors(v, toy, folder, eos):
    """Text in, text out: what `yoke run --chat` prints at temperature 0, for questions that are no close call."""
    unwanted = [i for i in range(v.vocab) if i >= toy.tok.get_vocab_size() or
                toy.tok.id_to_token(i) in toy.specials and i not in eos]
    real = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    real.chat_template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    chats = []
    for system in None, "Be brief.":
        wanted = len(chats) + 2
        for q in QUESTIONS:
            messages = [{"role": "user", "content": q}]
            if system:
                messages.insert(0, {"role": "system", "content": system})
            text = toy.render(messages)
            assert text == real.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = toy.encode(text, False)
            found = oracle.greedy(v.model, ids, oracle.GREEDY, eos, unwanted=unwanted)
            if found:
                chats.append({"messages": messages, "text": text, "ids": ids, "greedy": found[0],
                              "greedy_text": toy.decode(found[0]), "margin": found[1]})
            if len(chats) == wanted:
                break
        assert len(chats) == wanted, f"{v.name}: only {len(chats)} clear answers"
    encode = [{"text": t, "ids": toy.encode(t, False), "ids_special": toy.encode(t, True)} for t in ENCODE]
    return {"eos": eos, "encode": encode, "chat": chats}


def make_model(name, out):
    spec, folder = MODELS[name], out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    toy = Toy(*spec.tokenizer) if spec.tokenizer else None
    if toy:
        toy.write(folder)
    eos = save(spec, name, folder, toy)
    # From here on only the folder counts: the oracle runs what transformers reads from it, in f32.
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    oracle.check_context(model.eval(), spec.reach)

    v = oracle.Vectors(model, name, eos)
    v.add_random(1, [0])
    v.add_random(5, list(range(5)))
    v.add_random(41, list(range(33, 41)))
    v.add_random(150, [0, 15, 16, 31, 32, 36, 37, 39, 40, 63, 64, 72, 73, 79, 95, 96, 127, 128, 148, 149])
    extra = {"eos": eos}
    if toy:
        v.add_random(9, [8], wants_eos=True, unwanted=range(toy.tok.get_vocab_size(), v.vocab))
        extra = chat_vectors(v, toy, folder, eos)
    v.write(folder / "vectors", extra)
    for path in folder.iterdir():
        path.chmod(0o644)
    return v


def compare(here, there):
    """The same files; bytes equal, but logits within rounding and the numbers derived from them not compared."""
    bad = []
    names = {p.relative_to(there) for p in there.rglob("*") if p.is_file()}
    for n in sorted(names):
        a, b = here / n, there / n
        if not a.exists():
            bad.append(f"{n}: missing here")
        elif n.suffix == ".f32":
            x, y = np.fromfile(a, "<f4"), np.fromfile(b, "<f4")
            if x.shape != y.shape or np.abs(x - y).max() > 1e-4 * max(1, x.std()):
                bad.append(f"{n}: logits differ")
        elif (there / n).with_suffix(".f32").exists() and n.suffix == ".json":
            x, y = json.loads(a.read_text()), json.loads(b.read_text())
            if [p["ids"] for p in x["prompts"]] != [p["ids"] for p in y["prompts"]] or [
                p.get("greedy") for p in x["prompts"]] != [p.get("greedy") for p in y["prompts"]]:
                bad.append(f"{n}: prompts differ")
        elif a.read_bytes() != b.read_bytes():
            bad.append(f"{n}: bytes differ")
    return bad


def main(doc, models, ggufs, make_model, make_gguf, models_dir, ggufs_dir):
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--check", action="store_true")
    ap.add_argument("names", nargs="*", help="models (default: all)")
    args = ap.parse_args()
    names = args.names or [*models, *ggufs]
    if unknown := [n for n in names if n not in models and n not in ggufs]:
        sys.exit(f"no such model: {', '.join(unknown)}; there are {', '.join([*models, *ggufs])}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() if args.check else contextlib.nullcontext(HERE) as out:
        out = pathlib.Path(out)
        for name in names:
            if name in models:
                v = make_model(name, out / models_dir)
            else:
                v = make_gguf(name, out / ggufs_dir)
            margins = [p["margin"] for p in v.prompts if "margin" in p]
            routing = [p["routing"] for p in v.prompts if "routing" in p]
            print(f"{name}: scale {np.std([r.numpy() for r in v.rows]):.2f} noise {v.noise:.1e}"
                  + (f" least margin {min(margins):.3f}" if margins else "")
                  + (f" routing {min(routing):.4f}" if routing else ""), flush=True)
        if args.check:
            bad = compare(HERE, out)
            print("\n".join(bad) or f"{len(names)} models: as committed")
            sys.exit(bool(bad))


if __name__ == "__main__":
    main(__doc__, MODELS, GGUFS, make_model, make_gguf, "models", "gguf")
