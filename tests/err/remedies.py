"""Whatever a "help: use ..." proposes is applied to the description, and olmogen must take it: the error is gone and no
other one is there, and what is said to fit, or to need so much memory, does. No other line of help may give a field a
value: who reads it would take it for such a proposal.
Usage: remedies.py OLMOGEN WORKDIR [RANDOM_SEEDS]"""
import glob, re, subprocess, sys

olmogen, work, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 15
passed, failed = 0, 0


def plan(flags, path, mode="--plan"):
    r = subprocess.run([olmogen, mode, *flags, path], capture_output=True, text=True, errors="replace", timeout=60)
    # what a replaced value no longer reads is no fault of the remedy
    lines = [l for l in r.stderr.splitlines() if "is never used by" not in l]
    return r.returncode, "\n".join(lines)


def errors(text):
    return re.findall(r"^.*?: error: (.*)$", text, re.M)


def check(what, ok, saw):
    global passed, failed
    passed, failed = passed + ok, failed + (not ok)
    if not ok:
        print("FAIL", what, "\n    ", "\n     ".join(saw.splitlines()[:4]))


def put(text, name, value):
    """Sets a field in resolved text: parallel.data, batch.micro, recompute."""
    if name == "recompute":
        new = re.sub(r"recompute = recompute \{[^}]*\}", f"recompute = recompute {{ what = {value} }}", text)
        return new if new != text else None
    obj, field = name.split(".")
    new = re.sub(r"(\b%s \{[^}]*?\b%s = )[^,}]*?( *[,}])" % (obj, field), r"\g<1>%s\2" % value, text)
    return new if new != text else re.sub(r"\b%s \{" % obj, f"{obj} {{ {field} = {value},", text, count=1)


FIELDS = re.findall(r"FIELD\((\w+), (\w+),", open("generator/lang/field.def").read())


def unproposed(path, text):
    """Lines of help that are not tried give no field a value, and propose no target."""
    for line in re.findall(r"^  help: (.*)$", text, re.M):
        value = re.search(r"\b(?:%s)(?: \{[^}]*)? = |--target" % "|".join(f for _, f in FIELDS), line)
        check(f"{path}: '{line}' names what is not tried", not value, text)


def memory(flags, path, err):
    need = re.search(r"error: \S+ needs (.*?) on a rank", err)
    source = open(path).read()
    text = subprocess.run([olmogen, "--dump=check", *flags, path], capture_output=True, text=True).stdout
    one = r'(?:recompute \{ what = "\w+" \}|[a-z.]+ = [\d.]+(?: with [a-z.]+ = \d+)*)'
    tried = r"(%s)(?:, which cuts rows)?: ([\d.]+ \w+)(, fits)?" % one
    unproposed(path, re.sub(tried, "", err[need.end():]))
    for change, much, fits in re.findall(tried, err[need.end():]):
        new, defines = text, []
        for part in change.split(" with "):
            name, value = re.match(r"(\S+)(?: \{ what)? = (\S+)", part).groups()
            define = name.split(".")[-1]
            if f"arg.{define} " in source:
                defines += ["-D", f"{define}={value}".replace(chr(34), "")]
            else:
                new = put(new, name, value)
        with open(f"{work}/remedy.lua", "w") as f:
            f.write(new)
        if defines:
            assert new == text, "some of it by -D, some not"
            status, saw = plan([*flags, *defines], path)
        else:
            status, saw = plan([], f"{work}/remedy.lua")
        good = status == 0 and not saw if fits else f" needs {much} on a rank" in saw and len(errors(saw)) == 1
        check(f"{path} {flags}: {change}: {much}{fits}", good, saw)


VALUE = r"""(?:"[^"\n]*"|\{[^{}]*\}|(?:[^,{}()"\n]|\([^()]*\))+)"""


def edit(lines, places, name, value):
    """The text with another value of a field, None to leave it out: where a message points, or it stands once, or, as it
    has a default, in the constructor it belongs to. None: there is no such place."""
    text = "\n".join(lines)
    starts = [0]
    for l in lines:
        starts.append(starts[-1] + len(l) + 1)
    # columns are bytes; names of fields stand alone
    at = [starts[l - 1] + len(lines[l - 1].encode(errors="surrogateescape")[: c - 1].decode(errors="surrogateescape"))
          for l, c in sorted(places)]

    def nearest(found):
        by_line = [m for m in found if text.count("\n", 0, m.start()) + 1 in {l for l, _ in places}]
        for some in [m for m in found if m.start() in at][:1], by_line, found:
            if len(some) == 1:
                return some[0]

    m = nearest(list(re.finditer(r"\b(%s\s*=\s*)%s" % (name, VALUE), text)))
    if m:
        if value is None:
            return text[: m.start()] + re.sub(r"^\s*,", "", text[m.end():])
        return text[: m.start()] + m.group(1) + value + " " + text[m.end():]
    made = [m for o, f in FIELDS if f == name for m in re.finditer(r"\b%s\s*\{" % o, text)]
    m = nearest(made)
    if m and value is not None:
        return text[: m.end()] + f" {name} = {value}, " + text[m.end():]
    owner = [o for o, f in FIELDS if f == name and (o, o) not in FIELDS]
    outer = [m for o, f in FIELDS if owner == [f] for m in re.finditer(r"\b%s\s*\{" % o, text)]
    if not made and len(outer) == 1 and value is not None:
        m = outer[0]
        return text[: m.end()] + f" {owner[0]} = {owner[0]} {{ {name} = {value} }}, " + text[m.end():]
    return None


