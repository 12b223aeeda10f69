#!/bin/sh
# Checks that the extension exports the functions of exports.txt and nothing else, and links no CUDA library.
#
#   exports.sh PYTHON   where PYTHON has flagstone
set -eu

here=$(dirname "$0")
extension=$("$1" -c 'import flagstone._core; print(flagstone._core.__file__)')

nm --dynamic --defined-only "$extension" | awk '{ print $3 }' | LC_ALL=C sort | diff -u "$here/exports.txt" - || {
    echo "$extension: exported symbols are not those of .ci/exports.txt (- missing, + unexpected)" >&2
    exit 1
}
if readelf --dynamic "$extension" | grep NEEDED | grep -E 'cuda|nvidia|libpython'; then
    echo "$extension: links a library that a machine without it could not load" >&2
    exit 1
fi
echo "exports: $(wc -l <"$here/exports.txt") symbols as listed, no CUDA library linked"
