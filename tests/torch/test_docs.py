"""Runs the examples with torch of README.md and docs/, a page at a time."""

import subprocess
import sys

import pages
import pytest
import simcuda

COMPUTING = {"docs/less-memory.md"}
"""The pages that need more of torch's kernels than the simulation has: the CPU computes them."""

PAGES = [page for page in pages.PAGES if pages.program(page, torch=True)]


@pytest.mark.process(install=False, timeout=110)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES)
def test_examples(page):
    environment = {**simcuda.environment(kernels=page in COMPUTING), **simcuda.settings(devices=2)}
    command = [sys.executable, "-c", pages.program(page, torch=True)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.stdout}\n{ran.stderr}"
