"""Runs the steps of the check, each in a process of its own with its own limit, and writes the results after each.

    python check.py FOLDER [--rehearsal] [--steps FILE] [STEP ...]

A step is a command. Each line of its output that is a JSON object is a part of its results, kept as it comes: a step
that is ended leaves what it had. Exit status 0 means passed, 77 that it cannot be run here, as its last line says.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from results import FAILED, LATE, PASSED, RUNNING, SKIPPED, Outcome, Results

HERE = Path(__file__).resolve().parent
CANNOT = 77
"""The exit status of a step that cannot be run here."""
BUDGET = 350
"""Seconds for all steps together: what is left of six minutes when the wheel is installed."""
TAIL = 40
"""Lines of a step's output that are kept where it did not pass."""


def device_name() -> str:
    """Return the name of the first device, or what stands for it where none answers."""
    code = "from flagstone import _core; print(_core.devices('cuda')[0]['name'])"
    try:
        asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "no answer"
    return asked.stdout.strip() if asked.returncode == 0 else "no device"


def read_table(file: Path) -> list:
    """Return the steps of a file: its `STEPS`."""
    spec = importlib.util.spec_from_file_location("steps", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.STEPS


def listen(process: subprocess.Popen, outcome: Outcome, results: Results, tail: deque) -> None:
    """Keep what the step says, until it says no more."""
    for line in process.stdout:
        try:
            said = json.loads(line) if line.startswith("{") else None
        except ValueError:
            said = None
        if said is None:
            tail.append(line.rstrip("\n"))
        else:
            outcome.figures.update(said)
            results.write()


def run(command: list[str], outcome: Outcome, results: Results, seconds: float, rehearsal: bool) -> None:
    """Run one step for at most so many seconds."""
    outcome.state = RUNNING
    results.write()
    start, tail = time.monotonic(), deque(maxlen=TAIL)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "FLAGSTONE_REHEARSAL": "1" if rehearsal else ""}
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    listener = threading.Thread(target=listen, args=(process, outcome, results, tail), daemon=True)
    listener.start()
    try:
        status = process.wait(max(seconds, 0))
        outcome.state = {0: PASSED, CANNOT: SKIPPED}.get(status, FAILED)
    except subprocess.TimeoutExpired:
        status, outcome.state = None, LATE
    finally:
        # Also what the step started and left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    listener.join(5)
    outcome.seconds = round(time.monotonic() - start, 2)
    # The simulation says so at a process's end where a real device would have given wrong data.
    if outcome.state == PASSED and rehearsal and any(line.startswith("simcuda: ") for line in tail):
        outcome.state = FAILED
    if outcome.state != PASSED:
        ended = [f"exit status {status}"] if outcome.state == FAILED else []
        outcome.output = "\n".join([*tail, *ended] if outcome.state != SKIPPED else list(tail)[-1:])
    results.write()


def main() -> int:
    """Run the steps that are named, or all of them. Return 0 where all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the results go")
    parser.add_argument("--rehearsal", action="store_true", help="the device is simulated")
    parser.add_argument("--steps", type=Path, default=HERE / "steps.py", help="the table of steps")
    parser.add_argument("names", nargs="*", metavar="STEP", help="steps to run (default: all)")
    options = parser.parse_args()
    steps = [step for step in read_table(options.steps) if not options.names or step.name in options.names]
    if unknown := set(options.names) - {step.name for step in steps}:
        parser.error(f"no step is named {', '.join(sorted(unknown))}")

    outcomes = [Outcome(step.name, step.shows, step.limit_s) for step in steps]
    deadline = time.monotonic() + BUDGET
    about = {"rehearsal": options.rehearsal, "python": sys.version.split()[0]}
    results = Results(options.folder, device_name(), outcomes, **about)
    for step, outcome in zip(steps, outcomes, strict=True):
        left = deadline - time.monotonic()
        # A machine without a GPU may be slow: there, only the time of all steps together counts as it is.
        limit = step.limit_s * (2 if options.rehearsal else 1)
        run(step.command, outcome, results, min(limit, left), options.rehearsal)
        print(f"{outcome.name:16} {outcome.state:11} {outcome.seconds:6.1f} s", flush=True)
        if outcome.output:
            print(outcome.output, flush=True)
    print(f"results: {results.path} and {results.path.with_suffix('.txt').name}", flush=True)
    return 0 if all(outcome.state == PASSED for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
