#!/usr/bin/env python3
"""Small tokenizers of every kind that yoke reads, and what PyPI's `tokenizers` makes of thousands of texts with them.

Offline: each is trained here, on texts of this machine and of this file, with its family's published pattern, normaliser,
decoder, post-processor and added tokens. (The same from run to run, but for `words`: ties in its training fall as they may.)
Writes tests/golden/tokenizers/:
    texts.json             the texts, an array of strings
    <kind>/tokenizer.json  the tokenizer
    <kind>/expected.txt    one line a text: eight hex digits of a hash over all results (see `line`), and for the first
                           texts the ids (with special tokens), too, for those who look for a difference
Run with the oracle's Python: python3 tests/golden/make_tokenizers.py
"""
import glob
import json
import os
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")
FULL = 150  # texts whose ids are written out
BULK = 2600

# ---- patterns as published ----

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ"
    "ῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")

# ---- texts ----

SENTENCES = """The quick brown fox jumps over the lazy dog, doesn't it? We'll see; they've said I'm right and you're not.
Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Äpfel, Übermut.
Voilà l'été : où êtes-vous ? Ça va très bien, merci, cœur naïf.
El niño comió piñas en la montaña. ¿Qué tal? ¡Adiós!
Быстрая коричневая лиса прыгает через ленивую собаку. Привет, мир!
Η γρήγορη καφέ αλεπού πηδά πάνω από το σκυλί.
人工智能是计算机科学的一个分支。它企图了解智能的实质，并生产出一种新的机器。你好，世界！
人工知能は計算機科学の一分野です。こんにちは、世界。カタカナとひらがな。
인공지능은 컴퓨터 과학의 한 분야이다. 안녕하세요 세계!
الذكاء الاصطناعي هو سلوك وخصائص معينة تتسم بها البرامج الحاسوبية. مرحبا بالعالم
कृत्रिम बुद्धिमत्ता संगणक विज्ञान की एक शाखा है। नमस्ते दुनिया
ปัญญาประดิษฐ์เป็นสาขาหนึ่งของวิทยาการคอมพิวเตอร์ สวัสดีชาวโลก
שלום עולם, בינה מלאכותית היא ענף של מדעי המחשב.
Trí tuệ nhân tạo là một ngành của khoa học máy tính. Xin chào thế giới!
for (int i = 0; i < 10; i++) {\n\tprintf("%d\\n", x[i]);\n}\n\nif (a != b && c >= d) return NULL;
def f(x, *args, **kw):\n    '''doc'''\n    return {k: v for k, v in kw.items()} if x else []  # TODO\n
<html><body class="a b">&nbsp;<p>1,234,567.89 + 0x1F == 3.14e-10</p></body></html>
SELECT * FROM users WHERE name LIKE '%O''Brien%' AND id IN (1, 22, 333, 4444, 55555);
https://example.com/a/b?c=d&e=f#g user.name+tag@example.org C:\\\\Windows\\\\System32
2024-02-29T23:59:59.999Z v1.2.3-rc.4 192.168.0.1 +1 (555) 010-9999 50% $9.99 €5 £3 ¥100
I'M YOU'RE WE'VE HE'LL SHE'D IT'S CAN'T i'M you'Re o'clock 'tis rock'n'roll 'S 'T ’s it’s
😀😃 👨‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 🇩🇪🇯🇵 ❤️ ✨ 🤷🏿‍♂️ © ® ™ ∑∫√≠≤ ½ ¼ ² ³ ① Ⅷ ﬁ ﬂ
""".split("\n")
SENTENCES = [s.replace("\\n", "\n").replace("\\t", "\t") for s in SENTENCES if s]

