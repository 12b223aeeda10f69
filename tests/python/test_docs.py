"""Runs what pages of docs/ show: the Python examples of a page in turn, then its `flagstone` command lines."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["debugging.md", "history.md", "statistics.md"])
def test_examples(page, tmp_path):
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    code = "".join(code for language, code in fences if language == "python")
    lines = [line for language, code in fences if language == "sh" for line in code.splitlines()]
    assert code
    commands = [[sys.executable, "-c", code]]
    commands += [[sys.executable, "-m", *shlex.split(line)] for line in lines if line.startswith("flagstone ")]
    for command in commands:
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
        assert ran.returncode == 0, f"{shlex.join(command)}\n{ran.stdout}\n{ran.stderr}"
