"""Headless Chromium over its debugging pipe: opens a page, runs scripts, presses keys, prints."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60.0


class Chromium:
    """One browser with one tab. ``problems`` are its errors, warnings and refused requests."""

    def __init__(self, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def pipes() -> None:  # the browser reads its descriptor 3 and writes 4
            copies = os.dup(to_read), os.dup(to_write)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        self._process = subprocess.Popen(
            [BROWSER, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session = b"", 0, None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["exceptionDetails"])[:500])
        elif method == "Log.entryAdded":
            self.problems.append(event["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(str(event["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"][:200])

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The window's size, and whether its user likes it dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)

    def open(self, path: Path, fragment: str = "") -> None:
        """Opens a page, there where the fragment says, and waits until it is drawn."""
        self._events.clear()
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri() + fragment)
        while "Page.loadEventFired" not in self._events:
            self._next()
        self.run(
            "new Promise((done) => { const look = () => document.documentElement.dataset.ready"
            " || document.querySelector('.problem') ? setTimeout(done, 60) : setTimeout(look, 5);"
            " look(); })"
        )

    def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that a selector finds."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.run(f"{found}.map((one) => one.textContent)")

    def press(self, key: str) -> None:
        """Presses and lets go of a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)
            text = {}
        self.settle()

    def point(self, x: float, y: float) -> None:
        """Moves the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float], clicks: int = 1) -> None:
        """Presses the pointer at one place and lets go of it at another."""
        (x, y), (to_x, to_y) = start, end
        held = {"button": "left", "clickCount": clicks}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **held)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=to_x, y=to_y, buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, **held)
        self.settle()

    def settle(self) -> None:
        """Waits for what is drawn after this."""
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        os.close(self._read)
        os.close(self._write)
