"""What the sections of BENCHMARKS.md measure: each function runs a command, and returns what a section's text names."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import report_page
from tables import NATIVE, Row, cell, flagstone, losses, spread, table, under_torch

TRACES = Path(__file__).with_name("traces")
SOAK = (Path("dist/soak.json"), Path("dist/soak-checked.json"))
"""What `make soak` found: with stamps at the ends of blocks, and with whole blocks compared."""

Options = argparse.Namespace
"""The command line: `traces` and `lifetimes` are files that were given, or empty."""

Found = dict[str, object]
"""What the text of a section names, and under `short` what a sentence can say of it."""


def latency(_: Options) -> Found:
    """Pairs by size, and what the driver's own take."""
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


def threads(_: Options) -> Found:
    """Pairs in threads, and a table of blocks that threads share."""
    rows = under_torch("bench", "threads")
    pairs = {row["threads"]: row for row in rows if row["allocator"] == "flagstone" and row["case"] == "4.0 KiB"}
    short = (
        f"A pair of alloc and free of 4 KiB takes {pairs[1]['ns_per_pair']:.1f} ns in one thread, "
        f"{100 * pairs[1]['ratio']:.1f} % of the time of torch's own allocator. "
        f"Two threads do {pairs[2]['scaling']:.2f} times the pairs of one, "
        f"and eight, on {os.cpu_count()} cores, {pairs[8]['to_two_threads']:.2f} times those of two."
    )
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
    return {"rows": table(rows, columns), "short": short}


def handed_over(_: Options) -> Found:
    """Blocks that another thread frees."""
    rows = under_torch("bench", "producer-consumer")
    ours, theirs = (next(row for row in rows if row["allocator"] == name) for name in ("flagstone", NATIVE))
    short = (
        f"One thread allocates and another frees {ours['blocks_per_second'] / 1e6:.1f} million blocks a second, "
        f"of torch's own allocator {theirs['blocks_per_second'] / 1e6:.2f} million."
    )
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
    return {"rows": table(rows, columns), "short": short}


def holes(_: Options) -> Found:
    """A pair behind free blocks."""
    columns = {"case": "free blocks", "ns_per_pair": "ns a pair", "ratio": "to none"}
    return {"rows": table(flagstone("bench", "holes")["rows"], columns)}


def random_sizes(_: Options) -> Found:
    """RMM's random_allocations."""
    columns = {"case": "count/largest", "ns_per_step": "ns a step", "failures": "failures"}
    return {"rows": table(flagstone("bench", "rmm-random")["rows"], columns)}


def pairs_under_torch(_: Options) -> Found:
    """Pairs and tensors under torch, by allocator, and where flagstone loses."""
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
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["allocator"] == "flagstone":
            ratios.setdefault(row["case"].partition(",")[0], []).append(row["ratio"])
    parts = [f"{name} take {min(found):.2f} to {max(found):.2f}" for name, found in ratios.items()]
    short = f"Under torch {', '.join(parts)} of the time with torch's own allocator, in 1 to 4 threads."
    columns = {"case": "pair", "threads": "threads", **{name: name for name in names}}
    return {"rows": table(list(lines.values()), columns), "losses": losses("torch's own", lost), "short": short}


def generated(_: Options) -> Found:
    """The traces of generate.py, replayed under torch."""
    with tempfile.TemporaryDirectory() as folder:
        generate = [sys.executable, str(TRACES / "generate.py"), "all", folder]
        subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
        return _fragmentation([folder], "generated")


def given(options: Options) -> Found:
    """Traces of the command line, replayed under torch."""
    return _fragmentation(options.traces, "other")


def _fragmentation(traces: list[str], kind: str) -> Found:
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
    spans = []
    for name in reversed(names):
        found = [row["utilisation"] for row in lagged if row["allocator"] == name]
        spans.append(f"{name} {min(found):.2f} to {max(found):.2f}")
    short = f"Bytes in use over bytes held, at the peak of {len(lines)} {kind} traces: {', '.join(spans)}."
    rows = table(list(lines.values()), columns)
    return {"rows": rows, "losses": losses("the best of the others", lost), "short": short}


def packing(options: Options) -> Found:
    """Lifetimes of the command line, beside their optimum."""
    command = [sys.executable, str(TRACES / "packing.py"), *options.lifetimes]
    return {"rows": subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout}


def loader(_: Options) -> Found:
    """Batches through pinned memory, by whose it is."""
    rows = under_torch("bench", "dataloader")
    for row in rows:
        row["held_mib"] = row["peak_pinned_bytes"] / (1 << 20)
        row["in_use_mib"] = row["peak_pinned_in_use_bytes"] / (1 << 20)
        row["to_torch"] = spread(row, "ratio")
    theirs, *ours = rows
    held, rates = ([row[key] for row in ours] for key in ("held_mib", "ratio"))
    short = (
        f"A data loader holds {min(held):.0f} to {max(held):.0f} MiB of pinned memory, with torch's own "
        f"{theirs['held_mib']:.0f} MiB, and brings {min(rates):.2f} to {max(rates):.2f} times its batches a second."
    )
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
    return {"rows": table(rows, columns), "short": short}


def demo(_: Options) -> Found:
    """The recorded model, by allocator."""
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


def history(_: Options) -> Found:
    """What a recording costs."""
    columns = {"case": "a history", "ns_per_pair": "ns a pair", "ns_per_python_call": "ns a Python call"}
    return {"rows": table(flagstone("bench", "history")["rows"], columns)}


def page(_: Options) -> Found:
    """How long a page of a recording takes to be drawn."""
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


def soak(_: Options) -> Found:
    """What `make soak` found."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in SOAK if path.exists()]
    if not found:
        raise LookupError("`make soak` was not run")
    kinds = [{True: "whole blocks", False: "ends of blocks"}[one.pop("checked")] for one in found]
    lines = [f"| | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
    lines += [f"| {name.replace('_', ' ')} | {' | '.join(cell(one[name]) for one in found)} |" for name in found[0]]
    short = (
        f"Threads, streams, shortage, failing calls and captures at once: {found[0]['operations']:,} allocations and "
        f"frees, {found[0]['faults_injected']:,} faults injected, {sum(one['violations'] for one in found)} violations."
    )
    return {"rows": "\n".join(lines), "short": short}
