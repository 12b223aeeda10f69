#!/bin/sh
# Installs the wheel and torch into an empty environment outside the checkout, and trains there on the simulated CUDA: as it is, with
# `flagstone run`, and with FLAGSTONE_TORCH=1. All must print the same, and each must take all of its memory where it says. Then memory
# runs short: the error must come through torch's frames and the wheel's.
#
#   wheel-torch.sh
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel with torch: $1"; exit 1; }

reason=$(.ci/simcuda.sh "$work/venv" requirements/torch.txt) || {
    status=$?
    [ $status = 77 ] || exit $status
    echo "SKIPPED the wheel with torch: $reason"
    exit 0
}
rm -rf dist
make --no-print-directory wheel
"$work/venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-index dist/*abi3*.whl
cp -R tests/torch/train.py tests/torch/kernels "$work"
cd "$work"

# Runs the script under the simulated CUDA, with the CPU's kernels: its losses and the counts of its calls go to files.
train() {
    name=$1
    shift
    SIMCUDA_COUNTS=$work/$name.counts LD_LIBRARY_PATH=$work/venv/simcuda LD_PRELOAD=$work/venv/simcuda/libcudart.so \
        PYTHONPATH=$work/kernels OMP_NUM_THREADS=1 "$@" train.py --steps 8 >"$name.losses"
}
# Checks which functions took memory, and which libraries called them.
takers() {
    found=$(sed -n 's/^by:\(.*\) [0-9]*$/\1/p' "$1.counts" | LC_ALL=C sort | paste -s -d ' ')
    [ "$found" = "$2" ] || fail "$1: memory was taken by $found, not by $2"
}

train native venv/bin/python
train run venv/bin/flagstone run
train variable env FLAGSTONE_TORCH=1 venv/bin/python
for way in run variable; do cmp native.losses $way.losses || fail "$way: the losses differ"; done
takers native "cudaHostAlloc:libtorch_cuda.so cudaMalloc:libc10_cuda.so"
for way in run variable; do takers $way "cuMemCreate:_core.abi3.so cudaHostAlloc:libtorch_cuda.so"; done
cat >short.py <<'PYTHON'
import torch

for _ in range(2):
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        raise SystemExit("a TiB was given out")
    except torch.OutOfMemoryError as error:
        assert "asked for" in str(error), error
PYTHON
LD_LIBRARY_PATH=$work/venv/simcuda LD_PRELOAD=$work/venv/simcuda/libcudart.so venv/bin/flagstone run short.py ||
    fail "torch.OutOfMemoryError did not come through"
echo "wheel with torch: $(wc -l <run.losses) lines of losses as with torch's own allocator, and all device memory by flagstone"
