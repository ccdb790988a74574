#!/usr/bin/env python3
"""Writes fixtures of tokenizers: small ones of each kind, trained by Python's tokenizers, and what it makes of texts.

Usage: texts.py OUT. Needs tokenizers; what it writes is committed, so that the tests don't need it.

texts.txt has a text a line, bytes in hexadecimal. NAME.json is a tokenizer, NAME.txt has what it gives for each text: its
tokens, and after a | what these decode to, in hexadecimal, or = where that is the text (with U+FFFD for what is not UTF-8).
splits.txt has a regular expression, a text, both in hexadecimal, and how many characters each piece has.
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def special(text, **how):
    return AddedToken(text, special=True, normalized=False, **how)


def kinds():
    """name: pre-tokenizer, normalizer, post-processor of ids by name, added tokens, changes of the file."""
    seq = pre_tokenizers.Sequence
    plain = lambda ids: processors.ByteLevel(trim_offsets=True)  # noqa: E731
    yield "gpt2", byte_level(), None, plain, [special("<|endoftext|>")], {}
    yield "neox", byte_level(), normalizers.NFC(), plain, [
        special("<|endoftext|>"), special("<|padding|>"),
        *(AddedToken(" " * n, normalized=True) for n in (8, 4, 2)), AddedToken("caf\u00e9", normalized=True)], {}
    yield "llama3", seq(split(LLAMA3) + [byte_level(regex=False)]), None, lambda ids: processors.Sequence([
        processors.ByteLevel(), processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
            special_tokens=[("<|begin_of_text|>", ids["<|begin_of_text|>"])])]), [
        special(t) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")], {"ignore_merges": True}
    yield "qwen", seq(split(QWEN) + [byte_level(regex=False)]), normalizers.NFC(), plain, [
        special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"), AddedToken("<tool_call>")], {"strings": True}
    yield "dolma2", seq(split(LLAMA3) + [byte_level(regex=False)]), None, lambda ids: processors.TemplateProcessing(
        single="<|bos|> $A <|endoftext|>", pair="$A $B", special_tokens=[
            ("<|bos|>", ids["<|bos|>"]), ("<|endoftext|>", ids["<|endoftext|>"])]), [
        special("<|bos|>"), special("<|endoftext|>"), special("<|left|>", lstrip=True), special("<|right|>", rstrip=True),
        special("<|both|>", lstrip=True, rstrip=True), AddedToken("word", single_word=True),
        AddedToken("|||IP|||", normalized=False), AddedToken("|||IP|||X", normalized=False)], {}
    yield "digits", seq([pre_tokenizers.Digits(individual_digits=True), byte_level(prefix=True)]), None, plain, [
        special("<|endoftext|>")], {"strings": True}
    yield "deepseek", seq(split(r"[\r\n]", r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba]+",
                                r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e]+", r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
                          + [pre_tokenizers.Digits(individual_digits=False), byte_level(regex=False)]), \
        normalizers.Sequence([]), plain, [special("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), AddedToken("\u00a0x\u0120")], {}
    yield "deepseek3", seq(split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3)
                           + [pre_tokenizers.Split("==", "isolated"), byte_level(regex=False)]), None, plain, [], {}
    yield "removed", seq([pre_tokenizers.Split(Regex(r"\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "removed", invert=True),
                          pre_tokenizers.Split(Regex(r"[a-m0-4]+|\n"), "removed", invert=True), byte_level(regex=False)]), None, plain, [], {}
    yield "o200k", seq(split(O200K) + [byte_level(regex=False)]), None, plain, [special("<|endoftext|>")], {}


def texts(rng):
    words = ["word", "words", "swordfish", "It's", "I'LL", "they'VE", "DON'T", "can\u2019t", "'\u017f", "caf\u00e9", "cafe\u0301",
             "na\u00efve", "\u1e9b\u0323", "\u212bngstr\u00f6m", "\u2126", "\ufb01", "\u00df", "\u01c5", "\u02b0", "\u4f60\u597d",
             "\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\u0939\u093f\u0928\u094d\u0926\u0940",
             "\u0e44\u0e17\u0e22", "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05b8\u05c1\u05dc", "\u0440\u0443\u0441", "\u0395\u03bb",
             "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U00020000",
             "123", "1234567", "\u0663\u0664", "\u00bd", "\u2167", "\u00b2", "3.14", "1e-5", "0x1F", "a1b2", "==", "===", "!?", "...", "/*",
             "*/", "http://a.b/c?d=e", "{\"k\": [1]}", "\u3000", "\u00a0", "\u2009", "\u180e", "\u200b", "\u0085", "\ufeff", "\x00", "\x7f",
             "\x1c", "\ue000", "\U0010ffff", "\u0378", "\U00010d40", "\U0001ccd6"]
    yield from (b"", b" ", b"\n", b"\r\n", b"  \t ", b"a", b"Hello, world!", b"  leading and trailing  ",
                b"a\r\nb\r\n\r\n  c\n\n\n   d \n", b"x" * 200, b" " * 37 + b"y", b"tab\t\ttab\t", b"12345678901234567890",
                b"if (x == 1)\n\t\treturn y[0]; // done\n", b"The quick brown fox's 3 dogs don't 'LL 'Ve.",
                b"\xff\xfe broken \xc3( \xe2\x82 \xf0\x9f\x98 \xed\xa0\x80 \xf5 \xc0\xaf end \xe2", b"\x80\x80", b"ok\xf0\x9f")
    for t in ("<|endoftext|>", "a<|endoftext|>b", "  <|endoftext|>  <|endoftext|>\n", "<|endoftext|", "<|im_start|>user\nhi<|im_end|>",
              "x <|left|> y <|right|> z <|both|> w", "<|left|>   <|right|>   <|left|>", "word word, swordfish word\u0301 word_ (word)",
              "|||IP|||X |||IP||| |||IP||", "<|begin_of_text|>hi<|eot_id|>", "  <tool_call>{}\n", "caf\u00e9 cafe\u0301 cafe\u0301\u0301",
              "<\uff5cbegin\u2581of\u2581sentence\uff5c>\u4f60\u597d", "\u00a0x\u0120", "a\u0300\u0301\u0327\u0323b \u0344\u0345 q\u0307\u0323",
              "\uac00\u11a8\u1100\u1161\u11a8", "\u2f801\ufa0e\u0958\u09dc\u2adc", "\u1e0a\u0323 \u03d2\u0301 \u0b47\u0b56\u0b57",
              "\u0f71\u0f72\u0f74\u0f71", "\U0001d15e\U0001d160"):
        yield t.encode()
    for _ in range(24):
        yield "".join(rng.choice(words) + rng.choice(["", " ", " ", " ", "  ", "\n", " \n ", "\t", "\r\n", "'s ", ", "])
                      for _ in range(rng.randrange(2, 14))).encode()
    for _ in range(6):  # code points from everywhere
        yield "".join(chr(c) for c in (rng.randrange(1, rng.choice([0x250, 0x3000, 0x20000, 0x110000])) for _ in range(40))
                      if not 0xD800 <= c < 0xE000).encode()


def pattern(rng, depth=2):
    """A regular expression of the part of Oniguruma's language that split.c knows."""
    atoms = ["a", "b", "c", " ", r"\n", r"\s", r"\S", r"\d", r"\p{L}", r"\P{L}", r"\p{N}", r"\p{^Lu}", ".", "[ab]", "[^ab]", r"[^\s\p{L}]",
             r"[\p{Lu}\d_-]", "[a-c1]", r"[^\n\r]", r"\x61", r"\u0062", "(?i:aB)", "(?i:[k1])", r"\.", "$"]
    if depth:
        atoms += ["(%s)", "(?:%s)", "(?=%s)", "(?!%s)", "(?>%s)"] * 4
    sequence = []
    for _ in range(rng.randrange(1, 4)):
        a = rng.choice(atoms)
        inner = pattern(rng, depth - 1) if "%s" in a else ""
        a = a.replace("%s", inner)
        if a != "$" and not a.startswith(("(?=", "(?!")):
            a += rng.choice(["", "", "", "?", "*", "+", "??", "*?", "+?", "?+", "*+", "++", "{2}", "{1,2}", "{2,}", "{,2}"])
        sequence.append(a)
    return "".join(sequence) + ("|" + pattern(rng, depth - 1) if depth and rng.random() < 0.4 else "")


