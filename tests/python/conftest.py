"""What the Python tests share."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import flagstone

MIB = 1 << 20

BACKEND = os.environ.get("FLAGSTONE_TEST_BACKEND", "sim")
"""Of the pools that tests are given. Anything but a simulated device needs a driver whose memory the host can touch."""


@pytest.fixture
def pool() -> flagstone.Pool:
    """A pool of a device."""
    return flagstone.Pool(backend=BACKEND)


@pytest.fixture
def pinned() -> flagstone.PinnedPool:
    """A pool of pinned memory beside a device."""
    return flagstone.PinnedPool(backend=BACKEND)


@pytest.fixture
def child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code, or a module with arguments, in a process of its own, where warnings are errors."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", *(("-c",) if len(arguments) == 1 else ()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, **options)

    return run
