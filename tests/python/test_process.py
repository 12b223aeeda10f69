"""What a process pays for flagstone, and what happens when it forks or ends."""

import os
import subprocess
import sys

import pytest

import flagstone


def test_importing_touches_no_driver_and_little_else(child):
    ran = child(
        "import sys, flagstone\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libcuda' not in maps and 'nvidia' not in maps, maps\n"
        "heavy = {'argparse', 'dataclasses', 'inspect', 'numpy', 'torch', 'typing'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    assert ran.returncode == 0, ran.stderr


def test_importing_takes_at_most_50_milliseconds():
    # Processor time, and the least of several: what else the machine does stays out of it.
    code = "import time; start = time.process_time(); import flagstone; print(time.process_time() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    assert min(times) < 0.05


def test_submodules_come_when_asked_for():
    assert flagstone.stats.Stats.__module__ == "flagstone.stats"
    with pytest.raises(AttributeError, match="colour"):
        flagstone.colour  # noqa: B018
    assert {"torch", "cupy", "Pool"} <= set(dir(flagstone))


def test_the_process_ends_quietly_with_live_buffers(child):
    ran = child(
        "import flagstone, threading\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "pinned = flagstone.PinnedPool(backend='sim')\n"
        "buffer = pool.alloc(1000)\n"
        "class Cycle: pass\n"
        "cycle = Cycle(); cycle.itself = cycle; cycle.buffers = [pinned.alloc(5), pool.alloc(9)]\n"
        "orphan = flagstone.Pool(backend='sim').alloc(3 << 20)\n"
        "capsule = pool.alloc(100).__dlpack__()\n"
        "threading.Thread(target=lambda: [pool.alloc(7) for _ in iter(int, 1)], daemon=True).start()\n"
        "print('end')\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")


def test_atexit_handlers_can_still_allocate(child):
    ran = child(
        "import atexit, flagstone\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "@atexit.register\n"
        "def last():\n"
        "    pool.alloc(100).free()\n"
        "    print(pool.stats().free_count)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


def test_callbacks_are_not_for_requests_of_c(child):
    ran = child(
        "import ctypes, flagstone\n"
        "from flagstone import _core\n"
        "_core.configure('sim', 'limit:64MiB')\n"
        "pool = _core.process_pool()\n"
        "kept, asked = pool.alloc(50 << 20), []\n"
        "pool.on_out_of_memory(asked.append)\n"
        "signature = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)\n"
        "for kind in (ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE):\n"  # without and with the interpreter lock
        "    alloc = kind(*signature)(_core.c_functions()['alloc'])\n"
        "    assert alloc(30 << 20, 0, None) is None\n"
        "assert asked == []\n"
        "try:\n"
        "    pool.alloc(30 << 20)\n"
        "except flagstone.OutOfMemoryError:\n"
        "    print(asked)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"[{30 << 20}]\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_frees_nothing_and_cannot_allocate(child):
    ran = child(
        "import os, flagstone\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "buffer, raw = pool.alloc(1000), pool.alloc_raw(10)\n"
        "if os.fork() == 0:\n"
        "    for use in (lambda: pool.alloc(5), lambda: pool.alloc_raw(5)):\n"
        "        try:\n"
        "            use()\n"
        "        except flagstone.ForkError as error:\n"
        "            assert 'spawn' in str(error)\n"
        "        else:\n"
        "            os._exit(1)\n"
        "    pool.free_raw(raw)\n"
        "    pool.free_raw(raw)\n"  # no double free: nothing was done
        "    del buffer\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert pool.stats().live_blocks == 2\n"
        "pool.free_raw(raw)\n"
        "buffer.free()\n"
        "pool.alloc(5)\n"
        "print('parent')\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "parent\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_c_functions_in_a_forked_child_give_and_take_nothing(child):
    ran = child(
        "import ctypes, os, flagstone\n"
        "from flagstone import _core\n"
        "_core.configure('sim', '')\n"
        "size, pointer = ctypes.c_size_t, ctypes.c_void_p\n"
        "def function(name, result, *arguments):\n"
        "    return ctypes.CFUNCTYPE(result, *arguments)(_core.c_functions()[name])\n"
        "alloc = function('alloc', pointer, size, ctypes.c_int, pointer)\n"
        "free = function('free', None, pointer, size, ctypes.c_int, pointer)\n"
        "kept = [alloc(nbytes, 0, None) for nbytes in (1000, 1000, 3 << 20)]\n"
        "free(kept.pop(0), 1000, 0, None)\n"  # there would be a hit
        "if os.fork() == 0:\n"
        "    for use in (lambda: alloc(1000, 0, None), lambda: alloc(3 << 20, 0, None)):\n"
        "        assert use() is None\n"
        "        assert isinstance(_core.last_error(), flagstone.ForkError)\n"
        "    for block in kept * 2:\n"  # freed twice, and no double free: nothing is done
        "        free(block, 1000, 0, None)\n"
        "        assert isinstance(_core.last_error(), flagstone.ForkError)\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "free(kept.pop(), 3 << 20, 0, None)\n"
        "stats = _core.process_pool().stats()\n"
        "print(stats.live_blocks, stats.double_free_count)\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1 0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_cannot_ask_for_numbers(child):
    ran = child(
        "import os, flagstone\n"
        "pool = flagstone.Pool(backend='sim')\n"
        "pool.start_history()\n"
        "if os.fork() == 0:\n"
        "    for use in (pool.stats, pool.snapshot, pool.history):\n"
        "        try:\n"
        "            use()\n"
        "        except flagstone.ForkError as error:\n"
        "            assert 'spawn' in str(error)\n"
        "        else:\n"
        "            os._exit(1)\n"
        "    os._exit(0 if repr(pool) == '<flagstone.Pool on sim device 0, before a fork>' else 2)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert '0 blocks' in repr(pool)\n"
        "print('parent', pool.stats().live_blocks, len(pool.history().events))\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "parent 0 0\n", "")


def test_every_public_name_is_there_and_documented():
    for name in flagstone.__all__:
        value = getattr(flagstone, name)
        assert name == "__version__" or value.__doc__, name
    for kind in (flagstone.Pool, flagstone.PinnedPool, flagstone.Buffer, flagstone.PinnedBuffer):
        for name in dir(kind):
            if not name.startswith("_"):
                assert getattr(kind, name).__doc__, f"{kind.__name__}.{name}"
