"""Runs one of flagstone's benchmarks on the device.

python bench.py NAME
"""

import json
import subprocess
import sys


def main() -> int:
    """Run it and keep its rows; a benchmark that this build lacks cannot be run."""
    name = sys.argv[1]
    command = [sys.executable, "-m", "flagstone", "bench", name, "--quick", "--backend", "cuda", "--json"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode == 2:
        print(f"this flagstone has no benchmark {name}")
        return 77
    if ran.returncode:
        return ran.returncode
    rows = json.loads(ran.stdout)["rows"]
    print(json.dumps({"rows": rows}))
    return 1 if any(row.get("wrong_batches") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
