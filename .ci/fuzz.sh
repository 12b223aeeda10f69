#!/usr/bin/env bash
# .ci/fuzz.sh SECONDS: each fuzz target for so long, from seeds that are made here. What it finds stays in target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
.ci/need.sh cargo
out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
corpus=$out/corpus found=$out/found
mkdir -p "$found"
rm -rf "$corpus"

# As cargo-fuzz does, without its installation: coverage for the fuzzer, and the address sanitizer.
flags='--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags cargo build --locked --quiet --release --manifest-path tests/fuzz/Cargo.toml \
    --target "$host" --target-dir "$out"

"$(.ci/need.sh python)" tests/fuzz/seeds.py "$corpus"
failed=0
for target in operations readers settings; do
    printf '%s: ' "$target"
    mkdir -p "$corpus/$target"
    if "$out/$host/release/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=4096 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="$found/$target-" "$corpus/$target" >"$out/$target.log" 2>&1; then
        sed -n 's/^stat::number_of_executed_units: */inputs run: /p' "$out/$target.log"
    else
        failed=1
        echo "FAILED: see $found, and feed the file to $out/$host/release/$target"
        tail -n 40 "$out/$target.log"
    fi
done
exit $failed
