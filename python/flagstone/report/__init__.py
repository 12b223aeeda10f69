"""A recorded run as one HTML page that needs nothing else: `flagstone report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from os import PathLike
from typing import Any

from flagstone import _core
from flagstone.report._load import Recording, load

__all__ = ["build"]

SETTINGS = ("", "handle:2MiB", "dependencies:growth", "growth:64MiB", "source:slabs")
"""What of flagstone's own a recording is replayed with: the settings in force, and changes to them. The first two hold
less for more driver calls or for waits between streams, the others take fewer calls."""

MODELS = ("torch-expandable", "torch-native")
"""Models of other allocators."""


def build(
    path: str | PathLike[str],
    *,
    device: int | None = None,
    settings: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[str, dict[str, Any]]:
    """Return the page for a recording, and its summary.

    `path` is a file of any format that `flagstone replay` reads. A snapshot is shown as it was; of a trace, which says
    nothing about addresses, what flagstone makes of it. Of a snapshot of several devices it is the history of `device`,
    or without one the longest. `settings` are further ones to replay with, as "limit:2GiB".
    `TraceError` for a file that cannot be read, `ConfigError` for settings that are not valid.
    """
    progress("reading")
    trace = _core.Trace(path, device)
    recording = load(path, trace)
    comparison = _compare(trace, (*SETTINGS, *settings), progress)
    live, held = recording.peaks()
    summary = {
        "trace": trace.name,
        "format": trace.format,
        "placed_by": recording.placed_by,
        "lag_ms": trace.lag_ms,
        "events": len(recording.rows),
        "peak_live_bytes": live,
        "peak_reserved_bytes": held,
        "settings": comparison,
    }
    return _page(recording, summary), summary


def _compare(trace: _core.Trace, settings: tuple[str, ...], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Replay with each setting and model."""
    rows = []
    for setting in settings:
        progress(f"replay with {setting or 'the settings in force'}")
        name = f"flagstone, {setting}" if setting else "flagstone"
        rows.append(_row(name, _core.replay(trace, config=setting)))
    for model in MODELS:
        progress(f"model of {model}")
        rows.append(_row(model, _core.model(trace, model)))
    return rows


def _row(name: str, report: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "peak_reserved_bytes": report["peak_reserved_bytes"],
        "utilisation": report["utilisation"],
        "driver_calls": sum(report["driver_calls"].values()),
        "driver_time_us": report["driver_time_us"],
        "errors": report["errors"],
    }


def _page(recording: Recording, summary: dict[str, Any]) -> str:
    """Put styles, program and data into the page."""
    data = {**summary, **recording.columns()}
    # "</script>" within a string would end the script.
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = files(__name__)
    parts = {name: page.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js", "page.html")}
    # The data last: nothing is looked for in it.
    html = parts["page.html"].replace("/* page.css */", parts["page.css"]).replace("/* page.js */", parts["page.js"])
    before, after = html.split("/* data */")
    return before + encoded + after
