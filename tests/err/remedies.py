"""Whatever a "help: use ..." proposes is applied to the description, and olmogen must take it: the error is gone and no
other one is there, and what is said to fit, or to need so much memory, does.
Usage: remedies.py OLMOGEN WORKDIR [RANDOM_SEEDS]"""
import glob, re, subprocess, sys

olmogen, work, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 15
passed, failed = 0, 0


def plan(flags, path):
    r = subprocess.run([olmogen, "--plan", *flags, path], capture_output=True, text=True, errors="replace", timeout=60)
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


def memory(flags, path, err):
    need = re.search(r"error: \S+ needs (.*?) on a rank", err)
    source = open(path).read()
    text = subprocess.run([olmogen, "--dump=check", *flags, path], capture_output=True, text=True).stdout
    one = r'(?:recompute \{ what = "\w+" \}|[a-z.]+ = [\d.]+(?: with [a-z.]+ = \d+)*)'
    for change, much, fits in re.findall(r"(%s)(?:, which cuts rows)?: ([\d.]+ \w+)(, fits)?" % one, err[need.end():]):
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


def rule(flags, path, block, before):
    """The block of one error; before: the texts of all."""
    source = open(path, errors="surrogateescape").read().split("\n")
    headline = errors(block)[0]
    places = re.findall(r"^%s:(\d+):(\d+): " % re.escape(path), block, re.M)
    for name, values in re.findall(r"(?:use |, or )(\w+) = ([\d, or]*\d)", block):
        every = re.findall(r"\d+", values)
        for value in dict.fromkeys((every[0], every[-1])):
            new = None
            for line, col in {(int(l), int(c)) for l, c in places}:
                # columns are bytes; names of fields stand alone
                text = source[line - 1]
                at = len(text.encode(errors="surrogateescape")[: col - 1].decode(errors="surrogateescape"))
                given = re.match(r"(%s\s*=\s*)(?:[^,{}()\n]|\([^()]*\))+" % name, text[at:])
                if given:
                    new = source[:]
                    new[line - 1] = text[:at] + given.group(1) + value + " " + text[at + given.end():]
            if not new:
                continue  # a default, which stands nowhere
            with open(f"{work}/remedy.lua", "w", errors="surrogateescape") as f:
                f.write("\n".join(new))
            status, saw = plan(flags, f"{work}/remedy.lua")
            after = errors(saw)
            good = headline not in after and len(after) < len(before) and all(a in before for a in after)
            check(f"{path} {flags}: {name} = {value}", good, saw)


def look(flags, path):
    status, err = plan(flags, path)
    if re.search(r"error: \S+ needs .* on a rank", err):
        return memory(flags, path, err)
    for block in re.split(r"\n(?=[^ ]+:\d+:\d+: error: )", err):
        if re.search(r"^  help: use \w+ = \d", block, re.M):
            rule(flags, path, block, errors(err))


# a mistake in a loop stands once and is made often; of many mistakes one is left; a size beyond what can be written
SKIPPED = "layers_many", "list_many_mistakes", "router_groups", "many", "memory_exa"
for path in sorted(glob.glob("tests/err/*.lua")):
    if path[len("tests/err/"):-len(".lua")] in SKIPPED:
        continue
    first = open(path, errors="replace").readline()
    look(first[len("-- flags: "):].split() if first.startswith("-- flags: ") else [], path)
for seed in range(seeds):
    look(["-D", f"seed={seed}", "-D", f"corrupt={seed % 15 + 1}"], "tests/emit/random.lua")
for flags in ("data=1 llama3-8b", "expert=1 mixtral-8x7b", "data=1 expert=1 qwen3-30b-a3b", "data=1 expert=1 moe-8l"):
    *defines, model = flags.split()
    look([a for d in defines for a in ("-D", d)], f"models/{model}.lua")
look(["--target=cuda:h100"], "models/olmoe-1b-7b.lua")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
