"""The command line: what it prints, and its exit status."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flagstone

TRACE = Path(__file__).parents[2] / "benches/traces/gpt_variable_length.csv.gz"
BENCHES = ("latency", "holes", "rmm-random", "history", "threads", "producer-consumer")
COMMANDS = ("info", "demo", "replay", "report", "top", "bench")


@pytest.fixture
def cli(child):
    """Run a command; standard error is empty where it succeeds."""

    def run(*arguments, status=0, **options):
        ran = child("-m", "flagstone", *map(str, arguments), **options)
        assert ran.returncode == status, ran.stderr
        assert status == 0 or len(ran.stderr.splitlines()) == 1, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    return run


@pytest.fixture
def report(cli):
    """Run a command with --json and return the one object that it prints."""

    def run(*arguments):
        return json.loads(cli(*arguments, "--json").stdout)

    return run


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(cli, command):
    assert f"example: flagstone {command}" in cli(command, "--help").stdout
    assert command in cli("--help").stdout


def test_version(cli):
    assert cli("--version").stdout == f"flagstone {flagstone.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("paint",),
        ("replay",),
        ("replay", TRACE, "--passes", "0"),
        ("replay", TRACE, "--passes", "two"),
        ("replay", TRACE, "--lag", "-1"),
        ("replay", TRACE, "--backend", "tpu"),
        ("replay", TRACE, "--conf", "limti:2GiB"),
        ("bench",),
        ("bench", "everything"),
        ("bench", "latency", TRACE),
        ("bench", "latency", "--passes", "2"),
        ("bench", "fragmentation"),
        ("run",),
        ("top", "myself"),
        ("top", "--interval", "nan"),
        ("info", "--colour"),
    ],
)
def test_wrong_usage(cli, arguments):
    ran = cli(*arguments, status=2)
    assert ran.stdout == ""
    assert ran.stderr.startswith("flagstone")


def test_info(report, cli):
    info = report("info")
    assert info["version"] == flagstone.__version__
    assert info["profile"] in {"debug", "release"}
    assert "cuda" in info["features"]
    assert Path(info["extension"]).samefile(flagstone._core.__file__)
    assert info["cuda"]["available"] == (info["cuda"]["reason"] is None) == (info["backend"] == "cuda")
    assert info["devices"][0].keys() == {
        "backend",
        "ordinal",
        "name",
        "total_bytes",
        "granularity",
        "virtual_memory",
        "memory_pools",
    }
    assert "2GiB" in info["settings"]["limit"]
    text = cli("info").stdout
    assert info["simulated_prices"] == flagstone._core.simulated_prices()["source"]
    assert info["simulated_prices"] in text
    assert info["extension"] in text
    assert info["defaults"].keys() == info["settings"].keys()
    assert f"limit: {info['settings']['limit']} (default: none)" in text
    assert f"magazine: {info['settings']['magazine']} (default: 64.0 MiB)" in text
    assert "growth: bytes as 20MiB, or 0 to let the pool choose (default: 0)" in text
    assert info["devices"][0]["name"] in text


def test_info_says_what_the_environment_sets_and_whether_it_can(cli):
    def info(conf, *arguments):
        return cli("info", *arguments, env={**os.environ, "FLAGSTONE_CONF": conf}).stdout

    said = json.loads(info("limit:3GiB,reserve:1GiB", "--json"))["environment"]
    assert said == {
        "conf": "limit:3GiB,reserve:1GiB",
        "settings": {"limit": str(3 << 30), "reserve": str(1 << 30)},
        "mistake": None,
    }
    assert "\nFLAGSTONE_CONF: limit:3GiB\n" in info("limit:3GiB")
    assert "\nFLAGSTONE_CONF: not set\n" in info("")
    assert json.loads(info("limti:3GiB", "--json"))["environment"]["settings"] == {}
    assert '\nFLAGSTONE_CONF: configuration key "limti"' in info("limti:3GiB")


def test_replay(report, cli):
    result = report("replay", TRACE, "--passes", 3)
    assert result["trace"] == TRACE.name
    assert (result["backend"], result["allocator"], result["passes"]) == ("sim", "flagstone", 3)
    assert result["allocations"] > 1000
    assert result["errors"] == 0
    assert result["first_error"] is None
    assert 0.85 < result["utilisation"] <= 1
    assert result["utilisation"] == pytest.approx(result["peak_active_bytes"] / result["peak_reserved_bytes"])
    assert result["peak_live_bytes"] <= result["peak_active_bytes"]
    assert result["driver_calls"]["cuMemCreate"] > 0
    assert result["driver_calls_last_pass"].get("cuMemCreate", 0) == 0, "the third pass finds what it needs"
    assert result["driver_time_us"] > 0
    assert result["price_source"] == flagstone._core.simulated_prices()["source"]
    assert result["ns_per_op"] > 0
    text = cli("replay", TRACE, "--passes", 3).stdout
    assert text.endswith(f"times in the driver: {result['price_source']}\n")
    assert f"{result['utilisation']:.3f}" in text
    assert "cuMemCreate" in text


def test_replay_with_settings(report):
    result = report("replay", TRACE, "--threads", 3, "--lag", 0, "--conf", "magazine:0", "--conf", "growth:64MiB")
    assert result["errors"] == 0


def test_a_replay_that_runs_out_of_memory_fails_after_its_report(cli):
    ran = cli("replay", TRACE, "--conf", "limit:64MiB", "--json", status=1)
    result = json.loads(ran.stdout)
    assert result["errors"] > 0
    assert result["first_error"] in ran.stderr


def test_files_that_are_no_traces(cli, tmp_path):
    ran = cli("replay", tmp_path / "absent.csv", status=1)
    assert ran.stderr == f"flagstone: {tmp_path / 'absent.csv'}: No such file or directory\n"
    assert cli("replay", tmp_path, status=1).stderr == f"flagstone: {tmp_path}: Is a directory\n"
    ran = cli("replay", write(tmp_path / "notes.txt", "nothing of the kind\n"), status=1)
    assert "notes.txt" in ran.stderr
    for known in ("event CSV", "lifetimes CSV", "RMM log", "torch memory snapshot"):
        assert known in ran.stderr


def test_a_damaged_line_is_named(cli, tmp_path):
    trace = write(tmp_path / "trace.csv", "op,id,size,stream\na,1,512,0\na,2,many,0\nf,1,512,0\n")
    ran = cli("replay", trace, status=1)
    assert "trace.csv: line 3" in ran.stderr
    assert ran.stdout == ""


def test_traces_that_cannot_be_read_are_typed_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        flagstone._core.Trace(tmp_path / "absent.csv")
    with pytest.raises(flagstone.TraceError) as caught:
        flagstone._core.Trace(write(tmp_path / "notes.txt", "nothing of the kind\n"))
    assert caught.value.file == "notes.txt"


def test_traces_say_what_they_hold():
    example, file = flagstone._core.Trace.example(), flagstone._core.Trace(TRACE)
    assert (example.name, len(example), example.blocks) == (file.name, len(file), file.blocks)
    assert (example.format, example.streams) == ("event CSV", 1)
    assert len(example) > example.blocks > 1000
    with pytest.raises(ValueError, match="torch-native"):
        flagstone._core.model(example, "jemalloc")
    with pytest.raises(ValueError, match="-1"):
        flagstone._core.replay(example, lag_ms=-1)


def test_what_progress_raises_is_raised():
    class Stop(Exception):
        pass

    def progress(done, of):
        assert 0 < done <= of
        raise Stop

    with pytest.raises(Stop):
        flagstone._core.replay(flagstone._core.Trace.example(), progress=progress)


def test_demo(report, cli):
    result = report("demo")
    assert result["simulated"] is True
    rows = {row["allocator"]: row for row in result["rows"]}
    assert set(rows) == {"cudaMalloc", "torch-native", "torch-expandable", "flagstone"}
    assert rows["flagstone"]["errors"] == 0
    assert rows["flagstone"]["driver_time_us"] < rows["cudaMalloc"]["driver_time_us"]
    assert rows["flagstone"]["utilisation"] > rows["torch-native"]["utilisation"]
    text = cli("demo").stdout
    assert text.startswith("SIMULATED")
    assert all(f"{row['utilisation']:.3f}" in text for row in rows.values())
    assert report("demo", TRACE)["rows"][0]["allocations"] == rows["cudaMalloc"]["allocations"]


def test_wrong_usage_says_what_is_missing_and_what_was_given(cli):
    assert "required: NAME;" in cli("bench", status=2).stderr
    assert "required: SCRIPT;" in cli("run", status=2).stderr
    assert "'two' is not a number from 1 on" in cli("replay", TRACE, "--passes", "two", status=2).stderr


def test_a_bench_that_cannot_have_its_memory_says_so_in_a_line(cli):
    small = {**os.environ, "FLAGSTONE_CONF": "limit:2MiB"}
    ran = cli("bench", "latency", "--quick", "--backend", "sim", status=1, env=small)
    assert ran.stdout == ""


@pytest.mark.skipif(flagstone._core.devices()[0]["backend"] == "cuda", reason="there is a CUDA device here")
@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_without_its_device_says_why(cli, name):
    assert "CUDA" in cli("bench", name, "--quick", "--backend", "cuda", status=1).stderr


@pytest.mark.parametrize("name", BENCHES)
def test_bench(report, name):
    result = report("bench", name, "--quick", "--backend", "sim")
    assert result["bench"] == name
    assert result["machine"]["cores"] == os.cpu_count()
    assert result["machine"]["backend"] == "sim"
    assert result["rows"]
    for row in result["rows"]:
        assert row["allocator"] in ("flagstone", "torch-native", "none")
        assert row["case"]
        assert row["threads"] >= 1
        unit = {"rmm-random": "step", "producer-consumer": "block"}.get(name, "pair")
        assert row[f"ns_per_{unit}"] > 0
    if name == "history":
        assert [row["case"] for row in result["rows"]] == ["none is recorded", "recorded", "recorded with stacks"]
        assert all(row["ns_per_python_call"] >= 0 for row in result["rows"])
    if name == "rmm-random":
        assert {row["failures"] for row in result["rows"]} == {0}
    if name == "producer-consumer":
        ours = result["rows"][0]
        assert ours["peak_reserved_bytes_first"] <= ours["peak_reserved_bytes"]
        # As many as are on their way between the threads, and not one more for each that was freed.
        assert ours["peak_reserved_bytes"] < ours["blocks"] * (4 << 10) / 4
        assert ours["driver_takes"] < ours["blocks"] / 100
        assert "none" in {row["allocator"] for row in result["rows"]}, "the handing over alone"
    if name == "threads":
        assert any(row["threads"] == 4 and "a shared table" in row["case"] for row in result["rows"])
        ones = {(row["allocator"], row["case"]): row for row in result["rows"] if row["threads"] == 1}
        for row in (row for row in result["rows"] if "scaling" in row):
            one = ones[row["allocator"], row["case"]]
            assert row["scaling"] == pytest.approx(one["ns_per_pair"] / row["ns_per_pair"], rel=0.02)
            assert row["scaling_low"] <= row["scaling"] <= row["scaling_high"]
            assert ("to_two_threads" in row) == (row["threads"] > 2)


def test_timing_loops_refuse_what_they_cannot_call():
    functions = flagstone._core.c_functions()
    with pytest.raises(ValueError, match="address is 0"):
        flagstone._core.time_pairs((functions["alloc"], 0), 512, 10)
    flagstone._core.configure("sim")
    with pytest.raises(MemoryError):
        flagstone._core.time_pairs((functions["alloc"], functions["free"]), 1 << 60, 10)


def test_a_timing_loop_binds_no_thread_but_its_own():
    functions = flagstone._core.c_functions()
    flagstone._core.configure("sim")
    processors = os.sched_getaffinity(0)
    assert flagstone._core.time_pairs((functions["alloc"], functions["free"]), 512, 10, threads=3) > 0
    assert os.sched_getaffinity(0) == processors


def test_a_reader_that_goes_away_is_no_error():
    read, written = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "flagstone", "info"]
    ran = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, text=True, timeout=50, check=False)
    os.close(written)
    assert (
        ran.returncode,
        ran.stderr.replace("flagstone: a debug build, many times slower than a release build\n", ""),
    ) == (1, "")


def test_progress_is_shown_on_a_terminal_only(cli):
    assert cli("demo").stderr == ""


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_benches_beside_torch_say_that_it_is_missing(cli):
    ran = cli("bench", "producer-consumer", "--quick", "--backend", "sim", "--json")
    assert "without torch's own allocator: torch is not installed" in ran.stderr
    assert {row["allocator"] for row in json.loads(ran.stdout)["rows"]} == {"flagstone", "none"}
    assert "torch is not installed" in cli("bench", "dataloader", "--quick", "--backend", "sim", status=1).stderr
