"""The command report: files of metrics as a page in a headless Chromium, whose values are read back against the lines; and
lines that are damaged, under sanitizers. Usage: report.py WORKDIR; report.py WORKDIR measure: a million lines."""
import json, math, os, random, re, shutil, subprocess, sys, time
from suite import browser, end, has, rules, want

work = sys.argv[1]
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SECTIONS = ["runs", "curves", "evaluations", "experts", "events", "others"]
LAYERS, EXPERTS = (1, 2, 3), 16


def build(name, *flags):
    out = os.path.join(work, name)
    source = ["tests/page/report_main.c"] + ["runtime/" + f for f in (
        "report.c", "page.c", "file.c", "err.c", "host.c", "group.c", "one/comm.c")]
    subprocess.run(["gcc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-ffunction-sections",
                    *flags, "-Iruntime", "-o", out, *source, "-lm", "-Wl,--gc-sections"], cwd=root, check=True)
    return out


def run(report, *args, good=False):
    return subprocess.run([report, *args], capture_output=True, text=True, errors="replace",
                          env=None if good else {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}) # what a message ends with is in use


def lines(n, seed, moe=True):
    """Metrics as trainers write them, with a spike, a restart, skipped and slow steps."""
    r, out = random.Random(seed), []
    pop = [[math.exp(0.6 * r.gauss(0, 1)) for _ in range(EXPERTS)] for _ in LAYERS]
    for s in range(1, n + 1):
        x = {"step": s}
        if s == n // 2 + 1:
            x["resumed"] = n // 2
        x["ranks"], x["slowest"] = [0.1, 0.1, 0.4, 0.1], 2.285714286
        x |= {"tokens": s * 4096, "loss": round(2 + 8 * math.exp(-s / (n / 6)) + r.gauss(0, 0.02), 6), "grad_norm": round(1 + abs(r.gauss(0, 0.3)), 6),
              "lr": 3e-4 * min(1, s / 100), "tokens_per_s": 50000 if s % 400 else 20000, "data_wait": 0.0001 if s % 400 else 0.7, "mfu": 0.4}
        if s == n // 3:
            x["grad_norm"] = 77.25
        if s == n // 4:
            x["loss"] = x["grad_norm"] = None
            x["not_finite"] = "model.layers.1.mlp.gate.weight"
        x["skipped"] = int(s in (n // 3, n // 4))
        if moe:
            x["load_balance"], x["moe"] = 1.25, []
            for l, p in zip(LAYERS, pop):
                load = [int(400 * v) if e != 3 or s < 0.75 * n else 0 for e, v in enumerate(p)]
                x["moe"].append({"layer": l, "max_load": round(max(load) * EXPERTS / sum(load), 8), "dead": load.count(0)})
                if s % 10 == 0:
                    x["moe"][-1]["load"] = load
        out.append(x)
        if s % 500 == 0:
            out.append({"step": s, "eval_loss": 3 - s / n, "eval": {"arc": {"accuracy": 0.5}}})
    return out


def write(name, all_lines, more=""):
    path = os.path.join(work, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.writelines(json.dumps(x) + "\n" for x in all_lines)
        f.write(more)
    return path


def damaged(report):
    """Each wrong line ends in one line that says where, never in a crash."""
    good = '{"step": 1, "loss": 2.5, "moe": [{"layer": 0, "load": [1, 2, 3]}]}\n'
    for text, says in (("", "has no line of metrics"), ('{"step": 1', "has no line of metrics yet"), ("loss 3\n", "line 1, byte 1: is no line of metrics"),
                       (good + '{"step": 2, "loss": 2.5x}\n', "line 2, byte 24: wants , or }"), ('{"step": 2, "a": "b\n', "a string has no end"),
                       ('{"step": 2, "a": nan}\n', "byte 18: is no JSON"), ('{"step": 2, "a": 0x10}\n', "byte 18: is no JSON"), ('{"step": -1}\n', "is no step"),
                       ('{"step": 2, "a": [1, 2}\n', "wants , or ]"), ('{"step": 2} {}\n', "has more than an object"), ('{"step": 2, "a": ' + "[" * 40 + "\n", "nested too deep"),
                       ('{"step": 1, "x": [' + ",".join("1" * 70000) + "]}\n", "more than 65,536 numbers"), ('{"step": 1, ' + "".join(f'"{c * 62}": {{' for c in "abcd") + "\n", "nested too deep")):
        r = run(report, write("bad.jsonl", [], text))
        want(f"damage {text[:40]!r}: status", r.returncode, 1)
        want(f"damage {text[:40]!r}: one line", len(r.stderr.strip().split("\n")), 1)
        has(f"damage {text[:40]!r}", r.stderr, says)
    has("no file", run(report, os.path.join(work, "none.jsonl")).stderr, "none.jsonl: ")
    many = write("many.jsonl", [], "".join('{"step": %d, %s}\n' % (i, ", ".join(f'"k{i}x{j}": 1' for j in range(100))) for i in range(100)))
    has("endless names", run(report, many).stderr, "so many different numbers")
    far = write("far.jsonl", [{"step": s, "loss": 1.0} for s in (5, 9007199254740992, 6)])
    want("steps that are far apart", run(report, far).returncode, 0)
    r, seed = random.Random(5), [json.dumps(x) for x in lines(30, 3)]
    for i in range(60):
        text = list("\n".join(r.sample(seed, 3)) + "\n")
        for _ in range(r.randint(1, 4)):
            at = r.randrange(len(text))
            text[at:at + r.randint(0, 3)] = r.choice(["", "{", "}", "[", "]", '"', "\\", "9" * 400, "\0", "-", ",", "e", "\n", "null", "é"])
        got = run(report, write("bad.jsonl", [], "".join(text)))
        if got.returncode not in (0, 1) or "Sanitizer" in got.stderr or len(got.stderr.strip().split("\n")) > 1:
            want(f"changed line {i}: {got.stderr[:300]}", got.returncode, 0)
    want("changed lines", True, True)


def check_page(b, report):
    a = lines(3000, 1)
    first, second = write("a.jsonl", a), write("</script><b>/metrics.jsonl", lines(2000, 2, moe=False), '{"step": 2001, "tok')
    made = run(report, first, os.path.dirname(second), good=True)
    want("report: status", (made.returncode, made.stderr), (0, ""))
    path = os.path.join(work, "report.html")
    with open(path, "w") as f:
        f.write(made.stdout)
    b.size(1400, 900)
    b.open(path)
    b.wait("window.olmogen")
    two = lambda: b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
    steps = [x for x in a if "loss" in x]
    # what became of each run
    rows = b.eval("[...document.querySelectorAll('#runs tbody tr')].map((r) => [...r.children].map((c) => c.textContent))")
    want("summary of a", rows[0], ["a", "3,006", "3,000", "12,288,000", str(float(f"{steps[-1]['loss']:.6g}")), "2", rows[0][6], "0.4", "2", "1", "1", "0", "7", "3"])
    has("a run that goes on", rows[1][0], "(a line is being written)")
    want("the other run's lines", rows[1][1], "2,004")
    # curves: every step is in one bin, whose least and greatest are those of its steps
    for title, key in (("loss", "loss"), ("gradient norm", "grad_norm")):
        got = b.eval(f"(() => {{ const l = olmogen.charts.get({title!r}).values().find((l) => l.run.short === 'a'); return {{ ...l.c, width: l.run.width }}; }})()")
        bins = {}
        for x in steps:
            if x[key] is not None:
                bins.setdefault((x["step"] - 1) // got["width"], []).append(x[key])
        want(f"{key}: bins", got["at"], sorted(bins))
        close = all(math.isclose(y, sum(v) / len(v), rel_tol=1e-5) and math.isclose(lo, min(v), rel_tol=1e-5) and math.isclose(hi, max(v), rel_tol=1e-5)
                    for y, lo, hi, v in zip(got["y"], got["lo"], got["hi"], (bins[k] for k in sorted(bins))))
        want(f"{key}: mean, least and greatest of each bin", close, True)
    want("a spike of one step is not lost", b.eval("Math.max(...olmogen.charts.get('gradient norm').values()[0].c.hi)"), 77.25)
    # hover
    chart = "olmogen.charts.get('loss')"
    b.eval(f"{chart}.canvas.scrollIntoView({{ block: 'center' }})")
    two()
    box = b.eval(f"(() => {{ const r = {chart}.canvas.getBoundingClientRect(); return [r.left, r.top]; }})()")
    step = 1 + 1000 // got["width"] * got["width"]
    x = b.eval(f"{chart}.x_of(olmogen.runs[0], {step})")
    b.hover(box[0] + x, box[1] + 100)
    tip = b.eval("document.getElementById('tip').textContent")
    inside = [y["loss"] for y in steps if step <= y["step"] < step + got["width"]]
    has("hover over the loss", tip, f"a, steps {step:,} .. {step + got['width'] - 1:,}: {float(f'{sum(inside) / len(inside):.6g}')}")
    has("hover says both runs", tip, "script><b>, steps 1,001")
    x = b.eval(f"{chart}.x_of(olmogen.runs[0], 1000)")
    b.hover(box[0] + x, box[1] + 100)
    has("hover over what happened", b.eval("document.getElementById('tip').textContent"), "skipped, a, step 1,000: by SkipStep")
    # all charts move together; a box takes a run away; the table of a chart
    b.eval(f"{chart}.zoom(0.5, 0.5, 0.5)")
    two()
    want("charts have one axis", b.eval("[...olmogen.charts.values()].every((v) => v.x1 - v.x0 < 0.51)"), True)
    b.eval("document.querySelectorAll('#curves .runs input')[1].click()")
    want("a run is taken away", b.eval(f"{chart}.values().length"), 1)
    b.eval("document.querySelectorAll('#curves .runs input')[1].click()")
    b.eval("document.querySelector('#curves details summary').click()")
    b.wait("document.querySelector('#curves details tbody tr')")
    row = b.eval("[...document.querySelector('#curves details tbody tr').children].map((c) => c.textContent)")
    n = [y["loss"] for y in steps[:got["width"]]]
    want("table of the loss", row, ["a", "1", *(str(float(f"{v:.6g}")) for v in (sum(n) / len(n), min(n), max(n)))])
    for label in ("logarithmic axis", "least and greatest"):
        before = b.eval(f"{chart}.canvas.toDataURL()")
        b.eval(f"[...document.querySelectorAll('#curves .sticky label')].find((l) => l.textContent === {label!r}).querySelector('input').click()")
        two()
        want(f"{label} changes the chart", b.eval(f"{chart}.canvas.toDataURL()") != before, True)
    # experts: shares of the mean, to a twentieth
    for l in LAYERS:
        b.eval(f"(() => {{ const s = [...document.querySelectorAll('#experts select')].pop(); s.value = '{l}'; s.dispatchEvent(new Event('change')); }})()")
        got = b.eval("(() => { const h = olmogen.heat; return [0, h.h.x.length - 1].map((i) => Array.from({ length: h.h.rows }, (_, k) => h.cell(i, k))); })()")
        for i, at in ((0, 9), (1, -1)):
            load = [x for x in steps if "load" in x["moe"][0]][0 if i == 0 else -1]["moe"][l - 1]["load"]
            shares = [v * EXPERTS / sum(load) for v in load]
            want(f"load of layer {l}, {at}", all(g == s == 0 or abs(math.log2(g / s)) < 0.08 for g, s in zip(got[i], shares)), True)
    b.eval("document.getElementById('experts').scrollIntoView()")
    two()
    heat = b.eval("(() => { const h = olmogen.heat; h.view.canvas.scrollIntoView({ block: 'center' }); const r = h.view.canvas.getBoundingClientRect(); return [r.right - 3, r.top + 3.5 * h.row]; })()")
    b.hover(*heat)
    has("hover over a dead expert", b.eval("document.getElementById('tip').textContent"), "expert 3 of layer 3, from step ")
    has("hover over a dead expert", b.eval("document.getElementById('tip').textContent"), ": none")
    layers = b.eval("(() => { const h = olmogen.layers; h.view.canvas.scrollIntoView({ block: 'center' }); const r = h.view.canvas.getBoundingClientRect(); return [r.left + 200, r.top + 20]; })()")
    b.click(*layers)
    has("a click on a layer shows its experts", b.eval("[...document.querySelectorAll('#experts figcaption')].map((c) => c.textContent).join()"), "Load of the experts of layer 2")
    # ranks: the third takes four times as long as the others
    cells = b.eval("(() => { const h = olmogen.runs[0].heats.ranks; return [h.rows, h.cells.slice(0, 4)]; })()")
    want("ranks", (cells[0], cells[1][2] > cells[1][1], cells[1][0] == cells[1][3]), (4, True, True))
    # events
    text = b.eval("document.getElementById('events').textContent")
    for part in ("restart", "from the checkpoint of step 1500", "not finite", "model.layers.1.mlp.gate.weight", "slow", "it waited 0.7 s for data"):
        has("events", text, part)
    want("a chart of a number that nobody foresaw", b.eval("olmogen.charts.has('eval/arc/accuracy')"), True)
    b.eval("[...olmogen.charts.values()][0].show(0, 1)")
    rules(b, "report", path, [s for s in SECTIONS if b.eval(f"Boolean(document.getElementById({s!r}))")])


def measure(b, report):
    path = os.path.join(work, "million.jsonl")
    with open(path, "w") as f:
        for s in range(1, 1000001):
            f.write('{"step": %d, "tokens": %d, "loss": %.9g, "grad_norm": %.9g, "lr": 0.0003, "tokens_per_s": 50000, "data_wait": 0.0001, '
                    '"tflops": 412.3, "mfu": 0.41}\n' % (s, s * 4096, 2 + 8 / (1 + s / 1000), 1 + s % 7))
    start = time.time()
    made = run(report, path)
    took = time.time() - start
    page = os.path.join(work, "million.html")
    with open(page, "w") as f:
        f.write(made.stdout)
    b.size(1400, 900)
    b.open(page)
    b.wait("performance.getEntriesByName('first-contentful-paint').length")
    print(f"{os.path.getsize(path):,} bytes of metrics in {took:.1f} s, page of {len(made.stdout):,} bytes, first paint after "
          f"{b.eval('performance.getEntriesByName(`first-contentful-paint`)[0].startTime'):.0f} ms")


shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)
if sys.argv[2:] == ["measure"]:
    b = browser.Browser()
    measure(b, build("report", "-O2"))
    b.close()
    sys.exit(0)
sanitized = build("sanitized", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
damaged(sanitized)
if browser.find():
    b = browser.Browser()
    try:
        check_page(b, sanitized)
    finally:
        b.close()
else:
    print("skipped, the page: there is no Chromium")
end()
