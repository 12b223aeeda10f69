"""Writes what the fuzzer begins with: python3 seeds.py FOLDER. Small files of every format, made here."""

import gzip
import pickle
import sys
from pathlib import Path

EVENTS = """op,id,size,stream,t_us,thread
a,0,1024,0,0,1
a,1,2097152,1,5,2
f,0,1024,0,9,1
f,1,2097152,1,12,1
"""
LIFETIMES = "id,lower,upper,size\n0,0,3,100\n1,1,2,4096\n"
RMM = (
    "Thread,Time,Action,Pointer,Size,Stream\n"
    "1,10:00:00:000001,allocate,0x7f00,1024,0\n"
    "1,10:00:00:000002,allocate failure,0x0,99,0\n"
    "1,10:00:00:000003,free,0x7f00,1024,0\n"
)
BLOCK = {"size": 1024, "requested_size": 1000, "state": "active_allocated", "address": 1 << 40, "frames": []}
FRAME = {"name": "f", "filename": "a.py", "line": 1}
SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 1 << 40,
            "total_size": 2 << 20,
            "stream": 0,
            "segment_type": "small",
            "blocks": [BLOCK],
        }
    ],
    "device_traces": [
        [
            {"action": "alloc", "addr": 1 << 40, "size": 1024, "stream": 0, "time_us": 1, "frames": [FRAME]},
            {"action": "free_requested", "addr": 1 << 40, "size": 1024, "stream": 0, "time_us": 2, "frames": []},
            {"action": "free_completed", "addr": 1 << 40, "size": 1024, "stream": 0, "time_us": 3, "frames": []},
        ]
    ],
    "allocator_settings": {"expandable_segments": False, "roundup": None, "ratio": 0.5},
}
SETTINGS = [
    "limit:0.5,growth:2MiB,magazine:0",
    "source:slabs,remap:off,dependencies:growth",
    "cache:1GiB,release_idle:10s,headroom:512MiB,wait:1s,reserve:64MiB",
]


def main(folder: Path) -> None:
    readers = {f"pickle{protocol}": pickle.dumps(SNAPSHOT, protocol) for protocol in range(6)}
    readers |= {name: text.encode() for name, text in [("events", EVENTS), ("lifetimes", LIFETIMES), ("rmm", RMM)]}
    readers["gzip"] = gzip.compress(EVENTS.encode())
    settings = {f"settings{number}": text.encode() for number, text in enumerate(SETTINGS)}
    for target, seeds in [("readers", readers), ("settings", settings)]:
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, contents in seeds.items():
            (folder / target / name).write_bytes(contents)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