EDGES = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", "\r\n\r\n", " \t \n \r\n  x", "a", "a ", " a", "  a", "a  b", "a   b",
    "a\nb", "a\n\nb", "a \n b", "a  \n  b", "\n\n\n   x", "x   \n\n\n", "x \n\n ", "\t\tx", "x\t\t", "     x     ", "0", "12", "123", "1234",
    "12345", "1234567890", "1 2 3", "a1b2", "١٢٣٤", "१२३४", "½¾", "x²y³", "Ⅷ", "①②③", "'s", "'S", "'", "''", "'ll'LL", "don't DON'T Don'T",
    "'ſ", "K", "Å Å Å", "é é", "ﬁﬂ", "ｆｕｌｌ　ｗｉｄｔｈ", "ḍ̇ ḍ̇", "q̣̇ q̣̇", "한글 한글", "가각", "कि की", "a\u0300\u0316\u0301\u0315b", "\u0300", "\u0301x",
    "\u200b", "a\u200bb", "\ufeffbom", "\u2028\u2029", "\u00a0nbsp\u00a0", "\u3000wide\u3000", "\u180e", "a\u180eb", "\u0085", "\u1680x", "\u2003\u2003x",
    "\x00", "\x01\x02\x7f", "\x1b[31mred\x1b[0m", "\u009f", "\ufffd", "\ufffe\uffff", "\U0010ffff", "\U000e0001\U000e0041", "\ue000\uf8ff",
    "👨‍👩‍👧‍👦", "👩🏽‍💻", "🏳️‍🌈", "🇩🇪🇯🇵🇺", "❤️❤", "😀" * 9, "a" * 70, " " * 70, "\n" * 70, "\t" * 70, "." * 70, "é" * 40, "漢" * 40, "ab" * 40,
    "<s>", "</s>", "<unk>", "<s>x</s>", " <s> ", "<|endoftext|>", "a<|endoftext|>b", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_end|>",
    "<|im_start", "|im_end|>", "<|im_<|im_end|>", "<think>\nhm\n</think>\n\nyes", "<think></think>", "<tool_call>{}</tool_call>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "<｜begin▁of▁sentence｜>x<｜end▁of▁sentence｜>",
    "<｜User｜>hi<｜Assistant｜>", "[INST] hi [/INST]", "[INST]hi[/INST]</s>", "  [INST]  x  [/INST]  ", "<0x41>", "<0x0A>", "▁", "▁▁", " ▁ ", "a▁b", "▁a",
    "<mask>", "  <mask>  x", "x<mask>y", "x <mask> y", "word", "wordy word xword word.", "word word", "Word", "<pad> <pad>", "ÀB", "DAY day Day",
    "İstanbul ǅ ΑΣ", "naïve façade", "\U00031350\U000323af \U0002ebf0", "\U0001e4d0\U0001e4ec", "\u0897\u1c89", "\U00010d40\U00011de0", "a\u0334\u0897\u0301",
    "e\u0301\u0334\u05b0", "\u1100\u1161\u11a8", "\u0344 \u0374 \u212b \u2126", "x" + "\u0301" * 30, "\U0001d15e", "if(x){y;}//z", "a_b__c", "foo.bar(baz)[0]",
    "$x = @y;", "¿¡", "“quoted”", "—dash–", "…", "a…b", "x/y\\z", "http://a.b/c?d=e", "\r", "a\rb", "a\r\nb", "\u000b\u000c", "\u001c\u001d\u001e\u001f",
]


