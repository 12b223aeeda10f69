"""The generated traces: anybody can make the same ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from flagstone import _core

GENERATE = Path(__file__).parents[2] / "benches/traces/generate.py"
PACKING = GENERATE.with_name("packing.py")
SCENARIOS = (
    "adapters",
    "comb",
    "diffusion",
    "experts",
    "loading",
    "new-streams",
    "prefetch",
    "serving",
    "variable-length",
)


def generate(folder, seed):
    subprocess.run([sys.executable, GENERATE, "all", folder, "--steps", "3", "--seed", str(seed)], check=True)
    return {path.name.removesuffix(".csv.gz"): path for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return [generate(tmp_path_factory.mktemp("traces"), seed) for seed in (0, 0, 1)]


def test_a_seed_gives_the_same_bytes_and_another_one_does_not(traces):
    one, same, other = ({name: path.read_bytes() for name, path in made.items()} for made in traces)
    assert tuple(one) == SCENARIOS
    assert one == same
    assert all(one[name] != other[name] for name in SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_is_a_trace_that_the_pool_replays(traces, name):
    trace = _core.Trace(traces[0][name])
    report = _core.replay(trace)
    assert report["errors"] == 0, report["first_error"]
    assert report["peak_active_bytes"] >= report["peak_live_bytes"] > 0


@pytest.mark.parametrize("name", ["new-streams", "prefetch"])
def test_the_streams_of_the_scenario_are_there(traces, name):
    trace = _core.Trace(traces[0][name])
    assert trace.streams == 4
    assert any(call == "use" for _, call, *_ in trace.schedule()["steps"])


def test_lifetimes_are_packed_and_read_from_files(tmp_path):
    """What is cut of a rectangle fills it, and is held by little more, also with other units and read from a file."""
    ran = subprocess.run([sys.executable, PACKING], capture_output=True, text=True, check=True)
    heading, _, *rows = [row.split("|")[1:] for row in ran.stdout.splitlines()]
    assert heading[1] == " `handle:2MiB` "
    held = {name.strip(): float(first) for name, first, *_ in rows}
    assert len(held) == 9
    assert 1 <= held["at most"] == max(held.values()) <= 1.10

    lifetimes = tmp_path / "two.csv"
    lifetimes.write_text("id,lower,upper,size\na,0,5,3\nb,5,9,3\nc,2,7,1\n")
    ran = subprocess.run([sys.executable, PACKING, lifetimes], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[2].startswith("| two | 1.000 |")
