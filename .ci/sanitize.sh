#!/usr/bin/env bash
# .ci/sanitize.sh address|thread: the Rust tests under a sanitizer of the compiler. The one for addresses looks for leaks too.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=$1
.ci/need.sh cargo
flags="-Zsanitizer=$sanitizer"
case $sanitizer in
    # The standard library comes without the sanitizer, which for this one is another ABI.
    thread) flags="$flags -Cunsafe-allow-abi-mismatch=sanitizer" ;;
esac
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_PROFILE_DEV_DEBUG=line-tables-only
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
export TSAN_OPTIONS="suppressions=$PWD/.ci/thread-sanitizer.txt halt_on_error=1"
exec cargo test --locked --no-fail-fast --lib --tests --target "$(rustc -vV | sed -n 's/^host: //p')" \
    --target-dir "${CARGO_TARGET_DIR:-target}/$sanitizer"
