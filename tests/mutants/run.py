"""Checks the checks: each fault of list.txt, a line of the lock-free code made wrong, must make its model fail.

    python tests/mutants/run.py [TEXT ...]

One fault at a time is made in a copy of the tree. With TEXTs only those whose file or model has one of them in its
name. Fails where a fault goes unnoticed, where its text is not there (once, outside tests), or where the copy does not
compile.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
TREE = TARGET / "tree"
BUILD = ["cargo", "test", "--locked", "--lib", "--no-run", "--target-dir", str(TARGET)]
# In seconds: what a model may take, with a fault in it or without.
PATIENCE = 120


class Mutant(NamedTuple):
    """One fault, and the models of which one must notice it."""

    file: str
    old: str
    new: str
    model: str


def read_list(text: str) -> list[Mutant]:
    """The faults, a paragraph each, in lines that begin with what they are."""
    lines = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    mutants = []
    for paragraph in filter(None, re.split(r"\n\n+", lines.strip("\n"))):
        file, *rest = paragraph.split("\n")
        if [line[:1] for line in rest] != ["-", "+", "!"]:
            sys.exit(f"not a file, - old, + new and ! model:\n{paragraph}")
        mutants.append(Mutant(file, *(line[2:] for line in rest)))
    return mutants


def mutate(mutant: Mutant) -> str:
    """The file's text with the fault in it."""
    text = (ROOT / mutant.file).read_text()
    code = re.split(r"(?m)^#\[cfg\((?:test|all\(test)\b", text, maxsplit=1)[0]
    if code.count(mutant.old) != 1:
        sys.exit(f"{mutant.file}: {code.count(mutant.old)} times, not once: {mutant.old}")
    return text.replace(mutant.old, mutant.new, 1)


def copy_tree() -> None:
    """Brings the copy up to date. What has not changed keeps its time, so that it is not built again."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, TREE / name
        if source.is_file():
            contents = source.read_bytes()
            if not copy.is_file() or copy.read_bytes() != contents:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(contents)


def build() -> str:
    """Builds the models of the copy; where they are."""
    environment = os.environ | {"RUSTFLAGS": "--cfg loom -A warnings", "CARGO_PROFILE_DEV_DEBUG": "0"}
    built = subprocess.run(BUILD, cwd=TREE, env=environment, check=False, capture_output=True, text=True)
    found = re.search(r"Executable .*\((.*)\)", built.stderr)
    if built.returncode or not found:
        sys.exit(f"the copy does not compile:\n{built.stderr}")
    return str(TREE / found[1])


def passes(models: str, name: str) -> bool:
    """Whether the models whose path begins with `name` hold."""
    try:
        ran = subprocess.run([models, name], check=False, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        sys.exit(f"{name} did not end in {PATIENCE} seconds")
    if "running 0 tests" in ran.stdout:
        sys.exit(f"there is no model {name}")
    return ran.returncode == 0


def main(wanted: list[str]) -> int:
    mutants = read_list((ROOT / "tests/mutants/list.txt").read_text())
    mutants = [mutant for mutant in mutants if not wanted or any(text in mutant.file + mutant.model for text in wanted)]
    copy_tree()
    models = build()
    for name in sorted({mutant.model for mutant in mutants}):
        if not passes(models, name):
            sys.exit(f"{name} fails without a fault")
    killed: Counter[str] = Counter()
    survivors = []
    for mutant in mutants:
        start = time.monotonic()
        copy = TREE / mutant.file
        sound = copy.read_text()
        copy.write_text(mutate(mutant))
        try:
            noticed = not passes(build(), mutant.model)
        finally:
            copy.write_text(sound)
        result = "killed  " if noticed else "SURVIVED"
        print(f"{time.monotonic() - start:5.1f} s  {result}  {mutant.file}: {mutant.new}", flush=True)
        killed[mutant.file] += noticed
        if not noticed:
            survivors.append(mutant)
    for file, count in sorted(killed.items()):
        print(f"{count:5} killed  {file}")
    print(f"{killed.total()} of {len(mutants)} faults were noticed")
    for mutant in survivors:
        print(f"{mutant.model} does not notice, in {mutant.file}:\n- {mutant.old}\n+ {mutant.new}")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
