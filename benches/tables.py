"""Tables of Markdown, and the commands whose rows are in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]

NATIVE = "torch-native"
"""torch's own allocator, in rows."""

TORCH = Path(".venv-torch")
"""The virtual environment of `make simcuda`."""


def flagstone(*arguments: str, python: Path = Path(sys.executable), **environment: str) -> dict[str, Any]:
    """Run the command line, with more in its environment, and return its report."""
    print(f"flagstone {' '.join(arguments)}", file=sys.stderr)
    command = [str(python), "-m", "flagstone", *arguments, "--json"]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **environment})
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def under_torch(*arguments: str) -> list[Row]:
    """Return the rows of a command that needs torch and the simulated CUDA.

    `LookupError` where `make simcuda` was not run.
    """
    if not (TORCH / "simcuda").is_dir():
        raise LookupError("`make simcuda` was not run")
    environment = {"SIMCUDA_FOLDER": str(TORCH / "simcuda"), "PYTHONPATH": "python"}
    rows: list[Row] = flagstone(*arguments, python=TORCH / "bin/python", **environment)["rows"]
    return rows


def table(rows: list[Row], columns: dict[str, str]) -> str:
    """Return rows as a table: `columns` gives each key's heading."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(row.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """Return a figure as it is read: thousands apart, no more digits than it deserves."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")


def spread(row: Row, name: str) -> str:
    """Return a median of ratios with what half of them lie between."""
    if name not in row:
        return ""
    return f"{row[name]:.2f}: {row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}"


def losses(rival: str, lost: list[str]) -> str:
    """Say where flagstone is behind."""
    return f"Behind {rival}: {'; '.join(lost) if lost else 'nowhere'}."
