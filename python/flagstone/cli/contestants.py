"""torch with one allocator or another, each in a process of its own: the choice is for a process's life."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from flagstone.cli import simulation
from flagstone.errors import FlagstoneError

NATIVE = "torch-native"
OPTIONS = {
    NATIVE: "",
    "torch-expandable": "expandable_segments:True",
    "torch-async": "backend:cudaMallocAsync",
    "torch-plain": "",
    "flagstone": "",
}
"""The allocators, each with its settings. torch-plain is a plug-in of cudaMalloc and cudaFree."""


_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The environment variables for the settings: older versions of torch know the second only."""


class Contestant:
    """A process that has torch with one allocator and does what it is asked. It ends with the `with` block."""

    def __init__(self, allocator: str, *, simulated: bool, **environment: str) -> None:
        """Start the process; `environment` is added to its own.

        `FlagstoneError` where torch, or the simulation that is asked for, is missing.
        """
        if importlib.util.find_spec("torch") is None:
            raise FlagstoneError("torch is not installed here; pip install a build with CUDA")
        inherited = simulation.environment() if simulated else dict(os.environ)
        self._allocator = allocator
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at the end of the with block)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flagstone.cli.contestant", allocator],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**inherited, **environment, **dict.fromkeys(_SETTINGS, OPTIONS[allocator])},
        )

    def ask(self, what: str, **arguments: object) -> Any:
        """Have something done and return what came of it; `FlagstoneError` where the process fails."""
        commands, answers = self._process.stdin, self._process.stdout
        assert commands is not None
        assert answers is not None
        try:
            commands.write(json.dumps({"what": what, "arguments": arguments}) + "\n")
            commands.flush()
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise FlagstoneError(f"{self._allocator}: {what} failed: {self._last_error()}")
        return json.loads(answer)

    def _last_error(self) -> str:
        self._process.kill()
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"its process ended with status {status}"

    def __enter__(self) -> "Contestant":
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
