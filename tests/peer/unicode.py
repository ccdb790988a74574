#!/usr/bin/env python3
"""Writes runtime/unicode.def: what tokenizers ask of Unicode, in the version that Python's tokenizers has it.

Usage: unicode.py > runtime/unicode.def. Needs a Python whose unicodedata is Unicode 16, or unicodedata2==16.0.0.
"""
import sys

try:
    import unicodedata2 as ud
except ImportError:
    import unicodedata as ud

HEAD = """\
/*
 * What tokenizers ask of Unicode %s, written by tests/peer/unicode.py: do not edit.
 *
 * Each row says how many entries it has.
 *
 * CLASSES   the class of each code point from 0 on: a letter, and how many in a row have it (one
 *           where no number stands): U Lu, l Ll, t Lt, m Lm, o Lo, M marks, d Nd, n Nl, r No, _ Pc,
 *           p all other punctuation, s symbols, z separators, c all else
 * ORDERS    the combining class of each code point from 0 on: how many in a row, x, which
 * PARTS     canonical decompositions, in hexadecimal: how far from the code point of the one
 *           before, then its part, or both parts with + between them; with - they do not compose
 */
"""
LETTERS = {"Lu": "U", "Ll": "l", "Lt": "t", "Lm": "m", "Lo": "o", "Nd": "d", "Nl": "n", "No": "r", "Pc": "_",
           "M": "M", "P": "p", "S": "s", "Z": "z", "C": "c"}
ALL = range(0x110000)


def rows(name, words, gap):
    line = []
    for w in [*words, None]:
        if w is None or len(name) + len(gap.join(line + [w])) > 90:
            print('%s(%d, "%s")' % (name, len(line), gap.join(line)))
            line = []
        line.append(w)


def runs(values):
    out = []
    for v in values:
        if out and out[-1][0] == v:
            out[-1][1] += 1
        else:
            out.append([v, 1])
    return out


def parts():
    before = 0
    for c in ALL:
        d = ud.decomposition(chr(c))
        if d and d[0] != "<":
            stays = ud.normalize("NFC", chr(c)) == chr(c)
            yield "%x:%s" % (c - before, ("+" if stays else "-").join("%x" % int(x, 16) for x in d.split()))
            before = c


if ud.unidata_version != "16.0.0":
    sys.exit("unicode.py: this is Unicode %s, not 16.0.0: pip install unicodedata2==16.0.0" % ud.unidata_version)
print(HEAD % ud.unidata_version, end="")
category = [ud.category(chr(c)) for c in ALL]
rows("CLASSES", (v + (str(n) if n > 1 else "") for v, n in runs(LETTERS.get(g) or LETTERS[g[0]] for g in category)), "")
rows("ORDERS", ("%dx%d" % (n, v) for v, n in runs(ud.combining(chr(c)) for c in ALL)), " ")
rows("PARTS", parts(), " ")
