#!/usr/bin/env bash
# Instructions of the pool's operations, against their ceilings, and what the statistics add to them.
set -euo pipefail
cd "$(dirname "$0")/.."

uncounted=$(mktemp)
trap 'rm -f "$uncounted"' EXIT
echo "without statistics"
cargo bench --locked --quiet --features uncounted --bench instructions -- save "$uncounted"
echo "with them"
cargo bench --locked --quiet --bench instructions -- against "$uncounted"
