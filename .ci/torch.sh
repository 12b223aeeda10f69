#!/bin/sh
# Runs the tests with the real CUDA build of torch and the simulated CUDA. Where torch cannot be had they are skipped, and it says so.
#
#   torch.sh VENV LOCK [PYTEST ARGUMENTS]   as for simcuda.sh; flagstone's extension must be built in python/flagstone
set -eu
cd "$(dirname "$0")/.."

venv=$1
lock=$2
shift 2
reason=$(.ci/simcuda.sh "$venv" "$lock") || {
    status=$?
    [ $status = 77 ] || exit $status
    echo "SKIPPED tests/torch: $reason"
    exit 0
}
folder=$(realpath "$venv")/simcuda
SIMCUDA_FOLDER=$folder LD_LIBRARY_PATH=$folder PYTHONPATH=python:tests/python exec "$venv/bin/python" -m pytest tests/torch "$@"
