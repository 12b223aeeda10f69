"""Writes the prices of the simulated device, src/driver/sim/measured.rs, from the newest results of a real one.

    python prices.py [--results FOLDER] [--output FILE] [--check]

With --check it writes nothing, and fails where the file is not up to date.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
PER_MAPPING = "cuMemUnmap"
"""Its price is for each mapping that a call takes away; all others are for a call and by the MiB."""

HEAD = """\
//! Prices measured on a real device. `tests/gpu/prices.py` writes this file; do not edit it.

use super::{Call, Price};

/// The device, the day and the file of results; none where the check has not been run on a device yet.
pub(super) const SOURCE: Option<&str> = %s;

/// The price of each function that was measured.
"""


def newest(folder: Path) -> tuple[Path, dict, list[dict]] | None:
    """Return the newest results of a real device that have prices: the file, its content and the rows of prices."""
    for file in sorted(folder.glob("*.json"), reverse=True):
        results = json.loads(file.read_text())
        steps = {step["name"]: step for step in results["steps"]}
        rows = steps.get("prices", {}).get("figures", {}).get("driver")
        if rows and not results["rehearsal"]:
            return file, results, rows
    return None


def price(call: str, rows: list[dict]) -> tuple[int, int]:
    """Return nanoseconds for a call, and for each MiB, of the rows of one function."""
    rows = sorted(rows, key=lambda row: (row["bytes"], row["mappings"]))
    least, most = rows[0], rows[-1]
    if call == PER_MAPPING:
        return round(most["ns_per_call"] / most["mappings"]), 0
    mib = (most["bytes"] - least["bytes"]) / MIB
    slope = max((most["ns_per_call"] - least["ns_per_call"]) / mib, 0) if mib else 0
    return max(round(least["ns_per_call"] - slope * least["bytes"] / MIB), 0), round(slope)


def source_text(folder: Path) -> str:
    """Return what measured.rs has to be."""
    found = newest(folder)
    if found is None:
        return HEAD % "None" + "pub(super) const PRICES: &[(Call, Price)] = &[];\n"
    file, results, rows = found
    source = f"{results['device']}, {results['began'][:10]} (tests/gpu/results/{file.name})"
    lines = ["#[rustfmt::skip] // a line for each\n", "pub(super) const PRICES: &[(Call, Price)] = &[\n"]
    for call in dict.fromkeys(row["call"] for row in rows):
        base, slope = price(call, [row for row in rows if row["call"] == call])
        name = call.removeprefix("cu")
        lines.append(f"    (Call::{name}, Price {{ base_ns: {base:_}, per_mib_ns: {slope:_} }}),\n")
    return HEAD % f'Some(\n    "{source}",\n)' + "".join(lines) + "];\n"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "src/driver/sim/measured.rs")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = source_text(options.results)
    if not options.check:
        options.output.write_text(text)
    elif options.output.read_text() != text:
        print(f"{options.output} is not that of the newest results: run python tests/gpu/prices.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
