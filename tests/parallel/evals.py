"""Evaluations of one checkpoint by trainers of several layouts, and of questions that are the text itself.

usage: evals.py make TEXT FOLDER    writes there a text, documents, and both as questions
       evals.py compare METRICS...  whether all have the same numbers, and questions those of their text
"""
import json
import sys

SEQ, DOC = 32, 8  # of tests/parallel/model.lua, and tokens of a document


def questions(path, texts, wrong):
    with open(path, "w") as f:
        for i, t in enumerate(texts):
            choices = [list(t[1:]), list(t[1:-3]), list(wrong[: 1 + i % 5])]
            f.write(json.dumps({"context": list(t[:1]), "choices": choices, "answer": 0}) + "\n")


def make(text, folder):
    text = text.replace(b" ", b"_")
    n = 13  # no multiple of any number of ranks
    whole = [text[i * SEQ : i * SEQ + SEQ + 1] for i in range(n)]
    documents = [text[i * DOC : i * DOC + DOC - 1] + b" " for i in range(n * SEQ // DOC)]
    open(folder + "/whole.txt", "wb").write(text[: n * SEQ + 1])
    open(folder + "/documents.txt", "wb").write(b"".join(documents) + b".")
    questions(folder + "/whole.jsonl", whole, text[1000:])
    questions(folder + "/documents.jsonl", documents, text[1000:])


def compare(paths):
    rows = [json.loads(open(p).readlines()[-1])["eval"] for p in paths]
    assert set(rows[0]) == {"text", "quiz"} and rows[0]["text"]["tokens"] > 300
    assert 0 < rows[0]["quiz"]["accuracy_tokens"] < 1
    for row, path in zip(rows, paths):
        assert abs(row["quiz"]["loss"] - row["text"]["loss"]) < 1e-6 * row["text"]["loss"], (path, row)
        for name, first in rows[0].items():
            for key, x in first.items():
                assert abs(row[name][key] - x) <= 1e-5 * x, (path, name, key, row[name][key], x)


if sys.argv[1] == "make":
    make(open(sys.argv[2], "rb").read(), sys.argv[3])
else:
    compare(sys.argv[2:])
