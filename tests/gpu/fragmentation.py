"""Replays a recorded trace on the device, and says how much memory that took next to models of torch's allocator."""

import json
import sys

from flagstone import _core


def main() -> int:
    """Replay. Return 1 where a request failed."""
    trace = _core.Trace.example()
    replayed = _core.replay(trace, backend="cuda", passes=2)
    keys = ("peak_reserved_bytes", "utilisation", "driver_time_us", "ns_per_op", "errors", "first_error")
    print(json.dumps({"flagstone": {key: replayed[key] for key in keys}}), flush=True)
    for allocator in ("torch-native", "torch-expandable"):
        model = _core.model(trace, allocator, passes=2)
        print(json.dumps({f"{allocator} (model)": {key: model[key] for key in keys[:2]}}), flush=True)
    return 1 if replayed["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
