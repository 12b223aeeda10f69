"""Processes, interpreters and devices that come to an end, or begin anew, around pools."""

import itertools
import os

import pytest

import flagstone
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


@pytest.mark.parametrize("use", ["pool.stats()", "pool.snapshot()", "pool.history()", "refused()"])
def test_a_daemon_thread_may_be_anywhere_when_the_interpreter_ends(child, use):
    # The sooner the end, the more of them are within their first call. What it imports is imported before: CPython 3.11
    # crashes where threads wait for its import lock when it ends, whatever they import.
    for _ in range(6):
        ran = child(
            "import flagstone, flagstone.history, sys, threading\n"
            "sys.setswitchinterval(1e-6)\n"
            "pool = flagstone.Pool(backend='sim', limit='2MiB')\n"
            "def refused():\n"
            "    try:\n"
            "        pool.alloc(1 << 30)\n"
            "    except flagstone.OutOfMemoryError:\n"
            "        pass\n"
            "def work():\n"
            "    while True:\n"
            f"        {use}\n"
            "for _ in range(4):\n"
            "    threading.Thread(target=work, daemon=True).start()\n"
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on(child):
    pytest.importorskip("_xxsubinterpreters")
    ran = child(
        "import _xxsubinterpreters as interpreters\n"
        "def within():\n"
        "    try:\n"
        "        interpreters.run_string(interpreters.create(), 'import flagstone')\n"
        "    except interpreters.RunFailedError as error:\n"
        "        print(error)\n"
        "within()\n"
        "import flagstone\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "within()\n"
        "print(pool.alloc(5).nbytes)\n"
    )
    first, second, last = ran.stdout.splitlines()
    assert "ImportError" in first
    assert "sub-interpreter 1; use threads or processes" in first
    assert "sub-interpreter 2" in second
    assert (last, ran.stderr, ran.returncode) == ("5", "", 0)


def test_modules_may_be_loaded_anew(child):
    ran = child(
        "import importlib, sys\n"
        "import flagstone, flagstone.stats, flagstone.history\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "kept = pool.alloc(100)\n"
        "def use():\n"
        "    with flagstone.Pool(backend='sim').alloc(5):\n"
        "        pass\n"
        "    assert pool.stats().live_blocks == 1\n"
        "    assert pool.alloc(7).nbytes == 7\n"
        "    try:\n"
        "        pool.free_raw(12345)\n"
        "    except flagstone.InvalidPointerError:\n"
        "        pass\n"
        "use()\n"
        "for module in (flagstone, flagstone._core, flagstone.stats, flagstone.history):\n"
        "    importlib.reload(module)\n"
        "    use()\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'flagstone']:\n"
        "    del sys.modules[name]\n"
        "import flagstone\n"
        "use()\n"
        "assert isinstance(pool, flagstone.Pool)\n"
        "kept.free()\n"
        "print(pool.stats().live_blocks)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


def test_at_exit_everything_works_in_whatever_order(child):
    ran = child(
        "import atexit, flagstone\n"
        "atexit.register(lambda: use('registered first'))\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "pinned = flagstone.PinnedPool(backend='sim')\n"
        "kept = [pool.alloc(1000), pinned.alloc(1000)]\n"
        "def use(when):\n"
        "    with pool.alloc(3 << 20), pinned.alloc(10):\n"
        "        print(when, pool.stats().live_blocks)\n"
        "@atexit.register\n"
        "def last():\n"
        "    use('registered last')\n"
        "    del globals()['pinned'], kept[1]\n"
        "    globals()['pinned'] = flagstone.PinnedPool(backend='sim')\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "registered last 2\nregistered first 2\n", "")


def test_threads_may_hold_blocks_when_the_process_ends(child):
    ran = child(
        "import flagstone, threading\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "local, ready = threading.local(), threading.Barrier(5)\n"
        "def work():\n"
        "    local.blocks = [pool.alloc(size) for size in (10, 100_000, 5 << 20)]\n"
        "    ready.wait()\n"
        "    threading.Event().wait()\n"
        "for _ in range(4):\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "ready.wait()\n"
        "print(pool.stats().live_blocks)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "12\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_started_process_has_pools_of_its_own(tmp_path, child, method):
    script = tmp_path / "started.py"
    script.write_text(
        "import multiprocessing\n"
        "import flagstone\n"
        "def work(number):\n"
        "    pool = flagstone.Pool(backend='sim')\n"
        "    kept = [pool.alloc(1000) for _ in range(number)]\n"
        "    return pool.stats().live_blocks\n"
        "if __name__ == '__main__':\n"
        "    pool = flagstone.Pool(backend='sim')\n"
        "    kept = pool.alloc(1000)\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as processes:\n"
        "        print(processes.map(work, [1, 2, 3]), pool.stats().live_blocks)\n"
    )
    ran = child("-W", "default", str(script))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[1, 2, 3] 1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_was_forked_before_the_first_pool_has_pools(child):
    ran = child(
        "import os, flagstone\n"
        "if os.fork() == 0:\n"
        "    pool = flagstone.Pool(backend='sim')\n"
        "    with pool.alloc(1000):\n"
        "        os._exit(0 if pool.stats().live_blocks == 1 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "print(flagstone.Pool(backend='sim').alloc(5).nbytes)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "5\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_threads_allocate_hangs_nobody(child):
    ran = child(
        "import os, threading, flagstone\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "stop = threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set():\n"
        "        blocks = [pool.alloc(size) for size in (100, 50_000, 3 << 20)]\n"
        "        pool.trim()\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for thread in threads:\n"
        "    thread.start()\n"
        "block = pool.alloc(5)\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        for use in (lambda: pool.alloc(5), lambda: flagstone.Pool(backend='sim')):\n"
        "            try:\n"
        "                use()\n"
        "                os._exit(1)\n"
        "            except flagstone.ForkError:\n"
        "                pass\n"
        "        del block\n"
        "        os._exit(0)\n"
        "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "stop.set()\n"
        "for thread in threads:\n"
        "    thread.join()\n"
        "print(pool.stats().live_blocks)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


def test_an_interrupt_during_a_request_is_raised_after_it_and_harms_nothing(child):
    ran = child(
        "import os, signal, flagstone\n"
        "pool = flagstone.Pool(backend='sim', limit='32MiB')\n"
        "kept = pool.alloc(20 << 20)\n"
        "asked = []\n"
        "@pool.on_out_of_memory\n"
        "def ask(nbytes):\n"
        "    asked.append(nbytes)\n"
        "    kept.free()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "try:\n"
        "    pool.alloc(20 << 20)\n"
        "    print('not raised')\n"
        "except KeyboardInterrupt:\n"
        "    print('raised')\n"
        "pool.trim()\n"
        "print(asked == [20 << 20], pool.stats().live_blocks)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "raised\nTrue 0\n", "")


def test_a_signal_handler_may_allocate(child):
    ran = child(
        "import signal, flagstone\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "handled = []\n"
        "def use(*_):\n"
        "    for nbytes in (1000, 3 << 20):\n"
        "        pool.alloc(nbytes).free()\n"
        "def handle(*_):\n"
        "    use()\n"
        "    handled.append(1)\n"
        "signal.signal(signal.SIGALRM, handle)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "while len(handled) < 50:\n"
        "    use()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "print(pool.stats().live_blocks)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


def test_an_interrupt_during_a_wait_for_the_device_is_raised_after_it_and_harms_nothing(child):
    ran = child(
        "import os, signal, threading, flagstone\n"
        "from flagstone.testing import SimulatedDevice\n"
        "device = SimulatedDevice(capacity=64 << 20)\n"
        "pool = flagstone.Pool(device, limit=32 << 20, wait=1, dependencies='off')\n"
        "stream = device.create_stream()\n"
        "pool.keep_stream(stream)\n"
        "buffer = pool.alloc(20 << 20, stream)\n"
        "device.hold()\n"
        "device.launch(reads=[(buffer.ptr, 100)], nanoseconds=10)\n"
        "pool.record_stream(buffer, None)\n"
        "buffer.free()\n"
        "timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))\n"
        "raised = []\n"
        "try:\n"
        "    timer.start()\n"
        "    try:\n"
        "        pool.alloc(25 << 20)\n"
        "    finally:\n"
        "        timer.join()\n"
        "except (KeyboardInterrupt, flagstone.OutOfMemoryError) as error:\n"
        "    while error:\n"
        "        raised.append(type(error).__name__)\n"
        "        error = error.__context__\n"
        "print(sorted(raised))\n"
        "device.release()\n"
        "pool.alloc(25 << 20).free()\n"
        "pool.trim()\n"
        "print(pool.stats().live_blocks, pool.stats().reserved_bytes, device.violations())\n"
    )
    expected = "['KeyboardInterrupt', 'OutOfMemoryError']\n0 0 []\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")


def test_a_wait_that_cannot_end_has_a_bound():
    device = SimulatedDevice(capacity=64 * MIB)
    pool = flagstone.Pool(device, limit=32 * MIB, wait=0.5, dependencies="off")
    stream = device.create_stream()
    pool.keep_stream(stream)
    buffer = pool.alloc(20 * MIB, stream)
    device.hold()
    device.launch(reads=[(buffer.ptr, 100)], nanoseconds=10)
    pool.record_stream(buffer, None)
    buffer.free()
    with pytest.raises(flagstone.OutOfMemoryError, match="not done in the time"):
        pool.alloc(25 * MIB)
    device.release()
    pool.alloc(25 * MIB).free()


def test_a_stream_may_be_destroyed_under_its_blocks():
    device = SimulatedDevice(capacity=64 * MIB)
    pool = flagstone.Pool(device)
    stream = device.create_stream()
    buffer, other = pool.alloc(3 * MIB, stream), pool.alloc(MIB)
    pool.record_stream(other, stream)
    device.destroy_stream(stream)
    buffer.free()
    other.free()
    pool.trim()
    assert (pool.stats().live_blocks, pool.stats().reserved_bytes, device.violations()) == (0, 0, [])
    buffer = pool.alloc(5)
    with pytest.raises(flagstone.StreamError):
        pool.alloc(5, stream)
    with pytest.raises(flagstone.StreamError):
        pool.record_stream(buffer, stream)
    buffer.free()
    assert pool.stats().live_blocks == 0


def test_thousands_of_pools_leave_nothing_behind():
    def pools(count):
        for number in range(count):
            pool = flagstone.Pool(backend="sim")
            sizes = (100, 50_000, 3 * MIB)[: number % 4]
            kept = [pool.alloc(size) for size in sizes]
            if number % 2:
                kept.clear()

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pools(300)
    before = resident()
    pools(2000)
    assert resident() - before < 16 * MIB, "16 bytes a pool would be 32 kB"


def test_a_block_of_another_pool_is_refused_by_every_way_to_free_it(pool):
    other = flagstone.Pool(backend="sim")
    mine, theirs = pool.alloc_raw(1000), other.alloc_raw(1000)
    for free in (pool.free_raw, lambda block: pool.record_stream(block, 0)):
        with pytest.raises(flagstone.InvalidPointerError):
            free(theirs)
    other.free_raw(theirs)
    pool.free_raw(mine)
    assert (pool.stats().invalid_free_count, other.stats().live_blocks) == (1, 0)


def test_every_error_names_a_device_that_has_failed_and_nothing_hangs():
    device = SimulatedDevice(capacity=64 * MIB)
    pools = [flagstone.Pool(device, limit=8 * MIB), flagstone.PinnedPool(device, limit=8 * MIB)]
    kept = [pool.alloc(5 * MIB) for pool in pools]
    device.launch(reads=[(1 << 40, 8)])
    device.advance(1)
    for pool, _ in itertools.product(pools, range(3)):
        with pytest.raises(flagstone.DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*started anew"):
            pool.alloc(6 * MIB)
        with pytest.raises(flagstone.DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            pool.trim()
    for buffer in kept:
        buffer.free()
    del pools, kept
