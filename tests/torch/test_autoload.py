"""FLAGSTONE_TORCH=1: flagstone becomes torch's allocator while torch is imported, in code that was not edited."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import simcuda

pytestmark = pytest.mark.process(install=False)

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()

SCRIPT = """
import torch
tensor = torch.ones(1000, device="cuda") * 2
assert tensor[0].cpu() == 2
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated())
"""


def run(*command, **environment):
    """Run a command where flagstone is an installed package."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.environ["PYTHONPATH"]]
        if not importlib.metadata.entry_points(group="torch.backends", name="flagstone"):
            declared = re.search(r'^\[project\.entry-points\."torch\.backends"\]\n(flagstone = "\S+")', PROJECT, re.M)
            information = Path(folder) / "flagstone-0.dist-info"
            information.mkdir()
            (information / "METADATA").write_text("Name: flagstone\nVersion: 0\n")
            (information / "entry_points.txt").write_text(f"[torch.backends]\n{declared[1].replace(chr(34), '')}\n")
            paths.append(folder)
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        return subprocess.run(
            [sys.executable, *command, str(script)],
            env={**simcuda.environment(), "PYTHONPATH": os.pathsep.join(paths), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=45,
        )


def test_the_variable_installs():
    ran = run(FLAGSTONE_TORCH="1", FLAGSTONE_CONF="limit:64MiB")
    assert (ran.stdout, ran.returncode) == ("pluggable 4096\n", 0), ran.stderr


def test_without_the_variable_torch_is_left_alone():
    ran = run()
    assert (ran.stdout.split()[0], ran.returncode) == ("native", 0), ran.stderr


def test_the_command_and_the_variable_go_together():
    ran = run("-m", "flagstone", "run", FLAGSTONE_TORCH="1")
    assert (ran.stdout, ran.returncode) == ("pluggable 4096\n", 0), ran.stderr


def test_what_it_cannot_mean_stops_the_import():
    ran = run(FLAGSTONE_TORCH="yes")
    assert ran.returncode == 1
    assert "FLAGSTONE_TORCH: 'yes' is not allowed; allowed: 1 to make flagstone torch's allocator" in ran.stderr
