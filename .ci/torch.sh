#!/bin/sh
# Runs the tests with the real CUDA build of torch and the simulated CUDA. Where torch cannot be had they are skipped, and it says so.
#
#   torch.sh VENV [PYTEST ARGUMENTS]   VENV is made; flagstone's extension must be built in python/flagstone
set -eu
cd "$(dirname "$0")/.."

venv=$1
shift
skip() { echo "SKIPPED tests/torch: $1"; exit 0; }

[ "$(uname -sm)" = "Linux x86_64" ] || skip "the simulated CUDA is for Linux on x86-64, this is $(uname -sm)"
[ -x "$venv/bin/python" ] || "$(.ci/need.sh python)" -m venv "$venv"
if ! cmp -s requirements/torch.txt "$venv/installed.txt"; then
    # Without its dependencies: the CUDA libraries are 3 GB.
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r requirements/torch.txt ||
        skip "torch cannot be installed from requirements/torch.txt (see above)"
    cp requirements/torch.txt "$venv/installed.txt"
fi

cargo build --locked --quiet --package simcuda
library=$(realpath "${CARGO_TARGET_DIR:-target}/debug/libsimcuda.so")
folder=$(realpath "$venv")/simcuda
"$venv/bin/python" tests/torch/standins.py "$folder"
for name in libcuda.so.1 libnvidia-ml.so.1; do ln -sf "$library" "$folder/$name"; done

SIMCUDA_FOLDER=$folder LD_LIBRARY_PATH=$folder PYTHONPATH=python:tests/python exec "$venv/bin/python" -m pytest tests/torch "$@"
