"""The results of a check: a JSON file and a table for people, both whole at any time, whatever ends the check."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WAITING, RUNNING, PASSED, FAILED, LATE, SKIPPED = "waiting", "running", "passed", "failed", "out of time", "skipped"


@dataclass
class Outcome:
    """What is known of one step."""

    name: str
    shows: str
    """What a pass shows, in words."""
    limit_s: float
    state: str = WAITING
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    """What the step said, by name."""
    output: str = ""
    """The end of what it printed, where it did not pass."""


class Results:
    """The outcomes of all steps, written anew whenever one changes."""

    def __init__(self, folder: Path, device: str, outcomes: list[Outcome], **about: Any) -> None:
        """Write the files for the first time, with every step waiting."""
        folder.mkdir(parents=True, exist_ok=True)
        slug = "-".join("".join(letter if letter.isalnum() else " " for letter in device.lower()).split())
        self.path = folder / f"{time.strftime('%Y-%m-%d-%H%M', time.gmtime())}-{slug}.json"
        self.about = {"device": device, "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **about}
        self.outcomes = outcomes
        self.write()

    def write(self) -> None:
        """Write both files. Each replaces the one before it at once, so that none is ever half written."""
        whole = {**self.about, "steps": [asdict(outcome) for outcome in self.outcomes]}
        for path, text in (
            (self.path, json.dumps(whole, indent=1) + "\n"),
            (self.path.with_suffix(".txt"), self.table()),
        ):
            new = path.with_name(path.name + ".new")
            new.write_text(text)
            os.replace(new, path)

    def table(self) -> str:
        """Return the results for people."""
        width = max(len(outcome.name) for outcome in self.outcomes)
        lines = [*(f"{name}: {value}" for name, value in self.about.items()), ""]
        for outcome in self.outcomes:
            lines.append(f"{outcome.name:{width}}  {outcome.state:11} {outcome.seconds:6.1f} s  {outcome.shows}")
            lines += [f"{'':{width}}    {line}" for line in _lines(outcome.figures)]
            lines += [f"{'':{width}}    | {line}" for line in outcome.output.splitlines()]
        return "\n".join(lines) + "\n"


def _lines(figures: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the figures, one a line, those within others with the names of both."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += _lines(value, f"{prefix}{name}: ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{prefix}{name}:", *_columns(value)]
        else:
            lines.append(f"{prefix}{name}: {value}")
    return lines


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows with a line of their names above; what is a list in a row is in the JSON only."""
    names = list(dict.fromkeys(name for row in rows for name, cell in row.items() if not isinstance(cell, list)))
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
