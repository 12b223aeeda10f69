"""Runs the contract of pools, a compiled program beside the wheel: it needs no compiler on the machine with the GPU."""

import json
import os
import re
import subprocess
import sys

PROGRAM = "FLAGSTONE_DEVICE_TESTS"
"""Names the program; check.sh sets it."""


def main() -> int:
    """Run the tests one after the other, count them as they come, and name those that fail."""
    program = os.environ.get(PROGRAM)
    if not program:
        print("the program device-tests is not beside the wheel: make gpu-kit builds both")
        return 77
    passed, failed = 0, []
    command = [program, "--test-threads=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout:
            print(line, end="")
            found = re.match(r"test (\S+) \.\.\. (\w+)", line)
            if found and found[2] == "ok":
                passed += 1
            elif found:
                failed.append(found[1])
            if found:
                print(json.dumps({"passed": passed, "failed": failed}), flush=True)
    if passed == 0:
        print("no test was run")
    return 0 if running.returncode == 0 and passed else 1


if __name__ == "__main__":
    sys.exit(main())
