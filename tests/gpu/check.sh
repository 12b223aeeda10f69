#!/bin/sh
# Checks flagstone on the CUDA device of this machine, in six minutes at most. docs/gpu.md says what it shows and how to run it.
#
#   check.sh WHEEL [FOLDER [OPTIONS OF check.py]]   results go to FOLDER, results/ beside this file if not given
#
# $PYTHON (python3 if not set) has torch with CUDA, numpy and pytest. Nothing is fetched and nothing is compiled.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1")
folder=${2:-$here/results}
[ $# -lt 2 ] && shift || shift 2
python=${PYTHON:-python3}

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip --disable-pip-version-check --quiet install --no-index --no-deps --target "$site" "$wheel"
program=$(dirname "$wheel")/device-tests
[ ! -x "$program" ] || export FLAGSTONE_DEVICE_TESTS="$program"
PYTHONPATH=$site:$here/../python timeout --kill-after=2 355 "$python" "$here/check.py" "$folder" "$@"
