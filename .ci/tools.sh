#!/bin/sh
# Installs what Debian's packages can add; anything else is said by the part that needs it.
set -eu
cd "$(dirname "$0")/.."

missing=
for tool in cc:gcc make:make nm:binutils git:git valgrind:valgrind; do
    command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool##*:}"
done
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "install:$missing"; exit 1; }
    apt-get -qq update
    # One name a word.
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes $missing libc6-dev
fi
# The tests of `flagstone report` need a browser. Where it cannot be had they are skipped, and say so.
if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get -qq update &&
        DEBIAN_FRONTEND=noninteractive timeout 150 apt-get -qq install --yes --no-install-recommends chromium; } ||
        echo "no chromium: the tests that need it are skipped"
fi
.ci/need.sh cargo
.ci/need.sh python
rustc --version
cc --version | head -n 1
