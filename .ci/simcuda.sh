#!/bin/sh
# Makes a virtual environment with the packages of a lock file and, in its folder simcuda, the simulated CUDA for them.
# Exit status 77, with the reason on standard output, where they cannot be had here.
#
#   simcuda.sh VENV LOCK   where LOCK is one of requirements/torch*.txt, or requirements/libraries.txt
set -eu
cd "$(dirname "$0")/.."

venv=$1
lock=$2
cannot() { echo "$1"; exit 77; }

[ "$(uname -sm)" = "Linux x86_64" ] || cannot "the simulated CUDA is for Linux on x86-64, this is $(uname -sm)"
[ -x "$venv/bin/python" ] || "$(.ci/need.sh python)" -m venv "$venv"
if ! cmp -s "$lock" "$venv/installed.txt"; then
    # The lock files name all that is needed: torch's own requirements are 3 GB of CUDA libraries.
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r "$lock" ||
        cannot "the packages of $lock cannot be installed (see above)"
    cp "$lock" "$venv/installed.txt"
fi

cargo build --locked --quiet --package simcuda
library=$(realpath "${CARGO_TARGET_DIR:-target}/debug/libsimcuda.so")
folder=$(realpath "$venv")/simcuda
mkdir -p "$folder"
for name in libcuda.so.1 libnvidia-ml.so.1; do ln -sf "$library" "$folder/$name"; done
if grep -q '^torch==' "$lock"; then
    "$venv/bin/python" tests/torch/standins.py "$folder"
else
    for name in libcudart.so.13 libcudart.so; do ln -sf "$library" "$folder/$name"; done
fi
