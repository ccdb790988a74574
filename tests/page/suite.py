"""What tests of pages share: checks that are counted, and rules that every page keeps."""
import os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser

counts = [0, 0]


def want(name, got, expected):
    counts[got != expected] += 1
    if got != expected:
        print(f"FAIL {name}: {str(got)[:300]}, expected {str(expected)[:300]}")


def has(name, text, part):
    want(f"{name}: {str(text)[:160]!r} has {part!r}", part in (text or ""), True)


# What people act on or look at, and screen readers announce by its name.
NAMED = {"button", "link", "image", "img", "combobox", "spinbutton", "slider", "checkbox", "radio", "textbox", "table", "region",
         "navigation", "group", "heading"}


def rules(b, name, path, sections):
    """Goes through a page as a reader would: everything is drawn, is named, fits, and nothing is asked of a network."""
    for dark, width in ((False, 1400), (True, 1400), (False, 420)):
        b.size(width, 900, dark=dark)
        b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
        wide = b.eval("document.documentElement.scrollWidth - innerWidth")
        want(f"{name}: nothing is wider than {width} pixels", max(0, wide), 0)
    b.size(1400, 900)
    for s in sections:
        b.eval(f"document.getElementById({s!r}).scrollIntoView()")
        b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
    nameless = sorted({role for role, text in b.names() if role in NAMED and not text.strip()})
    want(f"{name}: accessible names", nameless, [])
    blank = b.eval("""[...document.querySelectorAll("canvas")].filter((c) => {
        const empty = document.createElement("canvas");
        empty.width = c.width;
        empty.height = c.height;
        return c.toDataURL() === empty.toDataURL();
    }).map((c) => c.getAttribute("aria-label"))""")
    want(f"{name}: canvases that are empty", blank, [])
    b.eval("""(() => { for (const d of document.querySelectorAll("details")) d.open = true; })()""")
    b.eval("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")
    few = b.eval("""[...document.querySelectorAll("details")].filter((d) => !d.querySelector("tbody tr, pre")).length""")
    want(f"{name}: tables that stay empty", few, 0)
    b.eval("""(() => { for (const d of document.querySelectorAll("details")) d.open = false; })()""")
    want(f"{name}: faults and warnings of the browser", b.faults, [])
    want(f"{name}: what is asked of anybody else", [r for r in b.requests if r != "file://" + os.path.abspath(path)], [])


def end():
    print(f"{counts[0]} passed, {counts[1]} failed")
    sys.exit(counts[1] != 0)


def skip(why):
    print(f"skipped: {why}\n0 passed, 0 failed")
    sys.exit(0)
