#!/usr/bin/env python3
"""Write BENCHMARKS.md, or some of its sections: what commands of this repository measure on this machine.

What each section says in short is at the top of the file, and in README.md beside it.

Example:
    make bench
    python benches/report.py BENCHMARKS.md threads dataloader
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import date
from pathlib import Path

from sections import SECTIONS, Section

from flagstone.cli.bench import machine

HEAD = """# Benchmarks

Written by `make bench`; not edited by hand. Times are medians, taken in compiled loops over the exported C functions,
warm, with no Python in them, where nothing else is said. On a simulated device the device's work is not real. The last
line of each section says when and where it was measured.
"""

BEGIN, END = "<!-- benchmarks: written by make bench -->", "<!-- end of benchmarks -->"
"""What the sentences in README.md are between."""


def where() -> str:
    """Say when and on what was measured."""
    at = machine("sim")
    build = at["flagstone"]
    return (
        f"_{date.today().isoformat()}: {at['processor']}, {at['cores']} cores, {at['system']}; "
        f"flagstone {build['version']}, {build['profile']} build; Python {at['python']}; simulated device._"
    )


def measured(section: Section, options: argparse.Namespace) -> str:
    """Measure a section, and return its text."""
    try:
        found = section.measure(options)
        text = section.text.format(**found).strip()
    except LookupError as missing:
        found, text = {}, f"Not measured: {missing.args[0]}."
    if short := found.get("short"):
        text += f"\n\n<!-- in short: {short} -->"
    return f"{section.heading}\n\n{text}\n\n{where()}\n"


def in_short(sections: list[str]) -> str:
    """Return what sections say in short, as a list."""
    return "".join(f"- {short}\n" for section in sections for short in re.findall("<!-- in short: (.*) -->", section))


def write_readme(file: Path, short: str) -> None:
    """Bring the sentences of a README up to date, where it has a place for them."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN) if file.exists() else ("", "", "")
    _, end, after = rest.partition(END)
    if end:
        file.write_text(f"{before}{begin}\n\n{short}\n{end}{after}", encoding="utf-8")


def written(text: str) -> dict[str, str]:
    """Return the sections of a file by their headings, whether this program knows them or not."""
    parts = f"\n{text}".split("\n## ")[1:]
    return {f"## {part.partition(chr(10))[0]}": f"## {part.rstrip()}\n" for part in parts}


def main() -> int:
    """Measure, and write the file after each section, so that a failure in a later one loses none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("names", metavar="SECTION", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument(
        "--traces", metavar="TRACE", nargs="*", default=[], help="files, or folders of them, for `given`"
    )
    parser.add_argument("--lifetimes", metavar="FILE", nargs="*", default=[], help="lifetimes CSV, for `packing`")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    have = written(options.file.read_text(encoding="utf-8")) if options.file.exists() else {}
    # What is not measured now stays as it is: `make soak` measures the soak, and other traces must be given.
    wanted = {"soak": False, "given": options.traces, "packing": options.lifetimes}
    for name in options.names or [name for name in SECTIONS if wanted.get(name, True)]:
        section = SECTIONS[name]
        have[section.heading] = measured(section, options)
        kept = [have[each.heading] for each in SECTIONS.values() if each.heading in have]
        short = in_short(kept)
        options.file.write_text("\n".join([HEAD, *([short] if short else []), *kept]), encoding="utf-8")
        write_readme(options.file.with_name("README.md"), short)
    return 0


if __name__ == "__main__":
    sys.exit(main())
