#!/bin/sh
# Rehearses the check for GPU machines under the simulated CUDA, with the torch that they have. Where that cannot be had, it says so.
#
#   gpu.sh VENV KIT   VENV is made; KIT is the folder of `make gpu-kit`
set -eu
cd "$(dirname "$0")/.."

venv=$1
kit=$2
# The CPython of those machines, where it is here.
export PYTHON="${PYTHON:-python3.12 $(ls -d "$HOME"/.pyenv/versions/3.12.*/bin/python 2>/dev/null || true) python3}"
reason=$(.ci/simcuda.sh "$venv" requirements/torch-gpu.txt) || {
    status=$?
    [ $status = 77 ] || exit $status
    echo "SKIPPED the rehearsal of tests/gpu: $reason"
    exit 0
}
folder=$(realpath "$venv")/simcuda
rm -rf "$venv/results"
set -- tests/gpu/check.sh "$kit"/*.whl "$venv/results" --rehearsal
PYTHON=$venv/bin/python LD_LIBRARY_PATH=$folder LD_PRELOAD=$folder/libcudart.so exec "$@"
