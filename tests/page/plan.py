"""plan.html in a headless Chromium: what one clicks and hovers over is read back against --dump=plan and --plan.
Usage: plan.py OLMOGEN WORKDIR; plan.py OLMOGEN WORKDIR measure prints how fluid it is."""
import os, re, shutil, subprocess, sys
from suite import browser, end, has, rules, skip, want

olmogen, work = sys.argv[1:3]
here = os.path.dirname(os.path.abspath(__file__))
SECTIONS = ["overview", "mesh", "pipeline", "memory", "layer", "route", "compiler"]


def run(*args):
    return subprocess.run([olmogen, *args], check=True, capture_output=True, text=True).stdout


def commas(n):
    return f"{n:,}"


def read_dump(text):
    """Buffers and launches of each stage, by nothing that the page has."""
    stages, at, heading = [], None, None
    for line in text.split("\n"):
        if re.match(r"arena \d+ bytes", line):
            at = {"buffers": {}, "launches": {}, "regions": {}}
            stages.append(at)
        m = re.match(r"  region (.{17}) +(\d+) +(\d+)$", line)
        if m:
            at["regions"][m[1].strip()] = (int(m[2]), int(m[3]))
            continue
        m = re.match(r"  (\S+) +(\S.{16}) +(\d+) +(\d+)(?: x(\d+) stride (\d+))?$", line)
        if m and heading is None and at:
            at["buffers"][m[1]] = (m[2].strip(), int(m[3]), int(m[4]), int(m[6] or 0))
        m = re.match(r"(\S+) (forward|backward|weights)$", line)
        if m:
            heading = f"{m[1]} {m[2]}"
            at["launches"][heading] = []
        m = re.match(r" +\d+ stream \d  (\S+) +(.*?)(?:, (?:after|then) event \d+)*$", line)
        if m and heading:
            at["launches"][heading].append((m[1], m[2]))
        if line.startswith("stage ") or line == "kernels":
            heading = None
    return stages


def near(b, section):
    b.eval(f"document.getElementById({section!r}).scrollIntoView()")
    key = {"memory": "arena"}.get(section, section)
    b.wait(f"olmogen.sections[{section!r}][0].plan_view && olmogen.sections[{section!r}][0].plan_view[{key!r}]")
    b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")


def view(section, part=None):
    return f"olmogen.sections[{section!r}][0].plan_view.{part or section}"


def point(b, section, code, part=None):
    """Where on the screen something of a canvas is; scrolled there."""
    b.eval(f"{view(section, part)}.view.canvas.scrollIntoView({{ block: 'center' }})")
    b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
    x, y = b.eval(code)
    box = b.eval(f"(() => {{ const r = {view(section, part)}.view.canvas.getBoundingClientRect(); return [r.left, r.top]; }})()")
    return box[0] + x, box[1] + y


def tip(b):
    return b.eval("(() => { const t = document.getElementById('tip'); return t && t.style.visibility === 'visible' ? t.textContent : ''; })()")


def check_memory(b, name, stages):
    near(b, "memory")
    for s, st in enumerate(stages):
        for region, (_, size) in st["regions"].items():
            if not size:
                continue
            b.eval(f"document.querySelector('#memory button[data-stage=\"{s}\"][data-region=\"{region}\"]').click()")
            rows = b.eval("""[...document.querySelectorAll("#memory .scroll")].find((s) => s.textContent.startsWith("Buffers of"))
                .querySelectorAll("tbody tr").values().map((r) => [...r.children].map((c) => c.textContent)).toArray()""")
            got = {r[0]: (r[2], r[3], r[5]) for r in rows}
            expected = {n: (commas(off), commas(size), commas(stride)) for n, (r, off, size, stride) in st["buffers"].items() if r == region}
            if s in (0, len(stages) - 1): # a region's strides of single entries of the stream are not in the dump
                want(f"{name}: buffers of {region}, stage {s}", {n: v[:2] for n, v in got.items()}, {n: v[:2] for n, v in expected.items()})
                want(f"{name}: strides of {region}, stage {s}", [n for n, v in expected.items() if v[2] != "0" and got[n][2] != v[2]], [])
            label = b.eval(f"document.querySelector('#memory button[data-stage=\"{s}\"][data-region=\"{region}\"]').getAttribute('aria-label')")
            unit, n = 0, size
            while n >= 1024:
                n, unit = n / 1024, unit + 1
            text = f"{n:.2f} {['bytes', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}" if unit else f"{size} bytes"
            want(f"{name}: bar of {region}, stage {s}", label, f"{region}: {text}")


