#!/usr/bin/env python3
"""Measure the page of `flagstone report` in a real headless Chromium: from opening the file to the first whole drawing.

Example:
    python benches/report_page.py          # prints a JSON object
    python benches/report_page.py 1000000  # of so many events
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flagstone.report import build

EVENTS = 100_000
REPEATS = 5
TIMEOUT = 60
"""Seconds until a page that does not draw is an error."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

DRAWN = """
<script>
// The drawing is on the screen once a frame was made of it, which is before the second next one begins.
requestAnimationFrame(() => requestAnimationFrame(() => {
  document.documentElement.dataset.drawn = performance.now();
}));
</script>
"""
"""What is added to the page. `performance.now` counts from the beginning of the navigation."""

ASK = "document.readyState + ' ' + document.documentElement.dataset.drawn"


def browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Chromium:
    """A headless Chromium of its own profile, spoken to by its DevTools protocol over two pipes."""

    def __init__(self, program: str, folder: str) -> None:
        """Start it, with what it keeps in `folder`."""
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={folder}", "--window-size=1400,1600", "about:blank"]
        # It reads from descriptor 3 and writes to 4.
        shell = ["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._left, self._count = b"", 0
        self.version = self.call("Browser.getVersion")["product"]
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method, and return its result; what comes meanwhile is of no interest."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                more = os.read(self._from, 1 << 20)
                if not more:
                    raise RuntimeError("Chromium has ended")
                self._left += more
            answer, _, self._left = self._left.partition(b"\0")
            found = json.loads(answer)
            if found.get("id") == self._count:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                result: dict[str, Any] = found["result"]
                return result

    def milliseconds(self, page: Path) -> float:
        """Open a page, and return how long it took until it was drawn."""
        self.call("Page.navigate", session=self._session, url="about:blank")
        self.call("Page.navigate", session=self._session, url=page.as_uri())
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            answer = self.call("Runtime.evaluate", session=self._session, expression=ASK)["result"].get("value", "")
            state, _, drawn = answer.partition(" ")
            if state == "complete" and drawn not in ("", "undefined"):
                return float(drawn)
            time.sleep(0.05)
        raise RuntimeError(f"{page} is not drawn after {TIMEOUT} s")

    def close(self) -> None:
        """End it."""
        self.call("Browser.close")
        self._process.wait(TIMEOUT)


def trace(path: Path, events: int) -> None:
    """Write a trace of so many allocations and frees, with 500 blocks live at most."""
    chance = random.Random(2)
    live: list[int] = []
    with path.open("w", encoding="utf-8") as file:
        file.write("op,id,size,stream,t_us\n")
        for number in range(events):
            if len(live) > 500 or (live and chance.random() < 0.5):
                file.write(f"f,{live.pop(chance.randrange(len(live)))},0,0,{number}\n")
            else:
                file.write(f"a,{number},{chance.randrange(1, 4 << 20)},0,{number}\n")
                live.append(number)


def measure(events: int = EVENTS) -> dict[str, Any] | None:
    """Return what the page of a trace takes; None where there is no Chromium."""
    program = browser()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, page = Path(folder) / "trace.csv", Path(folder) / "page.html"
        trace(source, events)
        begin = time.monotonic()
        html, summary = build(source)
        made = time.monotonic() - begin
        page.write_text(html + DRAWN, encoding="utf-8")
        chromium = Chromium(program, str(Path(folder) / "profile"))
        times = [chromium.milliseconds(page) for _ in range(REPEATS + 1)][1:]  # the first one starts its processes
        chromium.close()
        return {
            "browser": chromium.version,
            "events": summary["events"],
            "page_bytes": page.stat().st_size,
            "seconds_to_make": round(made, 2),
            "milliseconds": round(statistics.median(times)),
            "milliseconds_least": round(min(times)),
            "milliseconds_most": round(max(times)),
        }


def main() -> int:
    """Print what was measured."""
    measured = measure(*map(int, sys.argv[1:2]))
    if measured is None:
        print(f"none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        return 1
    print(json.dumps(measured, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
