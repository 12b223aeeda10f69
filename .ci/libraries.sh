#!/bin/sh
# Runs the tests with the real CuPy, Numba and cuda.core and the simulated CUDA. Where these cannot be had the tests are skipped, and it
# says so.
#
#   libraries.sh VENV [PYTEST ARGUMENTS]   VENV is made; flagstone's extension must be built in python/flagstone
set -eu
cd "$(dirname "$0")/.."

venv=$1
shift
reason=$(.ci/simcuda.sh "$venv" requirements/libraries.txt) || {
    status=$?
    [ $status = 77 ] || exit $status
    echo "SKIPPED tests/libraries: $reason"
    exit 0
}
folder=$(realpath "$venv")/simcuda
export SIMCUDA_FOLDER="$folder" LD_LIBRARY_PATH="$folder" PYTHONPATH=python:tests/python
LD_PRELOAD=$folder/libcuda.so.1 exec "$venv/bin/python" -m pytest tests/libraries "$@"
