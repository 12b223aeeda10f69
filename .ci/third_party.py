"""Writes THIRD-PARTY-LICENSES.txt: the licences of the crates that are linked into the extension, which wheels carry.

python third_party.py          writes it anew
python third_party.py --check  fails where it is not what the locked crates say
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parents[1] / "THIRD-PARTY-LICENSES.txt"
HEAD = """\
flagstone's wheels contain code of these Rust crates, under the licences below. Where a crate offers a choice, it is
the MIT licence that is used. Rust's standard library, which is linked too, is used under the Apache License 2.0: see
LICENSE. Written by .ci/third_party.py.
"""
FEATURES = ("--locked", "--features", "python")
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")


def cargo(*arguments: str) -> str:
    """Return what cargo prints."""
    return subprocess.run(["cargo", *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=PLACE.parent).stdout


def linked() -> list[dict[str, Any]]:
    """Return the packages whose code is in the extension, by name; those that only build it are not."""
    tree = ("tree", *FEATURES, "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}")
    lines = [line for target in TARGETS for line in cargo(*tree, "--target", target).splitlines()]
    wanted = {tuple(line.split()[:2]) for line in lines}
    packages = json.loads(cargo("metadata", *FEATURES, "--format-version", "1"))["packages"]
    found = [package for package in packages if (package["name"], f"v{package['version']}") in wanted]
    return sorted((package for package in found if package["source"]), key=lambda package: package["name"])


def texts(package: dict[str, Any]) -> list[str]:
    """Return the texts of a package's licence."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(folder.glob("LICENSE-MIT*")) or sorted(folder.glob("LICENSE*"))
    if not files:
        sys.exit(f"{package['name']} {package['version']} ({package['license']}) has no file with its licence")
    return ["\n".join(line.rstrip() for line in file.read_text("utf-8").strip().splitlines()) for file in files]


def document() -> str:
    """Return the whole file: each text once, below the crates that it is for."""
    owners = defaultdict(list)
    for package in linked():
        for text in texts(package):
            owners[text].append(f"{package['name']} {package['version']} ({package['license']})")
    rule = "-" * 80
    parts = ["\n".join([rule, *names, rule, "", text, ""]) for text, names in owners.items()]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    written = document()
    if not sys.argv[1:]:
        PLACE.write_text(written, "utf-8")
    elif not PLACE.exists() or PLACE.read_text("utf-8") != written:
        sys.exit(f"{PLACE.name} is not what the locked crates say: run python .ci/third_party.py")
