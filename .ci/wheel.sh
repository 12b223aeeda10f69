#!/bin/sh
# Installs the wheel into fresh environments of the oldest and the newest CPython found here, and runs the demo and the tests there.
# Then the same with what pip builds from the source distribution, but for the tests.
#
#   wheel.sh BIN   where the folder BIN has what `make wheel` needs
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { printf 'wheel SKIPPED: %s\n' "$1"; }

# Makes an empty environment of the interpreter $1 with the wheel $2, outside the checkout, and runs the command line there.
empty() {
    "$1" -m venv "$work/venv"
    pip="$work/venv/bin/python -m pip --disable-pip-version-check --quiet"
    $pip install --no-index "$2"
    for command in info demo; do
        (cd "$work" && venv/bin/flagstone "$command" --json) | "$1" -c 'import json, sys; json.load(sys.stdin)'
    done
}

# Installs the wheel $2 for the interpreter $1, and runs the command line and the tests with it.
try() {
    empty "$1" "$2"
    $pip install --require-hashes -r requirements/dev.txt
    "$work/venv/bin/pytest" --quiet
    printf 'wheel: %s passes the tests in %s\n' "$(basename "$2")" "$("$1" --version)"
    rm -rf "$work/venv"
}

# The CPythons from 3.10 on that are on the path or under pyenv, oldest first: VERSION PATH a line.
interpreters() {
    for python in python3 python3.10 python3.11 python3.12 python3.13 python3.14 "$HOME"/.pyenv/versions/3.*/bin/python; do
        "$python" -c '
import ensurepip, sys, sysconfig
if sys.version_info >= (3, 10) and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("%d.%02d" % sys.version_info[:2], sys.executable)
' 2>/dev/null || true
    done | sort -u -k 1,1
}

rm -rf dist
make --no-print-directory wheel
found=$(interpreters)
oldest=$(printf '%s\n' "$found" | head -n 1)
newest=$(printf '%s\n' "$found" | tail -n 1)
try "${oldest#* }" dist/*abi3*.whl
case $oldest in 3.10*) ;; *) skip "no CPython 3.10 here, which the wheel is for too" ;; esac
if [ "$oldest" = "$newest" ]; then skip "only one CPython here"; else try "${newest#* }" dist/*abi3*.whl; fi

if free=$(command -v python3.14t); then
    .ci/build-wheel.sh "$1" dist "$free"
    "$1/python" .ci/check_wheel.py dist/*cp314t*.whl
    try "$free" dist/*cp314t*.whl
else
    skip "no free-threaded CPython (python3.14t) here, so the wheel for it was neither built nor run"
fi

"$1/maturin" sdist --out dist
# pip gets maturin by itself, and builds in a folder of its own; the crates that are built already are used again.
CARGO_TARGET_DIR=$(realpath "${CARGO_TARGET_DIR:-target}") "${oldest#* }" -m pip --disable-pip-version-check --quiet \
    wheel --no-deps --no-cache-dir --wheel-dir "$work" dist/flagstone-*.tar.gz
empty "${oldest#* }" "$work"/flagstone-*.whl
printf 'wheel: %s gives a wheel by pip alone, %d bytes\n' "$(basename dist/flagstone-*.tar.gz)" "$(stat -c %s "$work"/flagstone-*.whl)"
