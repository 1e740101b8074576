"""A headless Chromium for tests, controlled through a pipe with the Chrome DevTools Protocol, without a driver or network.

If there is none, the test is skipped unless its tier is required (tests/support/tiers.py).
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
_TIMEOUT = 300.0  # seconds, for any answer


class Page:
    """A page of the browser: the requests it made, the problems in its console, and commands to it."""

    def __init__(self, to_browser, from_browser):
        self._to_browser, self._from_browser = to_browser, from_browser
        self._unread, self._count, self._session = b"", 0, None
        self.requests, self.problems = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and return its result; events that arrive meanwhile are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(
            self._to_browser,
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0",
        )
        answer = self._read_until(lambda event: event.get("id") == self._count)
        assert "error" not in answer, answer
        return answer["result"]

    def _read_until(self, is_wanted):
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            while b"\0" in self._unread:
                line, self._unread = self._unread.split(b"\0", 1)
                message = json.loads(line)
                self._note_event(message.get("method"), message.get("params", {}))
                if is_wanted(message):
                    return message
            if select.select([self._from_browser], [], [], 1.0)[0]:
                chunk = os.read(self._from_browser, 2**20)
                if not chunk:
                    raise EOFError("the browser has gone")
                self._unread += chunk
        raise TimeoutError("the browser does not answer")

    def _note_event(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        if method == "Runtime.exceptionThrown" or (
            method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning")
        ):
            self.problems.append(parameters)
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(parameters)

    def open(self, path, width=1400, height=900, dark=False):
        """Open a file and return the seconds until it was loaded and painted, by the clock of the browser."""
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
        self._read_until(lambda event: event.get("method") == "Page.loadEventFired")
        after = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now() / 1000))))"
        return self.eval(after)

    def eval(self, expression):
        """Return the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key, code=None):
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

    def screenshot(self, path, whole=False):
        """Write a screenshot of the visible part, or of the whole page."""
        result = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(result["data"]))

    def print_pdf(self, path):
        """Write the printed page as PDF."""
        result = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        Path(path).write_bytes(base64.b64decode(result["data"]))


def _pipe():
    """Return a pipe with file descriptors above 4, because the browser reads from 3 and writes to 4."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high


@contextlib.contextmanager
def chromium():
    """Start a browser, yield a page of it, and end it afterwards."""
    command = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if command is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (browser_reads, we_write), (we_read, browser_writes) = _pipe(), _pipe()
        arguments = [command, *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}', "bash", *arguments],
            pass_fds=(browser_reads, browser_writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(browser_reads)
        os.close(browser_writes)
        try:
            yield Page(we_write, we_read)
        finally:
            process.terminate()
            process.wait(_TIMEOUT)
            os.close(we_write)
            os.close(we_read)
