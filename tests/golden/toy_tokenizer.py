"""Two tokenizers of a few hundred tokens, built as the real ones are: Llama 3's and Qwen 2's, in small."""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """In pioneer days they used oxen for heavy pulling, and when one ox could not budge a log, they did not try to
grow a larger ox. They yoked two. The capital of France is Paris; what is the capital of Norway? You are a helpful
assistant. user system The quick brown fox jumps over the lazy dog, and the dog does not mind. int main(void) { return
0; } She said: "It's the first of three things that I'll do, and there's nothing we can't explain."
""" * 4

LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

CHATML = (
    "{%- if messages[0]['role'] != 'system' %}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- endif %}"
)

KINDS = {
    # name: (GGUF's name for it, split, normalizer, special tokens, bos, eos, pad)
    "llama3": ("llama-bpe", LLAMA3_SPLIT, None, ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"],
               "<|begin_of_text|>", "<|im_end|>", None),
    "qwen2": ("qwen2", QWEN2_SPLIT, normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
              None, "<|im_end|>", "<|endoftext|>"),
}


class Toy:
    def __init__(self, kind, n_vocab):
        self.kind = kind
        self.pre, split, norm, specials, self.bos, self.eos, self.pad = KINDS[kind]
        tok = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
        if norm:
            tok.normalizer = norm
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        tok.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tok.train_from_iterator(
            [CORPUS],
            trainers.BpeTrainer(
                vocab_size=n_vocab - len(specials), initial_alphabet=alphabet, special_tokens=[], show_progress=False
            ),
        )
        tok.add_special_tokens([AddedToken(s, normalized=False) for s in specials])
        assert tok.get_vocab_size() == n_vocab, tok.get_vocab_size()
        byte_level = processors.ByteLevel(trim_offsets=False)
        if self.bos:
            bos = processors.TemplateProcessing(
                single=f"{self.bos} $A", pair=f"{self.bos} $A {self.bos} $B",
                special_tokens=[(self.bos, tok.token_to_id(self.bos))])
            tok.post_processor = processors.Sequence([byte_level, bos])
        else:
            tok.post_processor = byte_level
        self.tok, self.specials = tok, specials

    def id(self, token):
        return self.tok.token_to_id(token)

    def write(self, folder):
        folder = pathlib.Path(folder)
        self.tok.save(str(folder / "tokenizer.json"))
        added = {
            str(self.id(s)): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                              "single_word": False, "special": True}
            for s in self.specials
        }
        config = {
            "added_tokens_decoder": added,
            "bos_token": self.bos,
            "chat_template": CHATML,
            "clean_up_tokenization_spaces": False,
            "eos_token": self.eos,
            "model_max_length": 512,
            "pad_token": self.pad,
            "tokenizer_class": "PreTrainedTokenizerFast" if self.bos else "Qwen2Tokenizer",
            "unk_token": None,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    def pieces(self, n_vocab):
        """For GGUF: every token's spelling, its type (1 normal, 3 control, 5 unused), and the merges. Where the
        model has more rows than the tokenizer has tokens, the converter invents names for the rest."""
        by_id = {i: t for t, i in self.tok.get_vocab(with_added_tokens=True).items()}
        tokens = [by_id[i] for i in range(len(by_id))]
        merges = json.loads(self.tok.to_str())["model"]["merges"]
        types = [3 if t in self.specials else 1 for t in tokens]
        pad = [f"[PAD{i}]" for i in range(len(tokens), n_vocab)]
        return tokens + pad, types + [5] * len(pad), [" ".join(m) for m in merges]

    def render(self, messages):
        """As transformers' apply_chat_template does; the template's text with add_generation_prompt."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        return env.from_string(CHATML).render(
            messages=messages, add_generation_prompt=True, bos_token=self.bos or "", eos_token=self.eos
        )

    def encode(self, text, add_special):
        return self.tok.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids):
        return self.tok.decode(ids, skip_special_tokens=True)
