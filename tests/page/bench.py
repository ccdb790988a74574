"""bench.html of a trainer in a headless Chromium, read back against the trace of the same step. Usage: bench.py TRACE HTML"""
import json, sys
from suite import browser, end, has, rules, skip, want

if not browser.find():
    skip("there is no Chromium")
events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
sums = {}
for e in events:
    if e["cat"] == "operator":
        calls, us, flops = sums.get(e["name"], (0, 0, 0))
        sums[e["name"]] = (calls + 1, us + e["dur"], flops + e["args"]["FLOPs"])
longest = sorted(sums, key=lambda n: -sums[n][1])
b = browser.Browser()
try:
    b.size(1400, 900)
    b.open(sys.argv[2])
    b.wait("window.olmogen")
    rows = b.eval("[...document.querySelectorAll('#where tbody tr')].map((r) => [...r.children].map((c) => c.textContent))")
    want("operators, the longest first", [r[0] for r in rows], longest)
    want("calls", [r[1] for r in rows], [f"{sums[n][0]:,}" for n in longest])
    cards = b.eval("document.querySelector('.cards').textContent")
    has("ranks", cards, f"ranks{len({e['pid'] for e in events})}")
    # the middle of the longest call, on the flame
    e = max((e for e in events if e["cat"] == "operator"), key=lambda e: e["dur"])
    x, y = b.eval("(() => { const f = olmogen.flame; f.canvas.scrollIntoView({ block: 'center' }); const r = f.canvas.getBoundingClientRect();"
                  f" const [x, y] = f.place_of({json.dumps(e)}, {e['ts'] + e['dur'] / 2}); return [r.left + x, r.top + y]; }})()")
    b.hover(x, y)
    tip = b.eval("document.getElementById('tip').textContent")
    has("hover over the longest call", tip, e["name"])
    has("hover says the rank", tip, f"rank {e['pid']}")
    has("hover says the stream", tip, f"stream {e['tid']}")
    # the slowest product on the roofline
    name = next(n for n in longest if sums[n][2])
    x, y = b.eval("(() => { const f = olmogen.roofline; f.canvas.scrollIntoView({ block: 'center' }); const r = f.canvas.getBoundingClientRect();"
                  f" const [x, y] = f.place_of({name!r}); return [r.left + x, r.top + y]; }})()")
    b.hover(x, y)
    has("hover over a product", b.eval("document.getElementById('tip').textContent"), f" calls, ")
    before = b.eval("olmogen.flame.canvas.toDataURL()")
    b.eval("olmogen.flame.zoom(0.2, 0.5, 0.5)")
    b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
    want("zoom changes the flame", b.eval("olmogen.flame.canvas.toDataURL()") != before, True)
    b.eval("olmogen.flame.show(0, 1)")
    rules(b, "bench", sys.argv[2], ["when", "where", "roof"])
finally:
    b.close()
end()
