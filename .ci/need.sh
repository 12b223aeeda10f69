#!/bin/sh
# Checks that a tool is here and new enough, or says in one line what to install.
#
#   need.sh python   prints the path of the first Python that will do ($PYTHON first, where it is set)
#   need.sh cargo    prints nothing
set -eu

here=$(dirname "$0")
say() { printf 'flagstone: %s\n' "$1" >&2; exit 1; }

# Whether version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

need_python() {
    least=$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' "$here/../pyproject.toml")
    seen=
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        path=$(command -v "$name") || continue
        version=$("$path" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
        if ! at_least "$version" "$least"; then
            seen="$name is $version"
        elif ! "$path" -c 'import ensurepip, venv' 2>/dev/null; then
            seen="$name $version has no venv module (Debian, Ubuntu: apt install python3-venv)"
        else
            "$path" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    say "needs Python $least or newer with venv; ${seen:-found none}. Install it from your system's packages or python.org."
}

need_cargo() {
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
    command -v cargo >/dev/null || say "needs Rust $least or newer; found no cargo. Install it from https://rustup.rs."
    version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2)
    at_least "${version:-0}" "$least" ||
        say "needs Rust $least or newer; rustc is ${version:-missing}. Run: rustup update stable"
    command -v cc >/dev/null || say "needs a C compiler to link with; found no cc. Debian, Ubuntu: apt install gcc libc6-dev"
}

case ${1:-} in
    python) need_python ;;
    cargo) need_cargo ;;
    *) say "usage: need.sh python|cargo" ;;
esac
