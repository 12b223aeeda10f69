#!/bin/sh
# Makes a virtual environment with torch and, in its folder simcuda, the simulated CUDA for it.
# Exit status 77, with the reason on standard output, where torch cannot be had here.
#
#   simcuda.sh VENV LOCK   where LOCK is requirements/torch.txt or another with a torch
set -eu
cd "$(dirname "$0")/.."

venv=$1
lock=$2
cannot() { echo "$1"; exit 77; }

[ "$(uname -sm)" = "Linux x86_64" ] || cannot "the simulated CUDA is for Linux on x86-64, this is $(uname -sm)"
[ -x "$venv/bin/python" ] || "$(.ci/need.sh python)" -m venv "$venv"
if ! cmp -s "$lock" "$venv/installed.txt"; then
    # Without its dependencies: the CUDA libraries are 3 GB.
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r "$lock" ||
        cannot "torch cannot be installed from $lock (see above)"
    cp "$lock" "$venv/installed.txt"
fi

cargo build --locked --quiet --package simcuda
library=$(realpath "${CARGO_TARGET_DIR:-target}/debug/libsimcuda.so")
folder=$(realpath "$venv")/simcuda
mkdir -p "$folder"
for name in libcuda.so.1 libnvidia-ml.so.1; do ln -sf "$library" "$folder/$name"; done
"$venv/bin/python" tests/torch/standins.py "$folder"