def random_text(rng):
    """A few segments of different kinds, put together."""
    def cp(lo, hi):
        while True:
            c = rng.randint(lo, hi)
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def segment():
        k = rng.randrange(22)
        if k < 5:
            s = rng.choice(SENTENCES)
            a = rng.randrange(len(s))
            return s[a:a + rng.randint(1, 30)]
        if k == 5:
            return rng.choice([" ", "\n", "\t", "\r\n", "  ", "\u00a0", "\u3000"]) * rng.randint(1, 6)
        if k == 6:
            return "".join(rng.choice(" \n\t\r") for _ in range(rng.randint(1, 8)))
        if k == 7:
            return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))
        if k == 8:
            return rng.choice(EDGES)
        if k == 9:
            return "".join(cp(0x20, 0x7E) for _ in range(rng.randint(1, 12)))
        if k == 10:
            return "".join(cp(0, 0x2FF) for _ in range(rng.randint(1, 8)))
        if k == 11:
            return "".join(cp(0x300, 0xFFFD) for _ in range(rng.randint(1, 6)))
        if k == 12:
            return "".join(cp(0x10000, 0x1FFFF) for _ in range(rng.randint(1, 4)))
        if k == 13:
            return "".join(cp(0, 0x10FFFF) for _ in range(rng.randint(1, 4)))
        if k == 14:
            return "".join(cp(0x1F300, 0x1FAFF) + rng.choice(["", "\u200d", "\ufe0f", "\U0001f3fd"]) for _ in range(rng.randint(1, 5)))
        if k == 15:
            return rng.choice("aeiouAOUnc") + "".join(cp(0x300, 0x345) for _ in range(rng.randint(1, 4)))
        if k == 16:
            return "".join(rng.choice(["'s", "'T", "'re", "'VE", "'ll", "'", "’s", "ſ", "K"]) for _ in range(rng.randint(1, 4)))
        if k == 17:
            return "".join(rng.choice(["<", "|", ">", "<|", "|>", "<s>", "[INST]", "im_start", "</", "▁", "<mask>", "word"]) for _ in range(rng.randint(1, 5)))
        if k == 18:
            return "".join(cp(0xAC00, 0xD7A3) if rng.random() < .5 else cp(0x1100, 0x11FF) for _ in range(rng.randint(1, 5)))
        if k == 19:
            return "".join(cp(*rng.choice([(0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x590, 0x5FF), (0x400, 0x4FF)])) for _ in range(rng.randint(1, 8)))
        if k == 20:
            return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKD"]), rng.choice(SENTENCES))[:rng.randint(1, 20)]
        return "".join(rng.choice(["{", "}", "(", ");", " = ", "->", "::", "\n    ", "//", "/*", "*/", "==", "!="]) for _ in range(rng.randint(1, 6)))

    return "".join(segment() for _ in range(rng.randint(1, 5)))


def training_texts():
    out = list(SENTENCES) * 3
    for path in sorted(glob.glob("/usr/share/common-licenses/*")):
        if not os.path.islink(path):
            out += open(path, encoding="utf-8", errors="ignore").read().splitlines(keepends=True)[:250]
    for module in ("argparse", "random", "json.decoder", "textwrap"):
        __import__(module)
        out += open(sys.modules[module].__file__, encoding="utf-8").read().splitlines(keepends=True)[:300]
    return out


# ---- the kinds ----

def special(content, **kw):
    return AddedToken(content, special=True, normalized=kw.pop("normalized", False), **kw)


def plain(content, **kw):
    return AddedToken(content, special=False, normalized=kw.pop("normalized", False), **kw)


def train(pre, normalizer=None, size=800, initial=None, byte_level=True, **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    kw = {k: v for k, v in model.items() if k in ("continuing_subword_prefix", "end_of_word_suffix")}
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=initial or [],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else [],
                                  max_token_length=16, **({} if byte_level else {"limit_alphabet": 400}), **kw)
    t.train_from_iterator(training_texts(), trainer)
    return t


def template(t, tokens, single):
    return processors.TemplateProcessing(single=single, pair=single + " $B:1", special_tokens=[(x, t.token_to_id(x)) for x in tokens])


def gpt2():
    t = train(pre_tokenizers.ByteLevel(add_prefix_space=False), initial=["<|endoftext|>"])
    t.add_special_tokens([special("<|endoftext|>")])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    return t


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def llama3():
    t = train(pre_tokenizers.Sequence([split(LLAMA3), bytes_only()]), ignore_merges=True)
    t.add_special_tokens([special(s) for s in ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")]
                         + [special("<|reserved_special_token_%d|>" % i) for i in range(20)])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t, ["<|begin_of_text|>"], "<|begin_of_text|> $A")])
    t.decoder = decoders.ByteLevel()
    return t


