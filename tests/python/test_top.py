"""`flagstone top`, and what serves it: real processes, sockets and terminals."""

import json
import os
import pty
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import flagstone
from flagstone import _serve

MIB = 1 << 20
BUSY = """
import sys, time, flagstone
from flagstone import _core
_core.configure("sim", "limit:64MiB")
pool = _core.process_pool()
kept = pool.alloc(10 << 20)
print("ready", flush=True)
while True:
    pool.free_raw(pool.alloc_raw(1000))
    time.sleep(0.001)
"""


@pytest.fixture
def runtime(monkeypatch):
    """A runtime folder of its own; the path of a socket may not be long, as those of pytest are."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder, "flagstone")


@pytest.fixture
def start(runtime):
    """Start a process that serves its numbers."""
    started = []

    def run(code=BUSY, **environment):
        variables = {**os.environ, "FLAGSTONE_SERVE_STATS": "1", **environment}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", code], env=variables, **pipes)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


class Terminal:
    """A command in a terminal, and what it has drawn."""

    def __init__(self, *arguments, columns=120):
        self.screen, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
        command = [sys.executable, "-m", "flagstone", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.drawn = ""

    def wait_for(self, *texts, seconds=30):
        """Read until every one of the texts was drawn."""
        end = time.monotonic() + seconds
        while not all(text in self.drawn for text in texts):
            assert time.monotonic() < end, self.drawn
            if select.select([self.screen], [], [], 0.1)[0]:
                try:
                    self.drawn += os.read(self.screen, 1 << 16).decode()
                except OSError:  # the other end was closed
                    assert all(text in self.drawn for text in texts), self.drawn

    def end(self):
        """Return the exit status."""
        try:
            return self.process.wait(timeout=20)
        finally:
            os.close(self.screen)


def test_a_process_is_watched_until_it_ends(start):
    process = start()
    top = Terminal("top", process.pid, "--interval", "0.1")
    top.wait_for(f"process {process.pid}", "process:0 (sim)", "10.0 MiB", "64.0 MiB", "misses/s", "Ctrl-C ends this")
    process.kill()
    process.wait()
    top.wait_for("has ended; last:")
    assert top.end() == 0


def test_a_narrow_terminal_shows_every_number(start):
    process = start()
    top = Terminal("top", process.pid, "--interval", "0.1", columns=40)
    top.wait_for("process:0 (sim)", "64.0 MiB", "allocations/s", "failed  ")
    process.kill()
    process.wait()
    top.wait_for("has ended; last:")
    assert top.end() == 0


def test_a_watch_is_ended_by_ctrl_c(start):
    process = start()
    top = Terminal("top", process.pid, "--interval", "0.1")
    top.wait_for("Ctrl-C ends this")
    top.process.send_signal(signal.SIGINT)
    top.wait_for("is no longer watched; last:")
    assert top.end() == 0
    assert process.poll() is None


def test_a_process_that_stands_still_is_waited_for(start):
    process = start()
    top = Terminal("top", process.pid, "--interval", "0.1")
    top.wait_for("Ctrl-C ends this")
    process.send_signal(signal.SIGSTOP)
    top.wait_for("no answer for")
    top.drawn = ""
    process.send_signal(signal.SIGCONT)
    top.wait_for("allocations/s")
    top.process.send_signal(signal.SIGINT)
    assert top.end() == 0


def test_json_is_every_number_of_one_moment(start, child):
    process = start()
    ran = child("-m", "flagstone", "top", str(process.pid), "--json")
    answer = json.loads(ran.stdout)
    assert (answer["pid"], answer["flagstone"]) == (process.pid, flagstone.__version__)
    (pool,) = answer["pools"]
    fields = flagstone.stats.Stats.__dataclass_fields__.keys()
    assert pool.keys() == {"name", "backend", *fields}
    assert (pool["name"], pool["live_blocks"] >= 1, pool["limit"]) == ("process", True, 64 * MIB)


def test_without_a_terminal_it_is_shown_once(start, child):
    start()
    text = child("-m", "flagstone", "top").stdout
    assert text.splitlines()[0].split() == ["pool", "live", "held", "peak", "limit"]
    assert "process:0 (sim)" in text
    assert "[##" in text, "10 of 64 MiB"


def test_the_socket_is_its_users_alone_and_goes_with_the_process(start, runtime):
    process = start("import flagstone; print('ready', flush=True); input()")
    path = runtime / f"{process.pid}.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    process.terminate()
    process.wait()
    assert path.exists(), "killed: nothing is tidied"
    again = start("import flagstone; print('ready', flush=True)")
    again.wait()
    assert list(runtime.iterdir()) == [], "the next one removes what was left, and its own at its end"


def test_pools_by_name(runtime):
    pool = flagstone.Pool(backend="sim")
    server = flagstone.serve_stats({"mine": pool})
    try:
        assert flagstone.serve_stats({"other": flagstone.PinnedPool(backend="sim")}) is server
        pool.alloc_raw(MIB)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server.path))
            answer = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
        requested = {pool["name"]: pool["requested_bytes"] for pool in answer["pools"]}
        assert (requested["mine"], requested["other"]) == (MIB, 0)
        with pytest.raises(ValueError, match="process"):
            flagstone.serve_stats({"process": pool})
    finally:
        server.close()
    assert not server.path.exists()
    later = flagstone.serve_stats()
    assert later is not server
    later.close()


def test_what_is_no_pool_is_refused_before_a_thread_reads_it(runtime):
    with pytest.raises(TypeError, match="by name"):
        flagstone.serve_stats(flagstone.Pool(backend="sim"))
    with pytest.raises(TypeError, match="'mine' is no pool but int"):
        flagstone.serve_stats({"mine": 3})
    assert not list(runtime.parent.rglob("*.sock"))


def test_a_reader_that_goes_away_harms_nothing(runtime, child):
    server = flagstone.serve_stats()
    try:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(server.path))
        ran = child("-m", "flagstone", "top", str(os.getpid()), "--json")
        assert json.loads(ran.stdout)["pid"] == os.getpid()
    finally:
        server.close()


def test_a_forked_child_leaves_the_socket_to_its_parent(runtime, child):
    ran = child(
        "import os, socket, sys, warnings, flagstone\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # of a fork beside a thread\n"
        "server = flagstone.serve_stats()\n"
        "forked = os.fork()\n"
        "if forked == 0:\n"
        "    sys.exit(not server.closed)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "with socket.socket(socket.AF_UNIX) as connection:\n"
        "    connection.connect(str(server.path))\n"
        "    print(connection.recv(1 << 16))\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert '"pools": []' in ran.stdout
    assert list(runtime.iterdir()) == []


def test_a_folder_that_others_can_open_is_not_used(runtime):
    runtime.mkdir()
    runtime.chmod(0o755)
    server = flagstone.serve_stats()
    try:
        assert server.path.parent != runtime
        assert runtime not in _serve.folders(os.getuid())
    finally:
        server.close()


def test_what_cannot_be_watched(runtime, child):
    def fail(*arguments):
        ran = child("-m", "flagstone", "top", *arguments)
        assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
        return ran.stderr

    assert "no process serves its numbers; start it with FLAGSTONE_SERVE_STATS=1" in fail()
    assert f"process {os.getpid()} serves no numbers" in fail(str(os.getpid()))
    assert "there is no process 4000000000" in fail("4000000000")


def test_several_processes_have_to_be_told_apart(start, child):
    pids = sorted(str(start().pid) for _ in range(2))
    ran = child("-m", "flagstone", "top")
    assert ran.returncode == 1
    assert sorted(ran.stderr.strip().rpartition(": ")[2].split(", ")) == pids


def test_a_program_is_not_stopped_for_want_of_a_socket(monkeypatch):
    monkeypatch.setenv("FLAGSTONE_SERVE_STATS", "1")
    monkeypatch.setattr(_serve, "_candidates", lambda user: [Path("/proc/flagstone")])
    with pytest.warns(RuntimeWarning, match="the numbers cannot be served: .*/proc/flagstone"):
        _serve.serve_if_asked()


def test_a_value_that_means_nothing_is_refused(child):
    ran = child("import flagstone", env={**os.environ, "FLAGSTONE_SERVE_STATS": "yes"})
    assert ran.returncode == 1
    assert "FLAGSTONE_SERVE_STATS: 'yes' is not allowed; allowed: 1 to let flagstone top" in ran.stderr
