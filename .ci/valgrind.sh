#!/usr/bin/env bash
# valgrind.sh PYTHON: random calls of the C functions, with every access to memory of the host watched by valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "flagstone: needs valgrind (Debian, Ubuntu: apt install valgrind)" >&2; exit 1; }
for seed in 1 2 3; do
    # malloc: Python's own allocator would hide what is read after its free.
    PYTHONPATH=python PYTHONMALLOC=malloc valgrind --quiet --error-exitcode=1 --num-callers=30 \
        --suppressions=.ci/valgrind.supp "$1" tests/python/hooks.py "$seed" 1500
done
echo "no wrong access"
