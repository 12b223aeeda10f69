"""Pools and buffers used by several threads at once."""

import queue
import threading

import pytest

import flagstone

THREADS, ROUNDS = 4, 300


def together(work, threads=THREADS):
    """Run `work(index)` in several threads at once and raise what any of them raises."""
    errors, start = [], threading.Barrier(threads)

    def run(index):
        try:
            start.wait()
            work(index)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=[index]) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("nbytes", [1000, 3 << 20])
def test_no_two_threads_have_the_same_block(pool, nbytes):
    held, lock = set(), threading.Lock()

    def work(_):
        for _ in range(ROUNDS):
            buffer = pool.alloc(nbytes)
            with lock:
                assert buffer.ptr not in held
                held.add(buffer.ptr)
            with lock:
                held.remove(buffer.ptr)
            buffer.free()

    together(work)
    stats = pool.stats()
    assert (stats.live_blocks, stats.alloc_count, stats.free_count) == (0, THREADS * ROUNDS, THREADS * ROUNDS)


def test_one_thread_allocates_and_another_frees(pool):
    ready = queue.Queue(maxsize=16)

    def work(index):
        for _ in range(ROUNDS):
            if index == 0:
                ready.put(pool.alloc(50_000))
            else:
                ready.get().free()

    together(work, threads=2)
    stats = pool.stats()
    assert (stats.live_blocks, stats.free_count) == (0, ROUNDS)
    assert stats.reserved_bytes < ROUNDS * 50_000, "memory freed by another thread is used again"


def test_buffers_dropped_in_another_thread_are_freed(pool):
    buffers = [pool.alloc(100) for _ in range(ROUNDS)]
    thread = threading.Thread(target=buffers.clear)
    thread.start()
    thread.join()
    assert pool.stats().live_blocks == 0


def test_of_threads_that_free_one_buffer_one_succeeds(pool):
    for _ in range(50):
        buffer, results = pool.alloc(100), []

        def work(_, buffer=buffer, results=results):
            try:
                buffer.free()
                results.append(True)
            except flagstone.DoubleFreeError:
                results.append(False)

        together(work)
        assert sorted(results) == [False] * (THREADS - 1) + [True]
    assert pool.stats().live_blocks == 0


def test_statistics_can_be_read_meanwhile(pool):
    done = threading.Event()

    def work(index):
        if index == 0:
            try:
                for _ in range(ROUNDS):
                    pool.alloc(10_000).free()
            finally:
                done.set()
        while not done.is_set():
            stats = pool.stats()
            assert stats.reserved_bytes >= 0
            pool.snapshot()
            pool.reset_peak()
            pool.trim()

    together(work)
    assert pool.stats().live_blocks == 0
