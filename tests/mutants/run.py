"""Checks the checks: each fault of a list, a line of the code made wrong, must make its model or test fail.

    python tests/mutants/run.py [--invariants] [TEXT ...]

The faults of list.txt are in lock-free code, for models; with --invariants those of invariants.txt are for tests.
One fault at a time is made in a copy of the tree; there is a copy for each of the machine's processors, up to four.
With TEXTs only those faults whose file or model has one of them in its name. Fails where a fault goes unnoticed, where
its text is not there (once, outside tests), or where the copy does not compile.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
COPIES = min(len(os.sched_getaffinity(0)), 4)
# In seconds: what a model or a test may take, with a fault in it or without.
PATIENCE = 120


class Mutant(NamedTuple):
    """One fault, and the models or tests of which one must notice it."""

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


class Suite(NamedTuple):
    """A list of faults, and what must notice them."""

    faults: str
    folder: str
    flags: str

    def targets(self, name: str) -> list[str]:
        """What cargo builds for a model or test."""
        return ["--lib"] if self is MODELS else ["--test", name.split()[0]]

    def filters(self, name: str) -> list[str]:
        """What is run of that."""
        return [name] if self is MODELS else name.split()[1:]


MODELS = Suite("list.txt", "target", "--cfg loom -A warnings")
TESTS = Suite("invariants.txt", "tests", "-A warnings")


class Copy:
    """A copy of the tree, and what was built of it beside it."""

    def __init__(self, number: int, suite: Suite) -> None:
        self.suite = suite
        self.tree = FOLDER / str(number) / "tree"
        self.target = FOLDER / str(number) / suite.folder

    def update(self) -> None:
        """Brings the copy up to date. What has not changed keeps its time, so that it is not built again."""
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            source, copy = ROOT / name, self.tree / name
            if source.is_file():
                contents = source.read_bytes()
                if not copy.is_file() or copy.read_bytes() != contents:
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(contents)

    def build(self, name: str) -> str:
        """Builds what has a model or test; where that is."""
        command = ["cargo", "test", "--locked", "--no-run", "--target-dir", str(self.target), *self.suite.targets(name)]
        environment = os.environ | {"RUSTFLAGS": self.suite.flags, "CARGO_PROFILE_DEV_DEBUG": "0"}
        built = subprocess.run(command, cwd=self.tree, env=environment, check=False, capture_output=True, text=True)
        found = re.search(r"Executable .*\((.*)\)", built.stderr)
        if built.returncode or not found:
            raise RuntimeError(f"the copy does not compile:\n{built.stderr}")
        return str(self.tree / found[1])

    def passes(self, name: str, built: str) -> bool:
        """Whether the models or tests that `name` means hold."""
        environment = os.environ | {"RUST_BACKTRACE": "0"}
        command = [built, *self.suite.filters(name)]
        try:
            ran = subprocess.run(
                command, cwd=self.tree, env=environment, check=False, capture_output=True, text=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} did not end in {PATIENCE} seconds") from None
        if "running 0 tests" in ran.stdout:
            raise RuntimeError(f"there is no {name}")
        return ran.returncode == 0

    def notices(self, mutant: Mutant) -> bool:
        """Whether the fault makes one of its models or tests fail."""
        file = self.tree / mutant.file
        sound = file.read_text()
        file.write_text(mutate(mutant))
        try:
            return not self.passes(mutant.model, self.build(mutant.model))
        finally:
            file.write_text(sound)


def main(suite: Suite, wanted: list[str]) -> int:
    mutants = read_list((ROOT / "tests/mutants" / suite.faults).read_text())
    mutants = [mutant for mutant in mutants if not wanted or any(text in mutant.file + mutant.model for text in wanted)]
    first, *others = copies = [Copy(number, suite) for number in range(COPIES)]
    for copy in copies:
        copy.update()
    names = sorted({mutant.model for mutant in mutants})
    built = {name: first.build(name) for name in names}
    for copy in others:
        if not copy.target.exists():
            # The libraries that all need are not built again.
            shutil.copytree(first.target, copy.target)
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def sound(name: str) -> bool:
        return first.passes(name, built[name])

    def noticed(mutant: Mutant) -> bool:
        copy = free.get()
        try:
            start = time.monotonic()
            noticed = copy.notices(mutant)
        finally:
            free.put(copy)
        result = "killed  " if noticed else "SURVIVED"
        print(f"{time.monotonic() - start:5.1f} s  {result}  {mutant.file}: {mutant.new}", flush=True)
        return noticed

    with ThreadPoolExecutor(COPIES) as workers:
        for name, holds in zip(names, workers.map(sound, names), strict=True):
            if not holds:
                sys.exit(f"{name} fails without a fault")
        results = list(workers.map(noticed, mutants))
    killed = Counter(mutant.file for mutant, noticed in zip(mutants, results, strict=True) if noticed)
    for file, count in sorted(killed.items()):
        print(f"{count:5} killed  {file}")
    print(f"{killed.total()} of {len(mutants)} faults were noticed")
    survivors = [mutant for mutant, noticed in zip(mutants, results, strict=True) if not noticed]
    for mutant in survivors:
        print(f"{mutant.model} does not notice, in {mutant.file}:\n- {mutant.old}\n+ {mutant.new}")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--invariants", action="store_true")
    parser.add_argument("wanted", nargs="*")
    chosen = parser.parse_args()
    try:
        sys.exit(main(TESTS if chosen.invariants else MODELS, chosen.wanted))
    except RuntimeError as error:
        sys.exit(str(error))
