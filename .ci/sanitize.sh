#!/usr/bin/env bash
# The Rust tests under the compiler's sanitizer for addresses, which looks for leaks at each process's end too.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/need.sh cargo
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_PROFILE_DEV_DEBUG=line-tables-only
export ASAN_OPTIONS=detect_leaks=1
exec cargo test --locked --no-fail-fast --lib --tests --target "$(rustc -vV | sed -n 's/^host: //p')" \
    --target-dir "${CARGO_TARGET_DIR:-target}/address"
