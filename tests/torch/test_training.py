"""An ordinary training script: the same losses whoever gives out the memory, and all memory from where it should be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import simcuda

pytestmark = [pytest.mark.process(install=False, timeout=150), pytest.mark.timeout(180)]

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "train.py"
WAYS = {
    "native": [],
    "swap": ["-m", "flagstone", "run"],
    "mempool": [str(FOLDER / "in_mempool.py")],
}


def start(counts: Path, way: list[str], script: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the script, with kernels and copies that take their time. Its counts go to a file."""
    slow = {"SIMCUDA_TIMING": "2000,40000000", "SIMCUDA_COUNTS": str(counts), "OMP_NUM_THREADS": "1"}
    environment = {**simcuda.environment(kernels=True), **slow}
    command = [sys.executable, *way, str(script), "--steps", "8", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(process: subprocess.Popen[str]) -> list[dict[str, float]]:
    """Return what it printed, once it has ended as it should: the simulation found nothing to say."""
    printed, said = process.communicate(timeout=140)
    assert process.returncode == 0, said
    assert said == "", said
    return [json.loads(line) for line in printed.splitlines()]


def test_the_losses_are_the_same_and_the_memory_is_flagstones(tmp_path):
    folder = Path(tmp_path)
    started = {way: start(folder / way, command, SCRIPT) for way, command in WAYS.items()}
    on_cpu = start(folder / "cpu", [], SCRIPT, "--device", "cpu")
    printed = {way: losses(process) for way, process in started.items()}
    assert printed["native"][0]["training"] > printed["native"][-1]["training"]
    assert printed["swap"] == printed["mempool"] == printed["native"]
    for line, expected in zip(printed["native"], losses(on_cpu), strict=True):
        assert line == pytest.approx(expected, rel=1e-3), "the simulated device computes what the CPU computes"

    counts = {way: simcuda.read_counts(folder / way) for way in WAYS}
    takers = {way: simcuda.takers(counts[way]) for way in WAYS}
    assert takers["native"] == {("cudaMalloc", "libc10_cuda.so"), ("cudaHostAlloc", "libtorch_cuda.so")}
    assert takers["swap"] == {("cuMemCreate", "_core.abi3.so"), ("cudaHostAlloc", "libtorch_cuda.so")}
    assert takers["mempool"] >= takers["swap"], "of newer versions of torch, autograd's thread is outside the pool"
    for way in WAYS:
        assert [name for name in counts[way] if name.startswith("idle:")] == [], "every kernel has done its work"


def test_a_missing_wait_is_found(tmp_path):
    folder = Path(tmp_path)
    script = folder / "train.py"
    script.write_text(SCRIPT.read_text().replace("torch.cuda.current_stream().wait_stream(side)", "pass"))
    process = start(folder / "counts", WAYS["swap"], script)
    printed, said = process.communicate(timeout=140)
    assert "unordered work" in said
    assert printed != "", said