def check_arena(b, name, st, layer, first, tensor):
    """A saved tensor of a layer: hovering over it names it, and its bytes are the dump's."""
    near(b, "memory")
    _, off, size, stride = st["buffers"][tensor]
    find = f"{view('memory', 'arena')}.map().items.find((i) => i.names.has('{tensor} of layer {layer}'))"
    got = b.eval(f"(() => {{ const i = {find}; return [i.y0, i.y1]; }})()")
    # layers of the stage that are of the tensor's kind; of the residual stream all have entries
    kind = tensor.split("_")[0]
    index = layer if tensor in (f"{kind}_x", f"{kind}_y") else layer - first
    want(f"{name}: bytes of {tensor}, layer {layer}", got, [off + index * stride, off + index * stride + size])
    # near enough that it is some pixels high
    b.eval(f"(() => {{ const i = {find}, a = {view('memory', 'arena')}, n = a.stage().arena, h = (i.y1 - i.y0) / n; "
           "a.view.show(0, 1, Math.max(0, i.y0 / n - 4 * h), Math.min(1, i.y1 / n + 4 * h)); })()")
    x, y = point(b, "memory", f"{view('memory', 'arena')}.place({find})", "arena")
    b.hover(x, y)
    has(f"{name}: hover over the arena", tip(b), tensor)
    has(f"{name}: hover over the arena", tip(b), f"bytes {commas(got[0])} .. {commas(got[1])}")
    lives = b.eval(f"(() => {{ const m = {view('memory', 'arena')}.map(), i = {find}, on = (x) => m.visit.find((v) => x >= v.x && x < v.end); "
                   "return [on(i.x0).phase, on(i.x1 - 1).phase, on(i.x1 - 1).layer]; })()")
    want(f"{name}: {tensor} lives from its forward to its backward pass", lives, ["forward", "backward", layer])
    overlap = b.eval(f"(() => {{ const m = {view('memory', 'arena')}.map().items; let n = 0; for (let i = 0; i < m.length; i++) "
                     "for (let j = 0; j < i && j < 3000; j++) n += m[i].x0 < m[j].x1 && m[j].x0 < m[i].x1 && m[i].y0 < m[j].y1 && "
                     "m[j].y0 < m[i].y1 && m[i].region === m[j].region; return n; })()")
    want(f"{name}: buffers in use together that overlap", overlap, 0)


def check_layer(b, name, st, heading, tokens):
    near(b, "layer")
    b.eval(f"""(() => {{ const s = [...document.querySelectorAll("#layer select")].pop(); s.value = {heading!r}; s.dispatchEvent(new Event("change")); }})()""")
    launches = st["launches"][heading]
    nodes = b.eval("document.querySelectorAll('#layer .node').length")
    want(f"{name}: launches of {heading}", nodes, len(launches))
    for i, (kernel, op) in enumerate(launches):
        box = b.eval(f"(() => {{ const n = document.querySelector('#layer .node[data-i=\"{i}\"]'); n.scrollIntoView({{ block: 'center' }}); "
                     "const r = n.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()")
        b.click(*box)
        rows = b.eval("""Object.fromEntries([...document.querySelectorAll("#layer .beside table tr")].map((r) =>
            [...r.children].map((c) => c.textContent)).filter((r) => r.length === 2))""")
        want(f"{name}: {heading} {i}, op", rows.get("op"), op)
        has(f"{name}: {heading} {i}, kernel", rows.get("kernel"), kernel)
        m = re.match(r"linear_(\d+)x(\d+)x(\d+)$", kernel)
        if m:
            a, c, k = map(int, m.groups())
            want(f"{name}: FLOPs of {kernel}", rows["useful FLOPs"], commas(2 * a * c * k))
            want(f"{name}: bytes of {kernel}", rows["bytes moved"], commas(2 * (a * k + c * k + a * c)))


