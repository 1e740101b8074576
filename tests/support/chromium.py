"""A headless Chromium for tests, spoken to through a pipe in its own protocol (Chrome DevTools): no driver, no network.

Where there is none the test is skipped, unless its tier is required (tests/support/tiers.py).
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.tiers import BROWSERS

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
_PATIENCE = 60.0  # seconds for any answer


class Page:
    """One page: what it asked for, what stood in its console, and what it is told."""

    def __init__(self, asks, answers):
        self._asks, self._answers, self._rest, self._count, self._session = asks, answers, b"", 0, None
        self.requests, self.complaints = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Ask for something and wait for its answer, keeping what is told meanwhile."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(
            self._asks,
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0",
        )
        answer = self._until(lambda told: told.get("id") == self._count)
        assert "error" not in answer, answer
        return answer["result"]

    def _until(self, wanted):
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            while b"\0" in self._rest:
                line, self._rest = self._rest.split(b"\0", 1)
                told = json.loads(line)
                self._keep(told.get("method"), told.get("params", {}))
                if wanted(told):
                    return told
            if select.select([self._answers], [], [], 1.0)[0]:
                told = os.read(self._answers, 2**20)
                if not told:
                    raise EOFError("the browser has gone")
                self._rest += told
        raise TimeoutError("the browser does not answer")

    def _keep(self, method, told):
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        if method == "Runtime.exceptionThrown" or (
            method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning")
        ):
            self.complaints.append(told)
        if method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(told)

    def open(self, path, width=1400, height=900, dark=False):
        """Open a file; the seconds until it was loaded and painted, by the browser's own clock."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        self._until(lambda told: told.get("method") == "Page.loadEventFired")
        after = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now() / 1000))))"
        return self.ask(after)

    def ask(self, expression):
        """The value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def press(self, key, code=None):
        """Press a key, as a person without a mouse does."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            number = {"Enter": 13, "Tab": 9, " ": 32}.get(key, 0)
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code or key,
                text=text,
                windowsVirtualKeyCode=number,
            )

    def picture(self, path, whole=False):
        """A screenshot, of what is seen or of the whole page."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(told["data"]))

    def paper(self, path):
        """The page as it is printed."""
        told = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        Path(path).write_bytes(base64.b64decode(told["data"]))


def _pipe():
    """A pipe whose numbers are not 3 and 4, at which the browser listens and answers."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high


@contextlib.contextmanager
def chromium():
    """A page of a fresh browser, which is ended afterwards."""
    command = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if command is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (theirs_in, ours_out), (ours_in, theirs_out) = _pipe(), _pipe()
        words = [command, *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(ours_out, ours_in)
        finally:
            process.terminate()
            process.wait(_PATIENCE)
            os.close(ours_out)
            os.close(ours_in)