# what is no value of a field: advice
ADVICE = ("a pipeline", "expert ranks", "a load_balance above 0", "a smaller top_groups", "an lr_scale above 0", "a moe layer",
          "a smaller micro, sequence_length or top_k", "letters, digits and _",
          "leave precision.moments out: Muon keeps one moment where AdamW keeps two",
          "scale the rates of some parameters by group { match, lr_scale }")


def rule(flags, path, block, err, mode):
    """The block of one error, of all that was said: each line of help that proposes is understood whole."""
    before, headline = errors(err), errors(block)[0]
    source = open(path, errors="surrogateescape").read().split("\n")
    places = {(int(l), int(c)) for l, c in re.findall(r"^%s:(\d+):(\d+): " % re.escape(path), block, re.M)}
    tried = r"^  help: ((?:use|leave) .*)$"
    unproposed(path, re.sub(tried, "", block, flags=re.M))
    for line in re.findall(tried, block, re.M):
        line, *rest = line.split("; more than that has to change")
        for way in line.split(", or "):
            way = re.sub("^use | or less$", "", way)
            values = re.fullmatch(r"""(\w+) = ((?:"[^"]*"|\w+|{})(?:(?:, | or )(?:"[^"]*"|\w+))*)""", way)
            out = re.fullmatch(r"leave (\w+)(?: and (\w+))? out", way)
            target = re.match(r"--target=(\w+)", way)
            if values:
                every = re.findall(r'"[^"]*"|\w+|{}', re.sub(" or ", ", ", values.group(2)))
                tries = [[(values.group(1), v)] for v in dict.fromkeys((every[0], every[-1]))]
            elif out:
                tries = [[(name, None) for name in out.groups() if name]]
            elif target:
                tries = [[]]
            else:
                check(f"{path}: '{way}' is a remedy", way in ADVICE, block)
                continue
            for changes in tries:
                lines = source
                for name, value in changes:
                    new = edit(lines, places, name, value)
                    lines = new.split("\n") if new else lines
                    if not new and value is not None:
                        check(f"{path}: {way}: it stands nowhere", False, block)
                with open(f"{work}/remedy.lua", "w", errors="surrogateescape") as f:
                    f.write("\n".join(lines))
                if lines is source and changes:
                    continue
                more = [target.group(0)] if target else []
                status, saw = plan([*flags, *more], f"{work}/remedy.lua", mode)
                after = errors(saw)
                good = headline not in after
                # of many errors those show that come first
                if "\n... and " not in err and not rest:
                    good = good and len(after) < len(before) and all(a in before for a in after)
                check(f"{path} {flags}: {way}: {changes}", good, saw)


def look(flags, path, mode="--plan"):
    status, err = plan(flags, path, mode)
    if re.search(r"error: \S+ needs .* on a rank", err):
        return memory(flags, path, err)
    for block in re.split(r"\n(?=[^ ]+:\d+:\d+: error: )", err):
        if errors(block):
            rule(flags, path, block, err, mode)


for path in sorted(glob.glob("tests/err/*.lua")):
    if path == "tests/err/memory_exa.lua":  # a size beyond what can be written
        continue
    first = open(path, errors="replace").readline()
    look(first[len("-- flags: "):].split() if first.startswith("-- flags: ") else [], path)
for seed in range(seeds):
    look(["-D", f"seed={seed}", "-D", f"corrupt={seed % 15 + 1}"], "tests/emit/random.lua")
for flags in ("data=1 llama3-8b", "expert=1 mixtral-8x7b", "data=1 expert=1 qwen3-30b-a3b", "data=1 expert=1 moe-8l"):
    *defines, model = flags.split()
    look([a for d in defines for a in ("-D", d)], f"models/{model}.lua")
look(["--target=cuda:h100"], "models/olmoe-1b-7b.lua")
# what can be planned, but not built
for flags in ("emit/cuda_needs", "emit/cuda_sizes", "data=2 parallel/model", "data=2 expert=2 pipeline=2 parallel/model"):
    *defines, model = flags.split()
    target = [] if "cuda" in model else ["--target=cuda:sm_90a"]
    look([a for d in defines for a in ("-D", d)] + target, f"tests/{model}.lua", "--dump=emit")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
