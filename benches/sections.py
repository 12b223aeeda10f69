"""The sections of BENCHMARKS.md: what each says, and the commands that measure it."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import report_page
from tables import Row, cell, flagstone, losses, spread, table, under_torch

TRACES = Path(__file__).with_name("traces")
SOAK = (Path("dist/soak.json"), Path("dist/soak-checked.json"))
"""What `make soak` found: with stamps at the ends of blocks, and with whole blocks compared."""

Options = argparse.Namespace
"""The command line: `traces` and `lifetimes` are files that were given, or empty."""


class Section(NamedTuple):
    """One section: `measure` gives what the braces in `text` name."""

    heading: str
    text: str
    measure: Callable[[Options], dict[str, object]]


def _latency(_: Options) -> dict[str, object]:
    rows = flagstone("bench", "latency")["rows"]
    demo = flagstone("demo")["rows"][0]
    pair_us = statistics.median(row["ns_per_pair"] for row in rows if row["threads"] == 1) / 1000
    driver_us = demo["driver_time_us"] / demo["allocations"]
    columns = {
        "case": "size",
        "threads": "threads",
        "ns_per_pair": "ns a pair",
        "pairs_per_second": "pairs a second",
        "instructions_per_pair": "instructions a pair",
    }
    return {"rows": table(rows, columns), "driver": f"{driver_us:.1f} µs", "times": f"{driver_us / pair_us:,.0f}"}


def _threads(_: Options) -> dict[str, object]:
    rows = under_torch("bench", "threads")
    for row in rows:
        for name in ("scaling", "to_two_threads"):
            row[name] = spread(row, name)
        row["to_torch"] = f"{row['ratio']:.3f}" if row["allocator"] == "flagstone" else ""
    columns = {
        "case": "blocks",
        "allocator": "allocator",
        "threads": "threads",
        "ns_per_pair": "ns a pair",
        "scaling": "pairs a second, to one thread's",
        "to_two_threads": "to two threads'",
        "to_torch": "time to torch-native's",
        "driver_takes": "takes from the driver",
    }
    return {"rows": table(rows, columns)}


def _handed_over(_: Options) -> dict[str, object]:
    rows = under_torch("bench", "producer-consumer")
    for row in rows:
        if "peak_reserved_bytes" in row:
            row["held"] = f"{row['peak_reserved_bytes_first']:,}, {row['peak_reserved_bytes']:,}"
    columns = {
        "allocator": "allocator",
        "ns_per_block": "ns a block",
        "blocks_per_second": "blocks a second",
        "blocks": "blocks",
        "held": "bytes held at most in the first tenth, in all",
        "driver_takes": "takes from the driver after the first tenth",
    }
    return {"rows": table(rows, columns)}


def _holes(_: Options) -> dict[str, object]:
    columns = {"case": "free blocks", "ns_per_pair": "ns a pair", "ratio": "to none"}
    return {"rows": table(flagstone("bench", "holes")["rows"], columns)}


def _random_sizes(_: Options) -> dict[str, object]:
    columns = {"case": "count/largest", "ns_per_step": "ns a step", "failures": "failures"}
    return {"rows": table(flagstone("bench", "rmm-random")["rows"], columns)}


def _pairs_under_torch(_: Options) -> dict[str, object]:
    rows = under_torch("bench", "torch")
    lines: dict[str, Row] = {}
    for row in rows:
        line = lines.setdefault(f"{row['case']}, {row['threads']}", {"case": row["case"], "threads": row["threads"]})
        ratio = f"{row['ratio']:.2f}: {row['ratio_least']:.2f} to {row['ratio_most']:.2f}"
        line[row["allocator"]] = f"{row['ns_per_pair']:,.0f} ({ratio})"
    lost = [
        f"{row['case']} with {row['threads']} threads (ratio {row['ratio']})"
        for row in rows
        if row["allocator"] == "flagstone" and row["ratio"] > 1
    ]
    names = dict.fromkeys(row["allocator"] for row in rows)
    columns = {"case": "pair", "threads": "threads", **{name: name for name in names}}
    return {"rows": table(list(lines.values()), columns), "losses": losses("torch's own", lost)}


def _generated(_: Options) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        generate = [sys.executable, str(TRACES / "generate.py"), "all", folder]
        subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
        return _fragmentation([folder])


def _given(options: Options) -> dict[str, object]:
    return _fragmentation(options.traces)


def _fragmentation(traces: list[str]) -> dict[str, object]:
    """Replay traces with a lag and without: a table with a line for each, and where flagstone loses."""
    lagged, prompt = (under_torch("bench", "fragmentation", *traces, "--lag", lag) for lag in ("5", "0"))
    lines: dict[str, Row] = {}
    for row, without_lag in zip(lagged, prompt, strict=True):
        line, name = lines.setdefault(row["case"], {"trace": row["case"]}), row["allocator"]
        line[name] = f"{row['utilisation']:.3f} ({without_lag['utilisation']:.3f})"
        line[f"{name} ms"] = row["passes"][0]["driver_time_us"] / 1000
        line[f"{name} bytes"] = row["peak_reserved_bytes"]
        if name == "flagstone":
            line["calls"] = ", ".join(f"{cost['memory_calls']:,}" for cost in row["passes"])
    names = list(dict.fromkeys(row["allocator"] for row in lagged))
    lost = []
    for line in lines.values():
        best = min(names, key=lambda name: line[f"{name} bytes"])
        more = line["flagstone bytes"] / line[f"{best} bytes"] - 1
        if more > 0:
            lost.append(f"{line['trace']} holds {100 * more:.1f} % more than {best}")
        if line["flagstone ms"] > line["torch-expandable ms"]:
            lost.append(f"{line['trace']} is longer in the driver than torch-expandable")
    columns = {"trace": "trace", **{name: name for name in names}, **{f"{name} ms": f"ms, {name}" for name in names}}
    columns["calls"] = "memory calls"
    return {"rows": table(list(lines.values()), columns), "losses": losses("the best of the others", lost)}


def _packing(options: Options) -> dict[str, object]:
    command = [sys.executable, str(TRACES / "packing.py"), *options.lifetimes]
    return {"rows": subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout}


def _loader(_: Options) -> dict[str, object]:
    rows = under_torch("bench", "dataloader")
    for row in rows:
        row["held_mib"] = row["peak_pinned_bytes"] / (1 << 20)
        row["in_use_mib"] = row["peak_pinned_in_use_bytes"] / (1 << 20)
        row["to_torch"] = spread(row, "ratio")
    columns = {
        "case": "way",
        "batches_per_second": "batches a second",
        "to_torch": "to torch's",
        "cpu_ms_per_batch": "ms of processor a batch",
        "held_mib": "pinned MiB held",
        "in_use_mib": "in use",
        "pinned_ratio": "held to in use",
        "pinned_calls": "calls to pin and unpin",
        "pinned_calls_when_warm": "after 50 batches",
        "wrong_batches": "wrong batches",
    }
    return {"rows": table(rows, columns)}


def _demo(_: Options) -> dict[str, object]:
    rows = flagstone("demo")["rows"]
    for row in rows:
        row["driver_calls"] = sum(row["driver_calls"].values())
        row["driver_ms"] = row["driver_time_us"] / 1000
        row["reserved_mib"] = row["peak_reserved_bytes"] >> 20
    columns = {
        "allocator": "allocator",
        "driver_calls": "driver calls",
        "driver_ms": "ms in the driver",
        "reserved_mib": "MiB held at most",
        "utilisation": "utilisation",
    }
    return {"rows": table(rows, columns)}


def _history(_: Options) -> dict[str, object]:
    columns = {"case": "a history", "ns_per_pair": "ns a pair", "ns_per_python_call": "ns a Python call"}
    return {"rows": table(flagstone("bench", "history")["rows"], columns)}


def _page(_: Options) -> dict[str, object]:
    row: dict[str, Any] | None = report_page.measure()
    if row is None:
        raise LookupError("there is no Chromium")
    row["mb"] = row["page_bytes"] / 1e6
    columns = {
        "browser": "browser",
        "events": "events shown",
        "mb": "MB of the page",
        "seconds_to_make": "s to make it",
        "milliseconds": "ms to the drawing",
        "milliseconds_least": "at least",
        "milliseconds_most": "at most",
    }
    return {"rows": table([row], columns)}


def _soak(_: Options) -> dict[str, object]:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in SOAK if path.exists()]
    if not found:
        raise LookupError("`make soak` was not run")
    kinds = [{True: "whole blocks", False: "ends of blocks"}[one.pop("checked")] for one in found]
    lines = [f"| | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
    lines += [f"| {name.replace('_', ' ')} | {' | '.join(cell(one[name]) for one in found)} |" for name in found[0]]
    return {"rows": "\n".join(lines)}


REPLAYED = """
on torch's allocators and on flagstone under torch (`flagstone bench fragmentation`, torch on the simulated CUDA), 3
passes: peak active over peak held bytes, with a lag of 5 ms and, in parentheses, of 0; milliseconds in the driver in
the first pass by the price list; and memory calls of flagstone in the first, second and third pass. How torch-async's
pool places blocks is the simulation's own, and simpler than NVIDIA's.

