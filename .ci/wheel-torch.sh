#!/bin/sh
# Installs the wheel and torch into an empty environment outside the checkout, and trains there on the simulated CUDA: with
# `flagstone run`, and without it. Both must print the same, and each must take all of its memory where it says.
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
cp -r tests/torch/train.py tests/torch/kernels "$work"
cd "$work"

# Runs a program under the simulated CUDA: its output and the counts of its calls go to files of this name.
simulated() {
    name=$1
    shift
    SIMCUDA_COUNTS=$work/$name.counts PYTHONPATH=$work/kernels LD_LIBRARY_PATH=$work/venv/simcuda \
        LD_PRELOAD=$work/venv/simcuda/libcuda.so.1 "$@" >"$name.output"
}
# How often a function was called.
calls() { awk -v name="$2" '$1 == name { count = $2 } END { print count + 0 }' "$1.counts"; }

simulated native venv/bin/python train.py --steps 8
simulated flagstone venv/bin/flagstone run train.py --steps 8
cmp native.output flagstone.output || fail "the losses differ"
for function in cudaMalloc cudaMallocAsync cudaMallocFromPoolAsync cuMemAlloc_v2; do
    [ "$(calls flagstone $function)" = 0 ] || fail "not all memory came from flagstone: $function was called"
done
[ "$(calls flagstone cuMemCreate)" -gt 0 ] || fail "flagstone took no memory"
[ "$(calls native cudaMalloc)" -gt 0 ] || fail "torch's own allocator took no memory: the counts do not see it"
echo "wheel with torch: $(calls native cudaMalloc) calls of cudaMalloc by torch's own allocator; with flagstone" \
    "none, and $(calls flagstone cuMemCreate) of cuMemCreate"
