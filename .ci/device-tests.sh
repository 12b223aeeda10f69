#!/bin/sh
# Builds the program that holds pools on a CUDA device to their contract, without what only a debugger needs.
#
#   device-tests.sh FILE
set -eu
cd "$(dirname "$0")/.."

built=$(cargo test --locked --quiet --no-run --test device --message-format=json |
    grep '"name":"device"' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
mkdir -p "$(dirname "$1")"
strip -o "$1" "$built"
