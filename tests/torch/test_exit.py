"""The end of a process with live tensors, and of a forked child. The exit status is part of each test."""

import atexit
import os
import sys
import threading

import pytest
import simcuda
import torch

import flagstone.torch

pytestmark = pytest.mark.process(ends=True)

KEPT = []


def test_live_tensors_at_exit():
    KEPT.extend(torch.ones(1000, device="cuda") for _ in range(10))
    atexit.register(KEPT.clear)


def test_live_tensors_in_a_cycle_at_exit():
    cycle = [torch.ones(1000, device="cuda")]
    cycle.append(cycle)
    KEPT.append(cycle)


def test_live_tensors_of_threads_at_exit():
    local = threading.local()
    begun = threading.Barrier(3)

    def work():
        local.tensor = torch.ones(1000, device="cuda")
        begun.wait()
        threading.Event().wait()

    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    begun.wait()


def test_exit_within_a_thread():
    def work():
        KEPT.append(torch.ones(1000, device="cuda"))
        sys.exit(3)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_pool_of_the_users_choice_at_exit():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        KEPT.extend([torch.ones(1000, device="cuda"), pool])


@pytest.mark.process(install=False)
def test_a_mempool_at_exit():
    pool = flagstone.torch.MemPool()
    with torch.cuda.use_mem_pool(pool):
        KEPT.extend([torch.ones(1000, device="cuda"), pool])


def test_a_graph_at_exit():
    graph, source = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    with torch.cuda.graph(graph):
        result = source + 1
    graph.replay()
    KEPT.extend([graph, source, result])


@pytest.mark.process(install=False)
def test_a_forked_child_asks_the_driver_nothing():
    kept = flagstone.Pool(backend="cuda").alloc(5)
    before = simcuda.counts()
    child = os.fork()
    if child == 0:
        makes = [lambda: flagstone.Pool(backend="cuda"), lambda: flagstone.PinnedPool(), lambda: flagstone.Pool()]
        for make in makes:
            with pytest.raises(flagstone.ForkError):
                make()
        os._exit(0 if simcuda.counts() == before else 1)
    assert os.waitpid(child, 0)[1] == 0
    kept.free()


def test_freeing_in_a_forked_child_is_no_operation():
    tensor = torch.ones(1000, device="cuda")
    child = os.fork()
    if child == 0:
        del tensor
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tensor.cpu() == 1).all()
