#!/bin/sh
# Known vulnerabilities of the locked Python dependencies, where their list can be fetched. What the list does not know is named.
#
#   audit.sh PYTHON VENV   pip-audit is installed into VENV, from requirements/audit.txt
set -eu

python=$1
venv=$2
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/audit.txt
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for lock in build dev; do
    status=0
    timeout 120 "$venv/bin/pip-audit" --disable-pip --require-hashes --progress-spinner off \
        -r "requirements/$lock.txt" >"$log" 2>&1 || status=$?
    if grep -q 'Found .* known vulnerabilit' "$log"; then
        cat "$log"
        exit 1
    fi
    if [ $status != 0 ]; then
        echo "requirements/$lock.txt: vulnerabilities SKIPPED: pypi.org's list cannot be reached from here"
        tail -1 "$log"
        continue
    fi
    unknown=$(grep -c 'could not be audited' "$log" || true)
    all=$(grep -c '==' "requirements/$lock.txt")
    echo "requirements/$lock.txt: no known vulnerability; $unknown of $all packages SKIPPED, which the index does not know"
done