{rows}

{losses}
"""

SECTIONS = {
    "latency": Section(
        "## A pair of alloc and free",
        """
Of a size, again and again (`flagstone bench latency`). Instructions are those within the two C functions.

{rows}

A cudaMalloc and a cudaFree of the demo's recording take {driver} by the price list (`docs/simulation.md`), {times}
times the pair here.
""",
        _latency,
    ),
    "threads": Section(
        "## Threads",
        """
Pairs in threads that share nothing but the pool, and blocks that 4 threads put into and take out of one table, whoever
allocated them (`flagstone bench threads`, torch on the simulated CUDA). The allocator `none` is the machine: memory of
the thread's own, where nothing is shared. Ratios are medians over 21 short rounds in which each has its turn; half of
them lie between the two behind the colon.

{rows}
""",
        _threads,
    ),
    "handed-over": Section(
        "## Blocks that another thread frees",
        """
One thread allocates blocks of 4 KiB, and another frees them (`flagstone bench producer-consumer`, torch on the
simulated CUDA). The allocator `none` is the handing over alone.

{rows}
""",
        _handed_over,
    ),
    "holes": Section(
        "## A pair behind free blocks",
        """
The time should not depend on how many free blocks there are (`flagstone bench holes`).

{rows}
""",
        _holes,
    ),
    "random": Section(
        "## Random sizes",
        """
