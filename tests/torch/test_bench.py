"""`flagstone bench torch` and `dataloader`: each allocator is measured where it says it is."""

import json
import subprocess
import sys

import pytest
import simcuda

from flagstone import _core
from flagstone.cli.contestants import OPTIONS, Contestant

pytestmark = pytest.mark.process(install=False)


def bench(*arguments, environment=None):
    command = [sys.executable, "-m", "flagstone", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=45, env=environment)


def test_every_allocator_is_measured_in_every_case():
    ran = bench("torch", "--backend", "sim", "--quick", "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["machine"]["backend"] == "sim"
    measured = {(row["allocator"], row["case"], row["threads"]) for row in report["rows"]}
    assert len(report["rows"]) == len(measured) == len(OPTIONS) * 3 * 3
    for row in report["rows"]:
        assert row["ratio_least"] <= row["ratio"] <= row["ratio_most"]
        assert min(row["ns_per_pair_rounds"]) <= row["ns_per_pair"] <= max(row["ns_per_pair_rounds"])
        assert row["allocator"] != "torch-native" or row["ratio"] == 1


@pytest.mark.parametrize(
    ("allocator", "function"),
    [
        ("torch-native", "cudaMalloc"),
        ("torch-expandable", "cuMemCreate"),
        ("torch-async", "cudaMallocAsync"),
        ("torch-plain", "cudaMalloc"),
        ("flagstone", "cuMemCreate"),
    ],
)
def test_pairs_go_through_the_allocator_that_is_named(allocator, function):
    with Contestant(allocator, simulated=True) as contestant:
        before = contestant.ask("counts")
        contestant.ask("pairs", nbytes=4096, count=100, threads=2)
        calls = contestant.ask("counts").get(function, 0) - before.get(function, 0)
    # Those that keep no memory go to the driver for each pair.
    assert calls >= 200 if allocator in ("torch-async", "torch-plain") else 1 <= calls < 100


def test_where_the_simulation_is_missing_it_says_how_to_get_it():
    environment = simcuda.environment()
    del environment[simcuda.FOLDER]
    ran = bench("torch", "--backend", "sim", environment=environment)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("flagstone: SIMCUDA_FOLDER does not say")
    assert "make simcuda" in ran.stderr


@pytest.mark.parametrize("name", ["threads", "producer-consumer"])
def test_torchs_own_allocator_is_measured_beside_the_c_functions(name):
    ran = bench(name, "--backend", "sim", "--quick", "--json")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    sides = {
        side: {(row["case"], row["threads"]): row["driver_takes"] for row in rows if row["allocator"] == side}
        for side in ("flagstone", "torch-native")
    }
    assert sides["flagstone"].keys() == sides["torch-native"].keys()
    if name == "threads":  # the other one counts from its second round on
        assert all(sum(side.values()) > 0 for side in sides.values())
        times = {(row["allocator"], row["case"], row["threads"]): row["ns_per_pair"] for row in rows}
        for row in (row for row in rows if row["allocator"] == "flagstone"):
            natives = times["torch-native", row["case"], row["threads"]]
            assert row["ratio"] == pytest.approx(row["ns_per_pair"] / natives, rel=0.05, abs=0.001)


def test_the_ways_to_load_are_measured_side_by_side():
    ran = bench("dataloader", "--backend", "sim", "--quick", "--json")
    assert ran.returncode == 0, ran.stderr
    torchs, pinned, thread, prefetcher = json.loads(ran.stdout)["rows"]
    assert torchs["allocator"] == "torch-native"
    assert torchs["ratio"] == 1
    for row in (torchs, pinned, thread, prefetcher):
        assert row["wrong_batches"] == 0
        assert row["batches_per_second"] > 0
        assert row["cpu_ms_per_batch"] > 0
        assert 0 < row["peak_pinned_in_use_bytes"] <= row["peak_pinned_bytes"]
        assert row["pinned_calls"] > 0
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert prefetcher["pinned_ratio"] <= 1.15
    assert prefetcher["pinned_calls_when_warm"] == 0


def trace(folder):
    """Write a trace: every second block goes, others come, too large for the holes; one is still read elsewhere."""
    rows = ["op,id,size,stream,t_us\n"]
    rows += [f"a,{block},{3 << 20},1,{10 * block}\n" for block in range(40)]
    rows += [f"x,0,{3 << 20},0,500\n"]
    rows += [f"f,{block},{3 << 20},1,600\n" for block in range(0, 40, 2)]
    rows += [f"a,{block},{5 << 20},1,{1000 + block}\n" for block in range(40, 60)]
    rows += [f"e,0,{3 << 20},0,900000\n"]
    path = f"{folder}/small.csv"
    with open(path, "w") as file:
        file.writelines(rows)
    return path


def test_traces_cost_torchs_allocators_what_their_models_say():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        known = _core.Trace(trace(folder))
        ran = bench("fragmentation", folder, "--json", "--passes", "2")
    assert ran.returncode == 0, ran.stderr
    rows = {row["allocator"]: row for row in json.loads(ran.stdout)["rows"]}
    assert list(rows) == ["torch-native", "torch-expandable", "torch-async", "flagstone"]
    for name, call in [("torch-native", "cuMemAlloc"), ("torch-expandable", "cuMemMap")]:
        model = _core.model(known, name, passes=2)
        assert rows[name]["peak_reserved_bytes"] == model["peak_reserved_bytes"]
        assert sum(cost["driver_calls"].get(call, 0) for cost in rows[name]["passes"]) == model["driver_calls"][call]
    for row in rows.values():
        assert row["peak_active_bytes"] == (21 * 3 + 20 * 5) << 20, "what is left, what came, and what is read"
        assert (row["errors"], len(row["passes"])) == (0, 2)
    assert rows["flagstone"]["utilisation"] > rows["torch-native"]["utilisation"]


def test_traces_are_replayed_without_control_of_the_device():
    """As on a real one, which is the simulated one here by its environment."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        trace(folder)
        arguments = (folder, "--backend", "cuda", "--passes", "2", "--json")
        ran = bench("fragmentation", *arguments, environment=simcuda.environment())
    assert ran.returncode == 0, ran.stderr
    assert "simcuda" not in ran.stderr
    report = json.loads(ran.stdout)
    assert report["machine"]["backend"] == "cuda"
    rows = {row["allocator"]: row for row in report["rows"]}
    assert list(rows) == ["torch-native", "torch-expandable", "torch-async", "flagstone"]
    live = (20 * 3 + 20 * 5) << 20
    for row in rows.values():
        assert (row["errors"], len(row["passes"])) == (0, 2)
        assert all(result["peak_reserved_bytes"] >= live and result["ns_per_op"] > 0 for result in row["passes"])
    assert rows["torch-native"]["utilisation"] < rows["flagstone"]["utilisation"] <= 1


def test_without_traces_or_with_traces_for_another_bench_the_usage_is_wrong():
    assert bench("fragmentation").returncode == 2
    assert bench("latency", "some.csv").returncode == 2
