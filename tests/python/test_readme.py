"""Runs what the README shows: each Python example and each `flagstone` command line. Rust's examples are doctests."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in FENCES if language == "python"]
COMMANDS = [
    line.partition("  #")[0]
    for language, code in FENCES
    if language == "sh"
    for line in code.splitlines()
    if line.startswith("flagstone ")
]


def run(command: list[str]) -> None:
    """Runs the command as a user would, from the repository's root, and shows its output where it fails."""
    done = subprocess.run(command, cwd=README.parent, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


def cuda_torch() -> bool:
    """Whether torch is here with a device that it can use, asked in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        return False
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_readme_has_examples() -> None:
    assert {"python", "rust", "sh"} <= {language for language, _ in FENCES}
    assert COMMANDS


@pytest.mark.parametrize("code", PYTHON, ids=[code.splitlines()[0] for code in PYTHON])
def test_python_example(code: str) -> None:
    if "torch" in code and not cuda_torch():
        pytest.skip("needs torch and a CUDA device")
    run([sys.executable, "-c", code])


@pytest.mark.parametrize("line", COMMANDS)
def test_command_line(line: str) -> None:
    run([sys.executable, "-m", *shlex.split(line)])
