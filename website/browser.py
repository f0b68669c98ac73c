"""A real Chromium without a window, driven over its own pipe: no driver, no library."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
# What `make browser` installs, with the libraries that a machine without a desktop may lack.
OWN = Path(sys.prefix, "browser", "chromium")
OWN_LIBRARIES = OWN.parent / "al2023" / "lib"


def find_browser():
    """$CHROMIUM, the first that is installed, or that of `make browser`; None where there is none."""
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    return os.environ.get("CHROMIUM") or installed or (str(OWN) if OWN.exists() else None)


class Browser:
    """One page. Everything that it logs as an error, or refuses to run, is in `errors`."""

    def __init__(self, program, profile):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        arguments = [
            "--headless",
            "--no-sandbox",
            "--no-zygote",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', program, *arguments]
        self._process = subprocess.Popen(
            [*shell, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            env={**os.environ, "LD_LIBRARY_PATH": str(OWN_LIBRARIES)} if program == str(OWN) else None,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._last, self._session = b"", 0, None
        self.errors = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, file, *, width=1200, height=900, dark=False, fragment=""):
        """Load a file and wait until it has drawn itself."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")
        self.errors.clear()
        self._call("Page.navigate", url=f"{Path(file).resolve().as_uri()}{fragment}")
        self.wait("document.body?.dataset.ready === 'yes'")
        self.wait("document.querySelector('.panel path')")

    def value(self, expression):
        """What an expression of the page is."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def wait(self, condition, seconds=60):
        """Until a condition holds in the page."""
        poll = f"""new Promise((done, failed) => {{
            const end = Date.now() + {1000 * seconds};
            const look = () => {{
                if ({condition}) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 30); }};
            look(); }})"""
        assert self.value(poll), f"not within {seconds} s: {condition}"

    def texts(self, selector):
        """The text of every element that is drawn."""
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)")

    def point(self, selector, *, press=False, across=0.5):
        """Move the pointer to the first such element, and press there."""
        place = self.value(f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: 'center'}}); const box = found.getClientRects()[0];
            return {{x: box.x + {across} * box.width, y: box.y + box.height / 2}}; }})()""")
        self._call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        if press:
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def screenshot(self, file):
        """The part that is in view, as a PNG."""
        Path(file).write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def close(self):
        """End it."""
        os.close(self._commands)
        os.close(self._answers)
        self._process.terminate()
        self._process.wait(30)

    def _call(self, method, **parameters):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._last:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self):
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser ended with code {self._process.wait(30)}")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["exception"].get("description"))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        if event.get("method") == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "about:")):
                self.errors.append(f"asked for {url}")