def qwen(extra):
    t = train(pre_tokenizers.Sequence([split(QWEN2), bytes_only()]), normalizer=normalizers.NFC())
    t.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    t.add_tokens([plain(s) for s in extra])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    return t


def smollm():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<jupyter_script>", "<empty_output>"]
    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), initial=names)
    t.add_special_tokens([special(s) for s in names])
    t.decoder = decoders.ByteLevel()
    return t


DEEPSEEK_TOKENS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]


def deepseek_llm():
    t = train(pre_tokenizers.Sequence([split("[\r\n]"), split(DEEPSEEK_LETTERS), split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), split("\\s+$"),
                                       split("[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(individual_digits=True), bytes_only()]))
    t.add_special_tokens([special(s, normalized=True) for s in DEEPSEEK_TOKENS])
    t.add_tokens([plain("ø", normalized=True), plain("ö", normalized=True)])
    t.post_processor = template(t, DEEPSEEK_TOKENS[:1], DEEPSEEK_TOKENS[0] + " $A")
    t.decoder = decoders.ByteLevel()
    return t


def deepseek_v3():
    t = train(pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), bytes_only()]), normalizer=normalizers.Sequence([]))
    t.add_special_tokens([special(s) for s in DEEPSEEK_TOKENS])
    t.add_tokens([plain(s) for s in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    return t


def tekken():
    t = train(pre_tokenizers.Sequence([split(TEKKEN), bytes_only()]), initial=["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], ignore_merges=True)
    t.add_special_tokens([special(s) for s in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")])
    t.post_processor = template(t, ["<s>"], "<s> $A")
    t.decoder = decoders.ByteLevel()
    return t


def sentencepiece(size, normalizer=None, pre=None, **model):
    """The vocabulary as convert_slow_tokenizer leaves it: specials, bytes, merged pieces by rank, characters."""
    seed = train(pre_tokenizers.Metaspace(), size=size, byte_level=False)
    data = json.loads(seed.to_str())["model"]
    merged = {"".join(m) for m in data["merges"]}
    order = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)]
    order += ["".join(m) for m in data["merges"]] + [c for c in data["vocab"] if c not in merged]
    order = list(dict.fromkeys(order))
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(order)}, [tuple(m) for m in data["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    return t


SP_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def llama2():
    t = sentencepiece(900, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    t.decoder = decoders.Sequence(SP_DECODER)
    t.post_processor = template(t, ["<s>"], "<s> $A")
    return t


def llama2_metaspace():
    t = sentencepiece(700, pre=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    t.decoder = decoders.Sequence(SP_DECODER)
    t.post_processor = template(t, ["<s>", "</s>"], "<s> $A </s>")
    return t


def mistral():
    t = sentencepiece(700, pre=pre_tokenizers.Metaspace(prepend_scheme="always", split=True))
    t.add_special_tokens([special("[INST]"), special("[/INST]")])
    t.add_tokens([plain("<mask>", lstrip=True), plain("<pad>", normalized=True)])
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    t.post_processor = template(t, ["<s>"], "<s> $A")
    return t


def gemma():
    t = sentencepiece(700, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"))
    t.add_tokens([plain("\n" * n) for n in range(2, 6)] + [plain("▁" * n) for n in range(2, 6)])
    t.decoder = decoders.Sequence(SP_DECODER[:3])
    t.post_processor = template(t, ["<s>"], "<s> $A")
    return t


def words():
    """Parts that no large model uses together: word prefixes and suffixes, unknown tokens, stripping added tokens."""
    norm = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(),
                                 normalizers.Replace(Regex("\\s{2,}|\\x{2026}"), " "), normalizers.NFC()])
    pre = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=False)])
    t = train(pre, norm, size=700, byte_level=False, initial=["<unk>", "<s>", "</s>"], unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>")
    t.add_special_tokens([special("<unk>"), special("<s>"), special("</s>"), special("<mask>", lstrip=True, rstrip=True)])
    t.add_tokens([plain("word", single_word=True, normalized=True), plain("DAY", normalized=True), plain("ÀB", normalized=True), plain("<pad>", rstrip=True)])
    t.decoder = decoders.BPEDecoder("</w>")
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return t


def splits():
    """Every behaviour of Split, set operations in classes, \\b, \\w, intervals with +, Punctuation; no decoder."""
    pre = pre_tokenizers.Sequence([
        split(r"[\p{Han}&&[^\p{L}x]]+|[\w&&[^\d]]+\b", "isolated"), split(r"\d{2}+", "merged_with_previous"), split(r"[[:punct:]]", "merged_with_next"),
        split(r"[a-c[x-z]]+", "contiguous"), split(r"(?i)qu|ſ|K", "removed"), split(r"[^\S\n]", "isolated", True), split(r"^\s|\h{3}", "isolated"),
        pre_tokenizers.Split("--", "removed"), pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    t = train(pre, size=500, unk_token=None)
    t.add_special_tokens([special("<s>"), special("word", single_word=True)])
    return t


KINDS = {
    "gpt2": gpt2, "llama3": llama3, "qwen2": lambda: qwen([]), "smollm": smollm,
    "qwen3": lambda: qwen(["<think>", "</think>", "<tool_call>", "</tool_call>"]), "deepseek_llm": deepseek_llm, "deepseek_v3": deepseek_v3,
    "tekken": tekken, "llama2": llama2, "llama2_metaspace": llama2_metaspace, "mistral": mistral, "gemma": gemma, "words": words, "splits": splits,
}


# ---- what comes out ----

def fnv(h, data):
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def results(t, text):
    """[ids with special tokens, ids without, ids without as user text, decoded, decoded without special tokens]"""
    t.encode_special_tokens = False
    with_special = t.encode(text, add_special_tokens=True).ids
    without = t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = True
    user = t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = False
    return [with_special, without, user, t.decode(with_special, skip_special_tokens=False) if with_special else "",
            t.decode(with_special, skip_special_tokens=True) if t.decode_ok(with_special) else ""]


class Oracle:
    """A Tokenizer whose BPEDecoder does not panic on nothing to decode."""

    def __init__(self, tokenizer):
        self.t = tokenizer
        self.specials = {i for i, a in tokenizer.get_added_tokens_decoder().items() if a.special}

    def __getattr__(self, name):
        return getattr(self.t, name)

    def __setattr__(self, name, value):
        if name in ("t", "specials"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.t, name, value)

    def decode_ok(self, ids):
        return any(i not in self.specials for i in ids)


def line(t, text, full):
    h = 0xCBF29CE484222325
    all_results = results(t, text)
    for r in all_results:
        data = r.encode() if isinstance(r, str) else struct.pack("<%dI" % len(r), *r)
        h = fnv(fnv(h, struct.pack("<I", len(data))), data)
    return "%08x%s" % (h >> 32 ^ h & 0xFFFFFFFF, "".join(" %d" % i for i in all_results[0]) if full else "")


def make_texts(n, seed):
    rng = random.Random(seed)
    return EDGES + SENTENCES + [random_text(rng) for _ in range(n)]


def main():
    texts = make_texts(BULK, 1)
    os.makedirs(HERE, exist_ok=True)
    json.dump(texts, open(os.path.join(HERE, "texts.json"), "w", encoding="ascii"), separators=(",", ":"))
    for kind, make in KINDS.items():
        where = os.path.join(HERE, kind)
        os.makedirs(where, exist_ok=True)
        path = os.path.join(where, "tokenizer.json")
        tokenizer = make()
        tokenizer.save(path, pretty=False)
        t = Oracle(Tokenizer.from_file(path))
        with open(os.path.join(where, "expected.txt"), "w") as out:
            for i, text in enumerate(texts):
                out.write(line(t, text, i < FULL) + "\n")
        print(kind, os.path.getsize(path), t.get_vocab_size(), file=sys.stderr)


if __name__ == "__main__":
    main()
