"""Files from strangers cost bounded time and memory, and run nothing; sizes and pointers from C may be anything."""

import gzip
import pickle
import resource
import struct
import subprocess
import sys

import pytest

MEMORY = 3 << 30
"""Address space that a process gets, in bytes: several times what the command itself needs."""

SECONDS = 40


def command(*arguments):
    """Run the command line with bounded memory and time."""

    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    return subprocess.run(
        [sys.executable, "-m", "flagstone", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=bound,
        check=False,
    )


@pytest.fixture(params=["replay", "report"])
def refuses(request, tmp_path):
    """Run a command on a file, which must be refused with one line."""

    def run(path):
        out = ["-o", tmp_path / "page.html"] if request.param == "report" else []
        ran = command(request.param, path, *out)
        assert ran.returncode == 1, (ran.returncode, ran.stdout[-300:], ran.stderr[-300:])
        assert ran.stdout == ""
        assert ran.stderr.count("\n") == 1, ran.stderr[-300:]
        return ran.stderr

    return run


def snapshot(**parts):
    """Return a snapshot with one event."""
    event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
    return {"segments": [], "device_traces": [[event]], **parts}


def test_a_bomb_of_zeros(tmp_path, refuses):
    path = tmp_path / "bomb.csv.gz"
    block = gzip.compress(b"\0" * (64 << 20))
    path.write_bytes(block * 40)
    assert "bomb.csv.gz" in refuses(path)


def test_a_bomb_of_lines(tmp_path, refuses):
    path = tmp_path / "bomb.csv.gz"
    lines = gzip.compress(b"\n" * (64 << 20))
    path.write_bytes(gzip.compress(b"op,id,size\n") + lines * 40)
    assert "bomb.csv.gz" in refuses(path)


def test_a_bomb_within_a_bomb(tmp_path, refuses):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"\0" * (256 << 20)) * 10))
    refuses(path)


def test_a_pickle_that_is_deep(tmp_path, refuses):
    depth = 5_000_000
    path = tmp_path / "deep.pickle"
    path.write_bytes(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".")
    refuses(path)


def test_a_pickle_that_doubles(tmp_path, refuses):
    # Each list holds the one before twice: 2^200 values if they were copied.
    path = tmp_path / "laughs.pickle"
    body = b"](K\x01K\x01e\x94" + b"".join(b"](h%ch%ce\x94" % (place, place) for place in range(200))
    path.write_bytes(b"\x80\x04" + body + b".")
    refuses(path)


@pytest.mark.parametrize(
    "program",
    [
        b"X\xff\xff\xff\xff",
        b"\x8d" + struct.pack("<Q", 2**63 - 1),
        b"\x8e" + struct.pack("<Q", 2**64 - 1),
        b"\x96" + struct.pack("<Q", 1 << 40),
        b"\x8b\xff\xff\xff\x7f",
        b"Nr\xff\xff\xff\xff.",
        b"\x95" + struct.pack("<Q", 2**64 - 1) + b"N.",
    ],
    ids=["text", "text8", "bytes8", "bytearray8", "long4", "memo", "frame"],
)
def test_counts_that_are_not_there(tmp_path, refuses, program):
    path = tmp_path / "counts.pickle"
    path.write_bytes(b"\x80\x04" + program)
    refuses(path)


class Runs:
    """Would run code when it is unpickled."""

    def __reduce__(self):
        return print, ("ran",)


def test_a_pickle_that_would_run_something(tmp_path, refuses):
    path = tmp_path / "runs.pickle"
    path.write_bytes(pickle.dumps(snapshot(extra=Runs()), protocol=4))
    refuses(path)


def test_frames_and_names_that_are_shared_are_shown_in_bounded_space(tmp_path):
    frames = [{"name": "n" * 1_000_000, "filename": "f" * 1_000_000, "line": 1}] * 100_000
    event = {"action": "alloc", "size": 512, "stream": 0, "frames": frames}
    events = [{**event, "addr": 4096 + 512 * number} for number in range(100_000)]
    path = tmp_path / "shared.pickle"
    path.write_bytes(pickle.dumps(snapshot(device_traces=[events]), protocol=4))
    page = tmp_path / "page.html"
    ran = command("report", path, "-o", page)
    assert ran.returncode == 0, ran.stderr[-300:]
    assert page.stat().st_size < 64 << 20


EDGES = [2**63 - 1, 2**63, 2**63 + 511, 2**64 - 1, 2**64 - 511, 2**64 - 512, 2**48, 2**41]


def test_sizes_and_pointers_at_the_c_functions_may_be_anything(child):
    ran = child(
        "import ctypes\n"
        "from flagstone import _core\n"
        "_core.configure('sim', 'limit:64MiB')\n"
        "pool = _core.process_pool()\n"
        "size, pointer = ctypes.c_size_t, ctypes.c_void_p\n"
        "def function(name, result, *arguments):\n"
        "    return ctypes.CFUNCTYPE(result, *arguments)(_core.c_functions()[name])\n"
        "alloc = function('alloc', pointer, size, ctypes.c_int, pointer)\n"
        "free = function('free', None, pointer, size, ctypes.c_int, pointer)\n"
        "base = function('base_alloc', pointer, pointer, ctypes.POINTER(size))\n"
        "record = function('record_stream', None, pointer, pointer)\n"
        "kept = alloc(1000, 0, None)\n"
        f"for edge in {EDGES}:\n"
        "    assert alloc(edge, 0, None) is None, edge\n"
        "    assert _core.last_error() is not None\n"
        "    free(edge, edge, 0, None)\n"
        "    free(edge, 0, -1, edge)\n"
        "    record(edge, None)\n"
        "    wide = size(7)\n"
        "    base(edge, ctypes.byref(wide))\n"
        "    for device in (-1, 64, 2**31 - 1, -2**31):\n"
        "        assert alloc(8, device, None) is None\n"
        "free(kept, 2**64 - 1, 0, None)\n"
        "stats = pool.stats()\n"
        "print(stats.live_blocks, stats.wrong_size_free_count, stats.reserved_bytes <= 64 << 20)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0 1 True\n", "")
