"""The check for GPU machines: its results are whole whatever ends it, and its table of steps can be run."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

GPU = Path(__file__).parents[1] / "gpu"

STEPS = """
import sys
from dataclasses import dataclass

@dataclass
class Step:
    name: str
    command: list
    limit_s: float = 30
    shows: str = "something"

def python(code):
    return [sys.executable, "-c", code]

STEPS = [
    Step("quick", python("print('words'); print('{\\"figure\\": 7}')")),
    Step("wrong", python("print('the reason'); raise SystemExit(3)")),
    Step("absent", python("print('no such thing here'); raise SystemExit(77)")),
    Step("slow", python("import time; print('{\\"so far\\": 1}', flush=True); time.sleep(60)"), SLOW),
    Step("last", python("pass")),
]
"""


def start(tmp_path, slow):
    steps = tmp_path / "steps.py"
    steps.write_text(STEPS.replace("SLOW", str(slow)))
    command = [sys.executable, GPU / "check.py", tmp_path / "results", "--steps", steps]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read(tmp_path):
    """Return the outcomes by name and the table; None before there are any."""
    found = sorted((tmp_path / "results").glob("*.json"))
    if not found:
        return None
    assert len(found) == 1
    steps = {step["name"]: step for step in json.loads(found[0].read_text())["steps"]}
    return steps, found[0].with_suffix(".txt").read_text()


def test_each_step_has_its_outcome(tmp_path):
    running = start(tmp_path, 1)
    said = running.communicate(timeout=50)[0]
    assert running.returncode == 1, said
    steps, table = read(tmp_path)
    states = {name: step["state"] for name, step in steps.items()}
    assert states == {
        "quick": "passed",
        "wrong": "failed",
        "absent": "skipped",
        "slow": "out of time",
        "last": "passed",
    }
    assert steps["quick"]["figures"] == {"figure": 7}
    assert steps["wrong"]["output"].splitlines() == ["the reason", "exit status 3"]
    assert steps["absent"]["output"] == "no such thing here"
    assert steps["slow"]["figures"] == {"so far": 1}, "what it said before its limit is kept"
    assert 0.9 < steps["slow"]["seconds"] < 20
    for state in states.values():
        assert state in table
    assert "figure: 7" in table
    assert "the reason" in table


def test_the_results_are_whole_when_the_check_is_killed_half_way(tmp_path):
    running = start(tmp_path, 60)
    until = time.monotonic() + 40
    while True:
        assert time.monotonic() < until
        assert running.poll() is None
        # Each look is a check of its own: there is no moment at which the file is not whole.
        read_now = read(tmp_path)
        if read_now and read_now[0]["slow"]["figures"]:
            break
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=20)
    steps, table = read(tmp_path)
    assert [step["state"] for step in steps.values()] == ["passed", "failed", "skipped", "running", "waiting"]
    assert steps["slow"]["figures"] == {"so far": 1}
    assert "running" in table
    assert "waiting" in table


def table_of_steps():
    spec = importlib.util.spec_from_file_location("steps", GPU / "steps.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.STEPS


def test_the_steps_fit_into_six_minutes():
    steps = table_of_steps()
    assert len({step.name for step in steps}) == len(steps)
    assert sum(step.limit_s for step in steps) <= 350


def test_simulation_md_names_only_steps_that_there_are():
    text = (GPU.parents[1] / "docs/simulation.md").read_text()
    section = text.split("## Where a real GPU could differ", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    named = {name for row in rows for name in row[-1].split("`")[1::2]}
    assert len(rows) > 10
    assert named <= {step.name for step in table_of_steps()}, named
    assert all("`" in row[-1] for row in rows), "each difference has the step that looks at it"


def test_the_prices_of_the_simulation_are_those_of_the_newest_results():
    ran = subprocess.run(
        [sys.executable, GPU / "prices.py", "--check"], capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def prices(folder):
    """Return the source that is made of the results in a folder."""
    command = [sys.executable, GPU / "prices.py", "--results", folder, "--output", folder / "measured.rs"]
    subprocess.run(command, timeout=30, check=True)
    return (folder / "measured.rs").read_text()


def test_prices_are_made_of_results(tmp_path):
    rows = [
        {"call": "cuMemCreate", "bytes": 2 << 20, "mappings": 0, "ns_per_call": 101_000},
        {"call": "cuMemCreate", "bytes": 64 << 20, "mappings": 0, "ns_per_call": 132_000},
        {"call": "cuMemUnmap", "bytes": 2 << 20, "mappings": 1, "ns_per_call": 9_000},
        {"call": "cuMemUnmap", "bytes": 64 << 20, "mappings": 1, "ns_per_call": 9_000},
        {"call": "cuMemUnmap", "bytes": 64 << 20, "mappings": 32, "ns_per_call": 64_000},
        {"call": "cuEventRecord", "bytes": 0, "mappings": 0, "ns_per_call": 1_234.4},
    ]
    results = {
        "device": "NVIDIA H200",
        "began": "2026-12-01T10:00:00Z",
        "rehearsal": False,
        "steps": [{"name": "prices", "state": "passed", "figures": {"driver": rows}}],
    }
    file = tmp_path / "2026-12-01-1000-nvidia-h200.json"
    file.write_text(json.dumps(results))
    made = prices(tmp_path)
    assert "NVIDIA H200, 2026-12-01 (tests/gpu/results/2026-12-01-1000-nvidia-h200.json)" in made
    # 31 microseconds for 62 MiB more: half a microsecond a MiB.
    assert "(Call::MemCreate, Price { base_ns: 100_000, per_mib_ns: 500 })" in made
    assert "(Call::MemUnmap, Price { base_ns: 2_000, per_mib_ns: 0 })" in made
    assert "(Call::EventRecord, Price { base_ns: 1_234, per_mib_ns: 0 })" in made
    file.write_text(json.dumps({**results, "rehearsal": True}))
    assert "SOURCE: Option<&str> = None" in prices(tmp_path), "a rehearsal's prices are no device's"
