#!/usr/bin/env bash
# sanitize.sh address | thread: the Rust tests under one of the compiler's sanitizers. That for addresses looks for leaks at each
# process's end too; that for threads sees the tests in which threads meet.
# sanitize.sh address | thread PYTHON: the extension under it, by its Python tests, on simulated devices and then with the code for real
# ones on the simulated CUDA. Of leaks those count that the extension allocated: Python leaves much of its own behind.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/need.sh cargo
which=$1 python=${2:-}
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only
export RUSTFLAGS=-Zsanitizer=$which
# Forked children begin threads too.
export TSAN_OPTIONS=suppressions=$PWD/.ci/tsan.supp,die_after_fork=0
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/$which
std=()
if [ "$which" = thread ]; then
    # Built with the sanitizer too, or it would not see what locks and shared pointers order.
    std=(-Zbuild-std)
    if ! [ -d "$(rustc --print sysroot)/lib/rustlib/src/rust" ] && ! rustup component add rust-src; then
        echo "sanitizer for threads SKIPPED: the sources of the standard library cannot be had here"
        exit 0
    fi
fi
cargo() { command cargo "$1" "${std[@]}" --locked --target "$host" --target-dir "$out" "${@:2}"; }

# Everything at once, for a few seconds.
soak() { cargo bench --profile dev --bench soak -- 15 checked; }

# A virtual environment with the packages of PYTHON's and the extension under the sanitizer. Its Python has the sanitizer in it: a
# library brings none of its own.
sanitized_python() {
    local folder=$out/python flags purelib base
    local get='import sysconfig; v = sysconfig.get_config_var'
    flags=$("$python" -c "$get; print('-L' + v('LIBDIR'), '-L' + v('LIBPL'), '-Wl,-rpath,' + v('LIBDIR'), '-lpython' + v('LDVERSION'), v('LIBS'))")
    purelib=$("$python" -c "$get; print(sysconfig.get_path('purelib'))")
    base=$("$python" -c "import os, sys; print(os.path.dirname(os.path.realpath(sys._base_executable)))")
    rm -rf "$folder"
    mkdir -p "$folder/bin" "$folder/lib/$(basename "$(dirname "$purelib")")/site-packages"
    printf '%s\n' "$out/package" "$purelib" >"$(echo "$folder"/lib/*/site-packages)/packages.pth"
    printf 'home = %s\n' "$base" >"$folder/pyvenv.cfg"
    # shellcheck disable=SC2086
    cc -o "$folder/bin/python" -x c - -x none -Wl,--export-dynamic -Wl,--whole-archive \
        "$(rustc --print target-libdir)"/librustc-*_rt."${which:0:1}"san.a -Wl,--no-whole-archive $flags -lpthread -ldl -lm -lstdc++ <<'MAIN'
int Py_BytesMain(int, char **);
int main(int count, char **words) { return Py_BytesMain(count, words); }
/* For tests whose processes do not get our environment. */
const char *__asan_default_options(void) { return "detect_leaks=0"; }
MAIN
    python=$folder/bin/python
}

# The package with the extension under the sanitizer, and the simulated CUDA too: what its own locks order is not seen otherwise.
sanitized_package() {
    cargo rustc --quiet --lib --crate-type cdylib --features python
    rm -rf "$out/package"
    mkdir -p "$out/package/simcuda"
    cp -r python/flagstone "$out/package"
    cp "$out/$host/debug/libflagstone.so" "$out/package/flagstone/_core.abi3.so"
    cargo build --quiet --package simcuda
    cp "$out/$host/debug/libsimcuda.so" "$out/package/simcuda/libcuda.so.1"
}

case $which${python:+-extension} in
    address)
        ASAN_OPTIONS=detect_leaks=1 cargo test --no-fail-fast --lib --tests
        soak
        ;;
    thread)
        cargo test --lib -- thread:: freelist:: metadata:: arena:: stream:: pages:: history:: pool:: registry:: replay::
        cargo test --no-fail-fast --test stress --test lifecycle --test history --test misuse --test ladder --test capture --test pools
        soak
        ;;
    *-extension)
        sanitized_package
        sanitized_python
        tests=(bad_input buffer history hooks interop pinned pool statistics threads)
        logs=$out/logs
        rm -rf "$logs"
        mkdir "$logs"
        # An error ends its process by a signal, so that Python's leaks need not.
        export ASAN_OPTIONS=detect_leaks=1,exitcode=0,abort_on_error=1,log_path=$logs/log PYTHONMALLOC=malloc
        export TSAN_OPTIONS=$TSAN_OPTIONS,log_path=$logs/log
        run() { "$python" -m pytest -p no:cacheprovider "${@/%/.py}" || failed=1; }
        failed=0
        cd tests/python
        "$python" -c 'import flagstone, sys; assert flagstone.__file__.startswith(sys.argv[1]), flagstone.__file__' "$out/package"
        run "${tests[@]/#/test_}"
        # Tests touch the memory of their device.
        export FLAGSTONE_TEST_BACKEND=cuda SIMCUDA_STRICT=0 LD_LIBRARY_PATH=$out/package/simcuda
        run test_{bad_input,buffer,interop,pinned,pool,threads}
        "$python" - "$logs" <<'REPORT' || failed=1
import pathlib, re, sys

# Paragraphs of the sanitizer: an error's, and of leaks those whose memory the extension asked for itself.
paragraphs = [text for log in pathlib.Path(sys.argv[1]).iterdir() for text in re.split(r"\n\n+", log.read_text())]
leaks = [text for text in paragraphs if text.lstrip().startswith(("Direct leak", "Indirect leak"))]
ours = [text for text in leaks if text.lstrip().startswith("Direct") and "_core" in (text.split("#1 ") + [""])[1].split("\n")[0]]
wrong = ours + [text for text in paragraphs if "ERROR: AddressSanitizer" in text or "WARNING: ThreadSanitizer" in text]
print(*wrong[:20], sep="\n\n")
print(f"{len(wrong)} errors and leaks of the extension; {len(leaks) - len(ours)} leaks are Python's")
sys.exit(bool(wrong))
REPORT
        exit $failed
        ;;
esac