def splits(rng, count):
    while count:
        p = pattern(rng)
        t = "".join(rng.choice("aabbbcABK\u212ak1 2\n\n \t._-\u00e9\u0301") for _ in range(rng.randrange(1, 14)))
        try:
            pieces = pre_tokenizers.Split(Regex(p), "isolated").pre_tokenize_str(t)
        except Exception:  # no pattern of Oniguruma's
            continue
        if len(pieces) > 1 or rng.random() < 0.1:
            yield "%s %s %s\n" % (p.encode().hex(), t.encode().hex(), ",".join(str(len(x)) for x, _ in pieces))
            count -= 1


def main(out):
    os.makedirs(out, exist_ok=True)
    rng = random.Random(5)
    all_texts = list(texts(rng))
    with open(os.path.join(out, "splits.txt"), "w") as f:
        f.writelines(splits(rng, int(os.environ.get("SPLITS", 150))))
    corpus = [open(os.path.join(here, "../..", f), encoding="utf-8").read() for f in ("README.md", "runtime/skip.c")]
    corpus += [t.decode("utf-8", "replace") for t in all_texts[:60]]
    with open(os.path.join(out, "texts.txt"), "w") as f:
        f.writelines(t.hex() + "\n" for t in all_texts)
    for name, pre, normal, post, added, how in kinds():
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer, tok.decoder = pre, decoders.ByteLevel()
        if normal is not None:
            tok.normalizer = normal
        tok.train_from_iterator(corpus, trainers.BpeTrainer(
            vocab_size=640, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if "ignore_merges" in how:  # a whole word that no merges make
            file = json.loads(tok.to_str())
            file["model"]["ignore_merges"] = True
            file["model"]["vocab"]["\u0120swordfish"] = len(file["model"]["vocab"])
            tok = Tokenizer.from_str(json.dumps(file))
        for a in added:
            tok.add_tokens([a])
        tok.post_processor = post({a.content: tok.token_to_id(a.content) for a in added})
        file = json.loads(tok.to_str())
        if "strings" in how:
            file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]
        text = json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n"
        tok = Tokenizer.from_str(text)
        with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as f:
            f.write(text)
        with open(os.path.join(out, name + ".txt"), "w") as f:
            for t in all_texts:
                text = t.decode("utf-8", "replace")
                ids = tok.encode(text).ids
                back = tok.decode(ids, skip_special_tokens=False)
                f.write(" ".join(map(str, ids)) + "|" + ("=" if back == text else back.encode().hex()) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
