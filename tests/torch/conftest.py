"""Each test is a process of its own, with torch under the simulated CUDA: the choice of an allocator is for life.

`@pytest.mark.process(...)` says what the process is like: `install=False` for one without flagstone as torch's
allocator, or the settings of `flagstone.torch.install` as a dictionary; `devices` and `memory` in bytes; `ends=True`
for one whose interpreter comes to its ordinary end; `timeout` in seconds; other names are environment variables.
"""

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import simcuda

TIMEOUT = 50
"""Seconds for a test that does not say otherwise."""

server_key = pytest.StashKey[subprocess.Popen[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "process(install, devices, memory, ends, timeout, **environment): its process")
    if importlib.util.find_spec("torch") is None:
        pytest.exit("torch is not installed: run make test-torch", returncode=1)


def server(config: pytest.Config) -> subprocess.Popen[str]:
    """Return the process whose forks run the tests."""
    running = config.stash.get(server_key, None)
    if running is None or running.poll() is not None:
        # What torch and its neighbours warn of elsewhere is not known.
        strict = ["-W", "error"] if simcuda.SIMULATED else []
        command = [sys.executable, *strict, str(Path(__file__).with_name("server.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = config.stash[server_key] = subprocess.Popen(command, env=simcuda.environment(), **pipes)
    return running


def pytest_unconfigure(config: pytest.Config) -> None:
    running = config.stash.get(server_key, None)
    if running is not None:
        running.communicate()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    """A folder for what the process says."""


def settings(options: dict) -> dict[str, str]:
    """Return the environment of a process with these options; the test is skipped where the device cannot be so."""
    try:
        return simcuda.settings(**options)
    except simcuda.Uncontrolled as needed:
        pytest.skip(f"on this device a test has no control of {needed}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run the test's function in a process of its own."""
    options = {}
    for marker in reversed(list(pyfuncitem.iter_markers("process"))):
        options.update(marker.kwargs)
    output = pyfuncitem.funcargs["tmp_path"] / "output"
    callspec = getattr(pyfuncitem, "callspec", None)
    arguments = dict(callspec.params) if callspec else {}
    if "tmp_path" in inspect.signature(pyfuncitem.function).parameters:
        arguments["tmp_path"] = str(pyfuncitem.funcargs["tmp_path"])
    call = {
        "file": str(pyfuncitem.path),
        "name": pyfuncitem.originalname,
        "arguments": arguments,
        "install": options.pop("install", {}),
        "ends": options.pop("ends", False),
        "timeout": options.pop("timeout", TIMEOUT),
        "environment": settings(options),
        "output": str(output),
    }
    running = server(pyfuncitem.config)
    running.stdin.write(json.dumps(call) + "\n")
    running.stdin.flush()
    status = running.stdout.readline().strip()
    said = output.read_text() if output.exists() else ""
    if status == "0" and "uncontrolled: " in said:
        pytest.skip("on this device a test has no control of " + said.split("uncontrolled: ", 1)[1].strip())
    # What the simulation finds when the interpreter has gone is said there at the process's end.
    if status != "0" or "passed" not in said or "simcuda:" in said:
        pytest.fail(f"exit status {status}\n{said}", pytrace=False)
    return True
