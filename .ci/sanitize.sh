#!/usr/bin/env bash
# sanitize.sh address | thread: the Rust tests under one of the compiler's sanitizers. That for addresses looks for leaks at each
# process's end too; that for threads sees the tests in which threads meet.
# sanitize.sh extension PYTHON: the extension under the sanitizer for addresses, by its Python tests, on simulated devices and then with the
# code for real ones on the simulated CUDA.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/need.sh cargo
which=$1
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only
export RUSTFLAGS=-Zsanitizer=${which/extension/address}
out=${CARGO_TARGET_DIR:-$PWD/target}/$which
cargo() { command cargo "$1" --locked --target "$host" --target-dir "$out" "${@:2}"; }

case $which in
    address)
        ASAN_OPTIONS=detect_leaks=1 cargo test --no-fail-fast --lib --tests
        ;;
    thread)
        # The standard library comes without the sanitizer.
        RUSTFLAGS="$RUSTFLAGS -Cunsafe-allow-abi-mismatch=sanitizer"
        export TSAN_OPTIONS="suppressions=$PWD/.ci/tsan.supp"
        cargo test --lib -- thread:: metadata:: arena:: pool::
        cargo test --test stress
        ;;
    extension)
        cargo rustc --quiet --lib --crate-type cdylib --features python
        rm -rf "$out/package"
        mkdir "$out/package"
        cp -r python/flagstone "$out/package"
        cp "$out/$host/debug/libflagstone.so" "$out/package/flagstone/_core.abi3.so"
        # The simulated CUDA itself is built as it always is.
        env -u RUSTFLAGS -u RUSTC_BOOTSTRAP cargo build --locked --quiet --package simcuda --target-dir "$out"
        mkdir "$out/package/simcuda"
        cp "$out/debug/libsimcuda.so" "$out/package/simcuda/libcuda.so.1"
        # A library brings no sanitizer of its own: gcc's has the same interface. Leaks are the other run's: Python leaves much behind.
        export ASAN_OPTIONS=detect_leaks=0,verify_asan_link_order=0 PYTHONMALLOC=malloc PYTHONPATH=$out/package
        LD_PRELOAD=$(cc -print-file-name=libasan.so)
        export LD_PRELOAD
        cd tests/python
        "$2" -c "import flagstone, os; assert flagstone.__file__.startswith(os.environ['PYTHONPATH']), flagstone.__file__"
        "$2" -m pytest -p no:cacheprovider test_{bad_input,buffer,history,hooks,interop,pinned,pool,threads}.py
        # Tests touch the memory of their device.
        FLAGSTONE_TEST_BACKEND=cuda SIMCUDA_STRICT=0 LD_LIBRARY_PATH=$out/package/simcuda \
            "$2" -m pytest -p no:cacheprovider test_{bad_input,buffer,interop,pinned,pool,threads}.py
        ;;
esac
