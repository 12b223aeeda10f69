"""Replays three generated traces on torch's own allocators and on flagstone under torch: what each holds."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

GENERATE = Path(__file__).resolve().parents[2] / "benches/traces/generate.py"
TRACES = {"variable-length": 5, "comb": 4, "prefetch": 12}
"""Scenarios of generate.py, and how often the pattern repeats: all of them fit into 10 GiB, and are done in seconds."""

BENCH = [sys.executable, "-m", "flagstone", "bench", "fragmentation"]
OPTIONS = ["--backend", "cuda", "--passes", "2", "--json"]
KEYS = ("allocator", "peak_live_bytes", "peak_reserved_bytes", "utilisation", "passes", "errors", "first_error")


def main() -> int:
    """Replay one trace after the other, and keep the rows of each. Return 1 where a request failed."""
    with tempfile.TemporaryDirectory() as folder:
        for name, steps in TRACES.items():
            file = Path(folder) / f"{name}.csv"
            generate = [sys.executable, GENERATE, name, file, "--steps", str(steps)]
            subprocess.run(generate, stdout=subprocess.DEVNULL, check=True)
            ran = subprocess.run([*BENCH, file, *OPTIONS], stdout=subprocess.PIPE, text=True, check=False)
            if not ran.stdout:
                return ran.returncode
            rows = json.loads(ran.stdout)["rows"]
            print(json.dumps({name: [{key: row[key] for key in KEYS} for row in rows]}), flush=True)
            if ran.returncode:
                return ran.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