RMM's random_allocations: sizes at random up to the given one, freed in random order, on a device of 16 GiB (`flagstone
bench rmm-random`).

{rows}
""",
        _random_sizes,
    ),
    "torch": Section(
        "## Under torch",
        """
A pair of torch's raw_alloc and raw_delete in a compiled loop, and torch.empty and del in Python (`flagstone bench
torch`, torch on the simulated CUDA): nanoseconds for a pair over all threads, medians of 5 rounds in which each
allocator has its turn, and the ratio to torch's own allocator with its spread. torch-plain passes each call on to
cudaMalloc and cudaFree; it and torch-async measure the simulation more than CUDA.

{rows}

{losses}
""",
        _pairs_under_torch,
    ),
    "generated": Section("## Fragmentation", "\nTraces of `benches/traces/generate.py`" + REPLAYED, _generated),
    "given": Section(
        "## Fragmentation, other traces",
        "\nTraces that are not in this repository (`make bench TRACES=FOLDER`)" + REPLAYED,
        _given,
    ),
    "packing": Section(
        "## The known optimum",
        """
Instances whose optimum is known, and which are not in this repository (`make bench LIFETIMES=FILES`; `docs/limits.md`
has those that are made in it). Sizes are scaled so that the most that is live at once is 512 pages of 2 MiB: bytes held
over those, each block placed when it is met (`benches/traces/packing.py`).

{rows}
""",
        _packing,
    ),
    "dataloader": Section(
        "## A data loader",
        """
1,000 batches of 0.25 to 4.25 MiB from 8 workers to the device through pinned memory, with copies that are seen to be
done three batches late (`flagstone bench dataloader`, torch on the simulated CUDA). Rates are medians over short rounds
in which each way has its turn, without the first 50 batches; half of the ratios to torch's rate in the same round lie
between the two behind the colon. Processor time is the process's own, without its workers. Pinned bytes are those of
1,000 batches in one run: in use is what batches have, and what copies need that were not seen to be done. A
`Prefetcher` has 8 pieces of 2 MiB, in use as long as it runs. torch counts the bytes that it rounds up to powers of two
as in use.

{rows}
""",
        _loader,
    ),
    "demo": Section(
        "## A recorded model",
        """
What four allocators make of a GPT in training with sequences of varying length (`flagstone demo`), simulated.
Utilisation is bytes in use at the peak over bytes held from the driver at the peak.

{rows}
""",
        _demo,
    ),
    "history": Section(
        "## Recording a history",
        """
A pair of alloc and free of 4 KiB in a compiled loop, and the call of a Python function that does nothing, nanoseconds
(`flagstone bench history`).

{rows}
""",
        _history,
    ),
    "page": Section(
        "## The page of a recording",
        """
`flagstone report` of a trace of 100,000 allocations and frees, opened from a file in a headless browser: milliseconds
from the beginning of the navigation to the frame after the first whole drawing, median of 5 (`benches/report_page.py`).

{rows}
""",
        _page,
    ),
    "soak": Section(
        "## Soak",
        """
Threads that come and go, streams, frees by other threads, shortage, failing driver calls and captures, all at once on a
simulated device under its checker (`make soak`, `benches/soak.rs`). Operations are allocations and frees.

{rows}
""",
        _soak,
    ),
}
