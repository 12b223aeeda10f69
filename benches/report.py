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
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import report_page

Row = dict[str, Any]

PAGE_HEADING = "## The page of a recording"

PAGE_TEXT = (
    PAGE_HEADING
    + """

`flagstone report` of a trace of 100,000 allocations and frees, opened from a file in a headless browser: milliseconds
from the beginning of the navigation to the frame after the first whole drawing, median of 5 (`benches/report_page.py`).

{page}
"""
)

HISTORY_HEADING = "## Recording a history"

HISTORY_TEXT = (
    HISTORY_HEADING
    + """

A pair of alloc and free of 4 KiB in a compiled loop, and the call of a Python function that does nothing, nanoseconds
(`flagstone bench history`).

{history}
"""
)

SOAK_HEADING = "## Soak"

SOAK_TEXT = (
    SOAK_HEADING
    + """

Threads that come and go, streams, frees by other threads, shortage, failing driver calls and captures, all at once on a
simulated device under its checker (`make soak`, `benches/soak.rs`). Operations are allocations and frees.

{soak}
"""
)

TORCH = Path(".venv-torch")
"""The virtual environment of `make simcuda`."""

NOT_MEASURED = "Not measured: `make simcuda` was not run."

TEXT = """# Benchmarks

Written by `make bench` on {today}; not edited by hand. Times are medians of 5, taken in compiled loops over the
exported C functions, warm, with no Python in them. On a simulated device the device's work is not real.

Machine: {processor}, {cores} cores, {system}.
flagstone {version}, {profile} build, Python {python}, device: {backend}.

## A pair of alloc and free

{latency}

Instructions are those within the two C functions. Two threads do {threads} times the pairs of one, the median over the
sizes. A cudaMalloc and a cudaFree of the demo's recording take {driver} by the price list (`docs/simulation.md`),
{times:,} times the pair here.

## A pair behind free blocks

The time should not depend on how many free blocks there are.

{holes}

## Random sizes

RMM's random_allocations: sizes at random up to the given one, freed in random order, on a device of 16 GiB.

{random}

## Under torch

A pair of torch's raw_alloc and raw_delete in a compiled loop, and torch.empty and del in Python (`flagstone bench
torch`, torch on the simulated CUDA): nanoseconds for a pair over all threads, medians of 5 rounds in which each
allocator has its turn, and the ratio to torch's own allocator with its spread. torch-plain passes each call on to
cudaMalloc and cudaFree; it and torch-async measure the simulation more than CUDA.

{under_torch}

{under_torch_losses}

## Fragmentation

Traces of `benches/traces/generate.py` on torch's allocators and on flagstone under torch (`flagstone bench
fragmentation`, torch on the simulated CUDA), 3 passes: peak active over peak held bytes, with a lag of 5 ms and, in
parentheses, of 0; milliseconds in the driver in the first pass by the price list; and memory calls of flagstone in the
first, second and third pass. How torch-async's pool places blocks is the simulation's own, and simpler than NVIDIA's.

{fragmentation}

{fragmentation_losses}

## A data loader

1,000 batches of 0.25 to 4.25 MiB from 8 workers to the device through pinned memory, with copies that are seen to be
done three batches late (`flagstone bench dataloader`, torch on the simulated CUDA). Rates are medians of 3 after the
first 50 batches; processor time is the process's own, without its workers; pinned bytes are those of the largest of 4
runs, and in use is what batches have and what copies need that were not seen to be done. A `Prefetcher` has 8 pieces of
2 MiB, in use as long as it runs. torch counts the bytes that it rounds up to powers of two as in use.

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


def under_torch(*arguments: str) -> list[Row]:
    """Return the rows of a command that needs torch and the simulated CUDA; none where `make simcuda` was not run."""
    if not (TORCH / "simcuda").is_dir():
        return []
    environment = {"SIMCUDA_FOLDER": str(TORCH / "simcuda"), "PYTHONPATH": "python"}
    rows: list[Row] = flagstone(*arguments, python=TORCH / "bin/python", **environment)["rows"]
    return rows


def pairs_under_torch() -> dict[str, str]:
    """Return the table of `flagstone bench torch`, and where flagstone loses."""
    rows = under_torch("bench", "torch")
    if not rows:
        return {"under_torch": NOT_MEASURED, "under_torch_losses": ""}
    lines: dict[str, Row] = {}
    for row in rows:
        line = lines.setdefault(f"{row['case']}, {row['threads']}", {"case": row["case"], "threads": row["threads"]})
        spread = f"{row['ratio']:.2f}: {row['ratio_least']:.2f} to {row['ratio_most']:.2f}"
        line[row["allocator"]] = f"{row['ns_per_pair']:,.0f} ({spread})"
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    lost = [
        f"{row['case']} with {row['threads']} threads (ratio {row['ratio']})"
        for row in rows
        if row["allocator"] == "flagstone" and row["ratio"] > 1
    ]
    columns = {"case": "pair", "threads": "threads", **{name: name for name in names}}
    return {"under_torch": table(list(lines.values()), columns), "under_torch_losses": losses("torch's own", lost)}


def fragmentation() -> dict[str, str]:
    """Return the table of `flagstone bench fragmentation` on generated traces, and where flagstone loses."""
    with tempfile.TemporaryDirectory() as folder:
        generate = [sys.executable, str(Path(__file__).with_name("traces") / "generate.py"), "all", folder]
        subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
        lagged, prompt = (under_torch("bench", "fragmentation", folder, "--lag", lag) for lag in ("5", "0"))
    if not lagged:
        return {"fragmentation": NOT_MEASURED, "fragmentation_losses": ""}
    lines: dict[str, Row] = {}
    lost = []
    for row, without_lag in zip(lagged, prompt, strict=True):
        line, name = lines.setdefault(row["case"], {"trace": row["case"]}), row["allocator"]
        first_ms = row["passes"][0]["driver_time_us"] / 1000
        line[name] = f"{row['utilisation']:.3f} ({without_lag['utilisation']:.3f})"
        line[f"{name} ms"], line[f"{name} bytes"] = first_ms, row["peak_reserved_bytes"]
        if name == "flagstone":
            line["calls"] = ", ".join(f"{cost['memory_calls']:,}" for cost in row["passes"])
    names = list(dict.fromkeys(row["allocator"] for row in lagged))
    for line in lines.values():
        best = min(names, key=lambda name: line[f"{name} bytes"])
        more = line["flagstone bytes"] / line[f"{best} bytes"] - 1
        if more > 0:
            lost.append(f"{line['trace']} holds {100 * more:.1f} % more than {best}")
        if line["flagstone ms"] > line["torch-expandable ms"]:
            lost.append(f"{line['trace']} is longer in the driver than torch-expandable")
    columns = {"trace": "trace", **{name: name for name in names}, **{f"{name} ms": f"ms, {name}" for name in names}}
    columns["calls"] = "memory calls"
    return {
        "fragmentation": table(list(lines.values()), columns),
        "fragmentation_losses": losses("the best of the others", lost),
    }


SOAK = (Path("dist/soak.json"), Path("dist/soak-checked.json"))
"""What `make soak` found: with stamps at the ends of blocks, and with whole blocks compared."""


def soak() -> str:
    """Return what `make soak` found, as a table."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in SOAK if path.exists()]
    if not found:
        return "Not measured: `make soak` was not run."
    kinds = [{True: "whole blocks", False: "ends of blocks"}[one.pop("checked")] for one in found]
    lines = [f"| | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
    lines += [f"| {name.replace('_', ' ')} | {' | '.join(f'{one[name]:,}' for one in found)} |" for name in found[0]]
    return "\n".join(lines)


def history() -> str:
    """Return the table of `flagstone bench history`."""
    columns = {"case": "a history", "ns_per_pair": "ns a pair", "ns_per_python_call": "ns a Python call"}
    return table(flagstone("bench", "history")["rows"], columns)


def page() -> str:
    """Return what `benches/report_page.py` measures, as a table."""
    row = report_page.measure()
    if row is None:
        return "Not measured: there is no Chromium."
    row["mb"] = row["page_bytes"] / 1e6
    return table(
        [row],
        {
            "browser": "browser",
            "events": "events shown",
            "mb": "MB of the page",
            "seconds_to_make": "s to make it",
            "milliseconds": "ms to the drawing",
            "milliseconds_least": "at least",
            "milliseconds_most": "at most",
        },
    )


def write_section(file: Path, heading: str, section: str) -> None:
    """Put a section, which begins with its heading, in the place of what was there before, or at the end."""
    text = file.read_text(encoding="utf-8")
    before, found, after = text.partition(heading)
    rest = after.partition("\n## ")
    file.write_text((before if found else text.rstrip() + "\n\n") + section + "".join(rest[1:]), encoding="utf-8")


def losses(rival: str, lost: list[str]) -> str:
    """Say where flagstone is behind."""
    return f"Behind {rival}: {'; '.join(lost) if lost else 'nowhere'}."


def loader() -> str:
    """Return the table of `flagstone bench dataloader`."""
    rows = under_torch("bench", "dataloader")
    if not rows:
        return NOT_MEASURED
    for row in rows:
        row["held_mib"] = row["peak_pinned_bytes"] / (1 << 20)
        row["in_use_mib"] = row["peak_pinned_in_use_bytes"] / (1 << 20)
    return table(
        rows,
        {
            "case": "way",
            "batches_per_second": "batches a second",
            "ratio": "to torch's",
            "cpu_ms_per_batch": "ms of processor a batch",
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
    """Measure, and write the file that the command line names; with an option only one section of it."""
    sections = {
        "--soak": (SOAK_HEADING, lambda: SOAK_TEXT.format(soak=soak())),
        "--history": (HISTORY_HEADING, lambda: HISTORY_TEXT.format(history=history())),
        "--page": (PAGE_HEADING, lambda: PAGE_TEXT.format(page=page())),
    }
    if sys.argv[1] in sections:
        heading, section = sections[sys.argv[1]]
        write_section(Path(sys.argv[2]), heading, section())
        return 0
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
    text = TEXT.format(
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
        **pairs_under_torch(),
        **fragmentation(),
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
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
    for heading, section in sections.values():
        write_section(Path(sys.argv[1]), heading, section())
    return 0


if __name__ == "__main__":
    sys.exit(main())
