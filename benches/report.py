#!/usr/bin/env python3
"""Write BENCHMARKS.md: what `flagstone bench` and `flagstone demo` measure on this machine, with ratios.

Example:
    make bench
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

Row = dict[str, Any]

TORCH = Path(".venv-torch")
"""The virtual environment of `make simcuda`."""

TEXT = """# Benchmarks

Written by `make bench` on {today}; not edited by hand. Times are medians of 5, taken in compiled loops over the
exported C functions, warm, with no Python in them. On a simulated device the device's work is not real.

Machine: {processor}, {cores} cores, {system}.
flagstone {version}, {profile} build, Python {python}, device: {backend}.

## A pair of alloc and free

{latency}

Two threads do {threads} times the pairs of one, the median over the sizes. A cudaMalloc and a cudaFree of the demo's
recording take {driver} by the price list (`docs/simulation.md`), {times:,} times the pair here.

## A pair behind free blocks

The time should not depend on how many free blocks there are.

{holes}

## Random sizes

RMM's random_allocations: sizes at random up to the given one, freed in random order, on a device of 16 GiB.

{random}

## A data loader

1,000 batches of 0.25 to 4.25 MiB from 8 workers to the device through pinned memory, with copies that are seen to be
done three batches late (`flagstone bench dataloader`, torch on the simulated CUDA). Rates are medians of 3 after the
first 50 batches; pinned bytes are those of the largest of 4 runs, and in use is what batches have or copies still need.
torch counts the bytes that it rounds up to powers of two as in use.

{loader}

## A recorded model

What four allocators make of a GPT in training with sequences of varying length (`flagstone demo`), simulated.
Utilisation is bytes in use at the peak over bytes held from the driver at the peak.

{demo}
"""


def flagstone(*arguments: str, python: Path = Path(sys.executable), **environment: str) -> dict[str, Any]:
    """Run the command line, with more in its environment, and return its report."""
    print(f"flagstone {' '.join(arguments)}", file=sys.stderr)
    command = [str(python), "-m", "flagstone", *arguments, "--json"]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **environment})
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def loader() -> str:
    """Return the table of `flagstone bench dataloader`, which needs what `make simcuda` builds."""
    if not (TORCH / "simcuda").is_dir():
        return "Not measured: `make simcuda` was not run."
    environment = {"SIMCUDA_FOLDER": str(TORCH / "simcuda"), "PYTHONPATH": "python"}
    rows = flagstone("bench", "dataloader", python=TORCH / "bin/python", **environment)["rows"]
    for row in rows:
        row["held_mib"] = row["peak_pinned_bytes"] / (1 << 20)
        row["in_use_mib"] = row["peak_pinned_in_use_bytes"] / (1 << 20)
    return table(
        rows,
        {
            "case": "way",
            "batches_per_second": "batches a second",
            "ratio": "to torch's",
            "held_mib": "pinned MiB held",
            "in_use_mib": "in use",
            "pinned_ratio": "held to in use",
            "pinned_calls": "calls to pin and unpin",
            "pinned_calls_when_warm": "after 50 batches",
            "wrong_batches": "wrong batches",
        },
    )


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


def median(values: list[float]) -> float:
    """Return the middle value."""
    return sorted(values)[len(values) // 2]


def main() -> int:
    """Measure, and write the page that the command line names."""
    latency, holes, random = (flagstone("bench", name) for name in ("latency", "holes", "rmm-random"))
    demo = flagstone("demo")["rows"]
    one, two = ([row for row in latency["rows"] if row["threads"] == threads] for threads in (1, 2))
    pair_us = median([row["ns_per_pair"] for row in one]) / 1000
    driver_us = demo[0]["driver_time_us"] / demo[0]["allocations"]
    for row in demo:
        row["driver_calls"] = sum(row["driver_calls"].values())
        row["driver_ms"] = row["driver_time_us"] / 1000
        row["reserved_mib"] = row["peak_reserved_bytes"] >> 20
    machine = latency["machine"]
    page = TEXT.format(
        today=date.today().isoformat(),
        **{key: machine[key] for key in ("processor", "cores", "system", "python", "backend")},
        **{key: machine["flagstone"][key] for key in ("version", "profile")},
        latency=table(
            latency["rows"],
            {
                "case": "size",
                "threads": "threads",
                "ns_per_pair": "ns a pair",
                "pairs_per_second": "pairs a second",
                "instructions_per_pair": "instructions a pair",
            },
        ),
        threads=cell(median([b["pairs_per_second"] / a["pairs_per_second"] for a, b in zip(one, two, strict=True)])),
        driver=f"{driver_us:.1f} µs",
        times=round(driver_us / pair_us),
        holes=table(holes["rows"], {"case": "free blocks", "ns_per_pair": "ns a pair", "ratio": "to none"}),
        random=table(random["rows"], {"case": "count/largest", "ns_per_step": "ns a step", "failures": "failures"}),
        loader=loader(),
        demo=table(
            demo,
            {
                "allocator": "allocator",
                "driver_calls": "driver calls",
                "driver_ms": "ms in the driver",
                "reserved_mib": "MiB held at most",
                "utilisation": "utilisation",
            },
        ),
    )
    Path(sys.argv[1]).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
