"""Reads README.md and checks what it shows. Usage: run.py ROOT WORK

A copy of the project is made in WORK, and there:
- every ```sh block is run, in the order of the page, unless a comment before it says that it "needs" something;
- every ```text block behind `<!-- as printed by: COMMAND -->` must stand in that command's output, lines in this order,
  where [...] stands for any lines; `<!-- as printed, numbers aside, by: ... -->` compares with every number taken as equal;
- every ```lua block must pass olmogen --plan;
- every table row whose first cell is `models/X.lua`, with options or not, must be what --plan says of it, cell by cell;
- every C line of a ```c block must stand in out/tiny/src/step.c;
- every link to a file or a heading must lead somewhere, and every --option named with olmogen must be in its help.
Ends with "N passed, N failed".
"""
import functools
import os
import re
import shutil
import subprocess
import sys

root, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
copy = os.path.join(work, "olmogen")
passed = failed = 0


def check(good, what, detail=""):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print(f"FAIL README.md: {what}\n{detail}".rstrip())


@functools.lru_cache(None)
def run(command):
    r = subprocess.run(["sh", "-ec", command], cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       stdin=subprocess.DEVNULL, text=True, errors="replace", timeout=600)
    return r.returncode, r.stdout


def stands_in(block, output, numbers_aside):
    """None, or the first of block's pieces, which [...] divides, that output does not have behind the one before."""
    plain = (lambda s: re.sub(r"[\d.,:e+-]*\d", "0", s.rstrip())) if numbers_aside else str.rstrip
    lines, at = [plain(s) for s in output.splitlines()], 0
    for piece in re.split(r"^\[\.\.\.\]\n", block, flags=re.M):
        want = [plain(s) for s in piece.splitlines()]
        places = [i for i in range(at, len(lines)) if lines[i:i + len(want)] == want]
        if not places:
            return piece
        at = places[0] + len(want)
    return None


def heading_name(line):
    return re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")


text = open(os.path.join(root, "README.md"), encoding="utf-8").read()
shutil.rmtree(copy, ignore_errors=True)
os.makedirs(copy)
for name in os.listdir(root):
    if name.startswith(".") or name in ("build", "out"):
        continue
    source, to = os.path.join(root, name), os.path.join(copy, name)
    shutil.copytree(source, to) if os.path.isdir(source) else shutil.copy2(source, to)
# what is built already need not be built again: the times of sources are copied too
shutil.copytree(os.path.join(root, "build"), os.path.join(copy, "build"),
                ignore=shutil.ignore_patterns("check", "san", "gpu", "peer", "bench-peer", "gold", "fuzz"))
os.makedirs(os.path.join(copy, "out"))

# ---- blocks, in the order of the page ----
block = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
for m in block.finditer(text):
    kind, body, note = m["kind"], m["body"], m["note"] or ""
    line = text.count("\n", 0, m.start()) + 1
    if kind == "sh" and not note.startswith("needs"):
        status, output = run(body.replace("make demo", "STEPS=40 TARGET=cpu make demo").strip())
        check(status == 0, f"line {line}: the block ends with status {status}", output[-2000:])
    elif kind == "text" and note:
        how = re.fullmatch(r"as printed(, numbers aside,)? by: (.*)", note)
        check(how, f"line {line}: the note is not understood: {note}")
        if how:
            missing = stands_in(body, run(how[2])[1], how[1])
            check(missing is None, f"line {line}: '{how[2]}' does not print, at this place: {missing}")
    elif kind == "lua":
        path = os.path.join(copy, "readme.lua")
        open(path, "w", encoding="utf-8").write(body)
        status, output = run("build/olmogen --plan readme.lua")
        check(status == 0, f"line {line}: the description is refused", output)
    elif kind == "c":
        step = open(os.path.join(copy, "out/tiny/src/step.c"), encoding="utf-8").read()
        check(body in step, f"line {line}: out/tiny/src/step.c does not have this")

# ---- tables of models ----
rows = re.findall(r"^\| `((?:-D \S+ )*models/\S+\.lua)` \|(.*)\|$", text, re.M)
check(rows, "there is no table of models")
for model, cells in rows:
    output = run("build/olmogen --plan " + model)[1]
    for cell in cells.split("|"):
        check(re.search(r"(?<![\d.,])" + re.escape(cell.strip()) + r"\b", output),
              f"--plan {model} does not say '{cell.strip()}'")

# ---- links and options ----
for target in re.findall(r"\]\(([^)]+)\)", text):
    name, _, heading = target.partition("#")
    page = os.path.join(root, name) if name else os.path.join(root, "README.md")
    good = os.path.exists(page)
    if good and heading:
        lines = open(page, encoding="utf-8").read().splitlines()
        good = heading in [heading_name(s) for s in lines if s.startswith("#")]
    check(good, f"the link to {target} leads nowhere")
known = run("build/olmogen --help")[1]
for option in sorted(set(re.findall(r"olmogen[^`\n]* (--[a-z-]+)", text))):
    check(option in known, f"olmogen --help does not know {option}")

print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
