"""A headless Chromium that tests drive: DevTools' protocol over two pipes, with nothing but Python's own library."""
import base64, json, os, shutil, subprocess, tempfile, time


def find():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if shutil.which(name):
            return name
    return None


class Browser:
    def __init__(self):
        to_child, self.out = os.pipe()
        self.inp, from_child = os.pipe()
        self.profile = tempfile.mkdtemp(prefix="om-page-")
        # the browser reads descriptor 3 and writes descriptor 4
        self.child = subprocess.Popen(
            ["sh", "-c", f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}', find(), "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run", "--mute-audio",
             "--disable-background-networking", "--disable-extensions", "--disable-component-update",
             f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.buffer, self.number, self.session, self.faults, self.requests = b"", 0, None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.buffer:
            more = os.read(self.inp, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def seen(self, message):
        what, p = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.faults.append(d.get("exception", {}).get("description") or d["text"])
        elif what == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.faults.append(str([a.get("value") for a in p["args"]]))
        elif what == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.faults.append(p["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.seen(answer)

    def eval(self, code):
        r = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            d = r["exceptionDetails"]
            raise RuntimeError(f"{code[:80]}: {d.get('exception', {}).get('description') or d['text']}")
        return r["result"].get("value")

    def size(self, width, height, dark=False, still=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}])

    def open(self, path):
        self.faults, self.requests = [], []
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait("document.readyState === 'complete'")

    def wait(self, code, most=20):
        end = time.time() + most
        while not self.eval(f"Boolean({code})"):
            if time.time() > end:
                raise RuntimeError("waited in vain for " + code)
            time.sleep(0.02)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def hover(self, x, y):
        self.mouse("mouseMoved", x, y)

    def click(self, x, y):
        self.hover(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key, text=None):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def names(self):
        """Roles and names of the accessibility tree."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n.get("role", {}).get("value"), n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]

    def shot(self, path, full=False):
        if full:
            box = self.call("Page.getLayoutMetrics")["cssContentSize"]
            r = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                          clip={"x": 0, "y": 0, "width": box["width"], "height": min(box["height"], 16000), "scale": 1})
        else:
            r = self.call("Page.captureScreenshot")
        with open(path, "wb") as f:
            f.write(base64.b64decode(r["data"]))

    def close(self):
        self.child.terminate()
        self.child.wait()
        os.close(self.out)
        os.close(self.inp)
        shutil.rmtree(self.profile, ignore_errors=True)
