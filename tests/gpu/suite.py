"""Runs PyTorch's tests of the swap and of MemPool on the device, as far as they need no control of it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "torch"
FILES = ("allocation", "streams", "graphs", "mempool", "stats", "install")


def main() -> int:
    """Run the tests and count them as they come; name those that fail."""
    files = [str(TESTS / f"test_{name}.py") for name in FILES]
    options = ["-v", "--no-header", "--tb=short", "-p", "pytest_timeout", "-o", "filterwarnings=default"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    # Other plug-ins that a machine happens to have are no part of this.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    counts: dict[str, int] = {"PASSED": 0, "SKIPPED": 0}
    failed: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        for line in running.stdout:
            print(line, end="")
            found = re.search(r"::(\S+?(?:\[.*\])?) (PASSED|SKIPPED|FAILED|ERROR)\b", line)
            if not found:
                continue
            if found[2] in counts:
                counts[found[2]] += 1
            else:
                failed.append(found[1])
            print(json.dumps({"passed": counts["PASSED"], "skipped": counts["SKIPPED"], "failed": failed}), flush=True)
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
