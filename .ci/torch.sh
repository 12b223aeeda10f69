#!/bin/sh
# Runs the tests with the real CUDA build of torch and the simulated CUDA. Where torch cannot be had they are skipped, and it says so.
#
#   torch.sh VENV [PYTEST ARGUMENTS]   VENV is made; flagstone's extension must be built in python/flagstone
set -eu
cd "$(dirname "$0")/.."

venv=$1
shift
status=0
.ci/simcuda.sh "$venv" requirements/torch.txt || status=$?
case $status in
    0) ;;
    77) echo "SKIPPED tests/torch: see above"; exit 0 ;;
    *) exit "$status" ;;
esac

folder=$(realpath "$venv")/simcuda
SIMCUDA_FOLDER=$folder LD_LIBRARY_PATH=$folder PYTHONPATH=python exec "$venv/bin/python" -m pytest tests/torch "$@"
