#!/bin/sh
# Builds a wheel for manylinux_2_28 without a container: zig links against that glibc, however new the one here is.
#
#   build-wheel.sh BIN OUT [INTERPRETER]   where the folder BIN has maturin and ziglang, and the interpreter that is used otherwise
set -eu
cd "$(dirname "$0")/.."

bin=$(realpath "$1")
# zig would link an unwinder of its own, which torch.OutOfMemoryError on its way from torch's C++ through our frames does not survive.
# The process's one comes first, then; it is newer than the glibc that is linked against, and may ask for more than that has.
unwinder=$(cc -print-file-name=libgcc_s.so.1)
[ -e "$unwinder" ] || { echo "cc knows no libgcc_s.so.1; Debian, Ubuntu: apt install libgcc-s1"; exit 1; }
PATH=$bin:$PATH exec maturin build --release --locked --zig --compatibility manylinux_2_28 \
    --interpreter "${3:-$bin/python}" --out "$2" \
    -- -C "link-arg=$unwinder" -C link-arg=-Wl,--allow-shlib-undefined