def check_route(b, name):
    """Final rows, worked out again from the choices that were drawn."""
    near(b, "route")
    r = b.eval(f"(() => {{ const r = {view('route')}.routes(); return {{ ...r, chosen: [...r.chosen], counts: r.counts.map((c) => [...c]) }}; }})()")
    way = b.eval(f"{view('route')}.way()")
    token = int(b.eval("[...document.querySelectorAll('#route label')].find((l) => l.textContent === 'token').querySelector('input').value"))
    w, experts, k, here, me, room = r["w"], r["E"], r["K"], r["here"], r["source"], r["c"]
    own = [0] * experts
    for e in r["chosen"]:
        own[e] += 1
    want(f"{name}: counts of the source", r["counts"][me], own)
    want(f"{name}: routes of each rank", [sum(c) for c in r["counts"]], [r["T"] * k] * w)
    for x in way:
        row, e = 0, x["e"]
        for i in range(e // here * here, e + 1):
            for s in range(w):
                if i == e and s == me:
                    break
                row += min(r["counts"][s][i], room - row)
        row += sum(1 for i in r["chosen"][:token * k + x["k"]] if i == e)
        want(f"{name}: final row of route {x['k']}", x["row"], row if row < room else -1)
        want(f"{name}: rank of route {x['k']}", x["owner"], e // here)
    text = b.eval("document.querySelector('#route .steps').textContent")
    has(f"{name}: the text of the place", text, commas(way[0]["row"]))
    b.eval(f"{view('route')}.go(0)")
    b.eval("[...document.querySelectorAll('#route button')].find((x) => x.textContent === 'Next step').click()")
    want(f"{name}: next step", b.eval(f"{view('route')}.step()"), 1)
    b.eval("[...document.querySelectorAll('#route button')].find((x) => x.textContent === 'Play').click()")
    if w == 1: # once is enough
        b.wait(f"{view('route')}.step() > 1", 20)
    b.eval("[...document.querySelectorAll('#route button')].find((x) => x.textContent === 'Pause').click()")


def check_fusion(b, name, *args):
    """Each op before and after fusion stands in the table, and each one that is new beside those that it replaced."""
    near(b, "compiler")
    rows = b.eval(f"{view('compiler')}.rows().map((r) => [r.before.map((o) => o.plain), r.after ? r.after.plain : null, r.same])")
    segment = b.eval("[...document.querySelectorAll('#compiler select')].pop().value")
    for stage, got in (("shard", sorted(o for r in rows for o in r[0])), ("fuse", sorted(r[1] for r in rows if r[1]))):
        ops, on = [], False
        for line in run(f"--dump={stage}", *args).split("\n"):
            on = bool(re.match(rf"{segment} (forward|backward|weights)\b", line)) or (on and line.startswith("  "))
            if on and line.startswith("  "):
                ops.append(line.strip())
        want(f"{name}: ops of {segment}, {stage}", got, sorted(ops))
    want(f"{name}: ops that came of none, or into none", [r for r in rows if not r[2] and (not r[0] or not r[1])], [])


def check_mesh(b, name, data, expert, pipeline):
    near(b, "mesh")
    rank = data + expert + 3 if data * pipeline > data + expert + 3 else 0
    first = rank // expert * expert
    groups = {"expert": range(first, first + expert), "pipeline": range(rank % data, data * pipeline, data),
              "data": range(rank // data * data, rank // data * data + data),
              "expert_data": range(rank // data * data + rank % expert, rank // data * data + data, expert)}
    for group, ranks in groups.items():
        b.eval(f"[...document.querySelectorAll('#mesh button')].find((x) => x.textContent === {group!r}).click()")
        x, y = point(b, "mesh", f"{view('mesh')}.place({rank})")
        b.hover(x, y)
        text, ranks = tip(b), list(ranks)
        has(f"{name}: hover over rank {rank}", text, f"rank {rank}, stage {rank // data}")
        listed = []
        for part in re.sub(r".*ranks ", "", text, flags=re.S).split(", "):
            lo, hi = (part.split("..") + [part])[:2] if ".." in part else (part, part)
            listed += range(int(lo), int(hi) + 1)
        want(f"{name}: {group} group of rank {rank}", listed, ranks)
        lit = b.eval(f"""(() => {{ const v = {view('mesh')}, c = document.createElement("canvas").getContext("2d", {{ willReadFrequently: true }});
            const at = (r) => {{ c.drawImage(v.view.canvas, -v.place(r)[0] - 4, -v.place(r)[1] - 4); return [...c.getImageData(0, 0, 1, 1).data].join(); }};
            v.view.redraw(); return new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(() => f([
            {ranks[-1]}, {(ranks[-1] + 1) % (data * pipeline) if len(ranks) < data * pipeline else 0}].map(at))))); }})()""")
        if group == "expert" and expert < data:
            want(f"{name}: the group is lit, its neighbour is not", lit[0] != lit[1], True)
    b.click(x, y)
    has(f"{name}: the rank's facts", b.eval("document.querySelector('#mesh .scroll').textContent"), f"Rank {rank}")
    b.key("ArrowRight")
    has(f"{name}: the next rank by key", b.eval("document.querySelector('#mesh .scroll').textContent"), f"Rank {min(rank + 1, data * pipeline - 1)}")


def check_pipeline(b, name, plan, stages):
    near(b, "pipeline")
    run_ = f"{view('pipeline')}.run()"
    if stages > 1:
        b.eval("[...document.querySelectorAll('#pipeline button')].find((x) => x.textContent === 'equal chunks').click()")
        want(f"{name}: bubble", f"{100 * b.eval(run_ + '.bubble'):.1f}", re.search(r"pipeline bubble +([\d.]+) %", plan)[1])
        want(f"{name}: all passes have run", b.eval(f"{run_}.complete"), True)
    # passes of a stage do not overlap, and a microbatch goes forward stage by stage
    want(f"{name}: passes in order", b.eval(f"""(() => {{ const r = {run_}; return r.stages.every((l, s) => [...l.start].every((t, i) =>
        i + 1 >= l.n || t + r.length(s, i) <= l.start[i + 1] + 1e-9)); }})()"""), True)
    if stages == 1:
        b.eval(f"{view('pipeline')}.view.show(0, 0.05)")
    x, y = point(b, "pipeline", f"{view('pipeline')}.place({stages - 1}, 0)")
    b.hover(x, y)
    has(f"{name}: hover over the last stage's first pass", tip(b), f"stage {stages - 1}: forward of microbatch 0")
    b.click(x, y)
    want(f"{name}: a click follows the microbatch", b.eval(f"{view('pipeline')}.followed()"), 0)
    if stages > 1:
        x, y = point(b, "pipeline", f"[{view('pipeline')}.place({stages - 1}, 0)[0] / 2 + 32, {view('pipeline')}.place({stages - 1}, 0)[1]]")
        b.hover(x, y)
        has(f"{name}: the gap before it has its reason", tip(b), f"bubble: stage {stages - 1} waits")
    b.key("]")
    want(f"{name}: the key ] follows the next", b.eval(f"{view('pipeline')}.followed()"), 1)
    b.key("+")
    want(f"{name}: + zooms", b.eval(f"{view('pipeline')}.view.x1 - {view('pipeline')}.view.x0") < 1, True)
    at = b.eval(f"{view('pipeline')}.view.x0")
    b.mouse("mousePressed", x, y, button="left", clickCount=1)
    b.mouse("mouseMoved", x + 60, y, button="left", buttons=1)
    b.mouse("mouseReleased", x + 60, y, button="left", clickCount=1)
    want(f"{name}: dragging moves", b.eval(f"{view('pipeline')}.view.x0") < at, True)
    b.key("0")


def check_overview(b, name, plan):
    cards = b.eval("Object.fromEntries([...document.querySelectorAll('.card')].map((c) => [...c.children].map((x) => x.textContent)))")
    want(f"{name}: parameters", cards["parameters"], re.search(r"parameters +([\d,]+)  total", plan)[1])
    flops, unit = int(re.search(r"FLOPs +([0-9,]+)", plan)[1].replace(",", "")), 0
    while flops >= 1000:
        flops, unit = flops / 1000, unit + 1
    want(f"{name}: FLOPs", cards["FLOPs a token"], f"{flops:.4g} {' KMGTPE'[unit]}")
    step = re.search(r"expected step +(\S+) s", plan)
    want(f"{name}: expected step", cards["expected step"], f"{float(step[1]):.4g} s" if step else "unknown: ask trainer bench")
    want(f"{name}: PLAN.txt is there", b.eval("document.querySelector('#overview pre').textContent"), plan)


def page(*args):
    path = os.path.join(work, f"{len(os.listdir(work))}.html")
    with open(path, "w") as f:
        f.write(run("--plan=html", *args))
    return path


def check_one(b, name, args, mesh, heading, saved):
    plan, stages, path = run("--plan", *args), read_dump(run("--dump=plan", *args)), page(*args)
    b.size(1400, 900)
    b.open(path)
    check_overview(b, name, plan)
    want(f"{name}: nothing is refused", "A build refuses" in b.eval("document.getElementById('overview').textContent"), False)
    check_mesh(b, name, *mesh)
    check_pipeline(b, name, plan, mesh[2])
    check_memory(b, name, stages)
    for layer, first, tensor in saved:
        check_arena(b, name, stages[0], layer, first, tensor)
    check_layer(b, name, stages[0], heading, 0)
    check_route(b, name)
    check_fusion(b, name, *args)
    rules(b, name, path, SECTIONS)


def frames(b, code):
    """Frames a second while something moves for a second."""
    return b.eval(f"""new Promise((done) => {{ let n = 0, i = 0; const start = performance.now();
        (function turn() {{ ({code})(i++); n++; performance.now() - start < 1000 ? requestAnimationFrame(turn)
        : done(Math.round(n * 1000 / (performance.now() - start))); }})(); }})""")


def measure(b):
    for args in (["models/olmoe-1b-7b.lua"], [f"{here}/wide.lua"], ["-D", "schedule=interleaved", "-D", "chunks=4", f"{here}/wide.lua"]):
        b.size(1400, 900)
        path = page(*args)
        b.open(path)
        b.wait("performance.getEntriesByName('first-contentful-paint').length")
        paint = b.eval("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"{' '.join(args)}: {os.path.getsize(path):,} bytes, first paint after {paint:.0f} ms", end="")
        for s in ("mesh", "pipeline", "memory"):
            near(b, s)
        for section, part in (("pipeline", "pipeline"), ("memory", "arena")):
            b.eval(f"{view(section, part)}.view.canvas.scrollIntoView({{ block: 'center' }})")
            v = f"{view(section, part)}.view"
            print(f"; {part} zooming {frames(b, f'(i) => {v}.zoom(i % 40 < 20 ? 0.93 : 1 / 0.93, 0.4, 0.5)')} frames/s, all in view "
                  f"{frames(b, f'(i) => {{ {v}.show(0, 1, 0, 1); }}')}", end="")
        b.eval(f"{view('mesh')}.view.canvas.scrollIntoView({{ block: 'center' }})")
        hover = """(i) => { const v = %s, c = v.view.canvas.getBoundingClientRect(), r = v.place(i %% 60);
            v.view.canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: c.left + r[0], clientY: c.top + r[1] })); }"""
        print(f"; mesh hovering {frames(b, hover % view('mesh')) if 'wide' in path or len(args) > 1 or 'wide' in args[-1] else '-'}")


if not browser.find():
    skip("there is no Chromium")
shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)
b = browser.Browser()
try:
    if sys.argv[3:] == ["measure"]:
        measure(b)
        sys.exit(0)
    check_one(b, "olmoe", ["models/olmoe-1b-7b.lua"], (1, 1, 1), "moe forward", [(0, 0, "moe_attn_in"), (15, 0, "moe_gate")])
    check_one(b, "wide", [f"{here}/wide.lua"], (64, 16, 8), "moe backward", [(5, 2, "moe_x"), (0, 0, "dense_x")])
    b.open(page("--target=cuda:h200", "-D", "experts=1024", "models/tiny.lua"))
    has("tiny with 1024 experts", b.eval("document.getElementById('overview').textContent"), "A build refuses this plan")
    # a tree has its page beside PLAN.txt; a processor has no rates
    tree = os.path.join(work, "tree")
    run("--emit-only", "-o", tree, "models/tiny.lua")
    b.open(os.path.join(tree, "plan.html"))
    check_overview(b, "tiny", open(os.path.join(tree, "PLAN.txt")).read())
    rules(b, "tiny", os.path.join(tree, "plan.html"), SECTIONS)
    # two plans, side by side
    two = page("models/tiny.lua", "models/olmoe-1b-7b.lua")
    b.open(two)
    want("two: overviews", b.eval("document.querySelectorAll('#overview .pair > div').length"), 2)
    text = b.eval("document.querySelector('#overview table').textContent")
    has("two: differences", text, "parameters")
    has("two: differences", text, "6,919,161,856")
    rules(b, "two", two, SECTIONS)
finally:
    b.close()
end()
