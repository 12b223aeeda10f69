"""`flagstone.serve_stats`: this process's numbers for `flagstone top`, through a Unix socket of its user alone."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import socket
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flagstone import __version__
from flagstone._process import switched_on
from flagstone._watched import WatchedPools

if TYPE_CHECKING:
    from flagstone._core import BasePool

VARIABLE = "FLAGSTONE_SERVE_STATS"

_SECONDS = 1.0
"""How long a reader may take for its answer."""


def serve_stats(pools: Mapping[str, BasePool] | None = None) -> StatsServer:
    """Let `flagstone top` read the numbers of the process's pools, of the pinned memory of `flagstone.torch`, and of
    `pools`, by name. These are kept alive. A later call adds its pools.

    A thread waits on a Unix socket, in a folder that no other user can open, and reads the pools when somebody asks. No
    allocation is slower for it. In a forked child nothing is served. `OSError` where no such socket can be made,
    `TypeError` for what is no pool.
    """
    global _server
    watched = WatchedPools(pools)
    with _lock:
        if _server is None or _server.closed:
            _server = StatsServer(watched)
        else:
            _server.pools.add(pools or {})
        return _server


def serve_if_asked() -> None:
    """Serve where the environment says so. A program is not stopped for want of a socket: it is a `RuntimeWarning`."""
    if switched_on(VARIABLE, "1 to let flagstone top read this process's numbers, 0 or nothing not to"):
        try:
            serve_stats()
        except OSError as error:
            warnings.warn(f"{VARIABLE}: the numbers cannot be served: {error}", RuntimeWarning, stacklevel=2)


class StatsServer:
    """What answers `flagstone top`, until `close` or the end of the process. Made by `serve_stats`."""

    def __init__(self, pools: WatchedPools) -> None:
        """Begin to answer."""
        self.pools = pools
        self.path = _folder() / f"{os.getpid()}.sock"
        """The socket."""
        self.closed = False
        remove_stale(self.path.parent)
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._serve, name="flagstone-stats", daemon=True).start()

    def close(self) -> None:
        """Answer no more. The socket's file goes too."""
        self.closed = True
        # Wakes the thread, which closes it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)

    def _forget(self) -> None:
        """Leave everything to the process that this one was forked from."""
        self.closed = True
        self._socket.close()

    def _serve(self) -> None:
        while not self.closed:
            try:
                reader, _ = self._socket.accept()
            except OSError:
                if not self.closed:  # too many files are open, for instance
                    time.sleep(_SECONDS)
                continue
            # A reader that goes away, or takes too long, is its own loss.
            with reader, contextlib.suppress(OSError):
                reader.settimeout(_SECONDS)
                reader.sendall(json.dumps(self._answer()).encode())
        self._socket.close()

    def _answer(self) -> dict[str, object]:
        readings = self.pools.read()
        return {
            "flagstone": __version__,
            "pid": os.getpid(),
            "command": sys.orig_argv,
            "pools": [{"name": name, "backend": backend, **asdict(stats)} for name, backend, stats in readings],
        }


_lock = threading.Lock()
_server: StatsServer | None = None


def _close() -> None:
    if _server is not None and not _server.closed:
        _server.close()


def _forget() -> None:
    global _lock, _server
    _lock = threading.Lock()
    if _server is not None:
        _server._forget()
        _server = None


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)


def folders(user: int) -> Iterator[Path]:
    """Yield the folders that a user's sockets can be in, as far as they are that user's alone."""
    for folder in _candidates(user):
        with contextlib.suppress(OSError):
            if _is_private(folder, user):
                yield folder


def remove_stale(folder: Path) -> None:
    """Remove the sockets of processes that have ended without closing theirs."""
    for path in folder.glob("*.sock"):
        # A socket that is just being made refuses too: it is not stale while there is such a process.
        if path.stem == str(os.getpid()) or not Path("/proc", path.stem).exists():
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                    path.unlink(missing_ok=True)


def _candidates(user: int) -> Iterator[Path]:
    if user == os.getuid() and os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(os.environ["XDG_RUNTIME_DIR"], "flagstone")
    yield Path(f"/run/user/{user}/flagstone")
    yield Path(tempfile.gettempdir(), f"flagstone-{user}")


def _folder() -> Path:
    """Return the first folder that can be had, made if there is none."""
    user = os.getuid()
    failure: OSError | None = None
    for folder in _candidates(user):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_private(folder, user):
                return folder
            failure = PermissionError(f"{folder}: others can open it; its owner must be user {user} and its mode 700")
        except OSError as error:  # noqa: PERF203 (three folders at most)
            failure = error
    raise failure or FileNotFoundError


def _is_private(folder: Path, user: int) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077
