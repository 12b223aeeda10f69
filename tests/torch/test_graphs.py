"""Captures and graphs: nothing illegal is called in a capture, and what a graph uses is its own."""

import threading

import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone.torch

COUNT = 1 << 18

GENERATOR = 2
"""Blocks that torch keeps for random numbers in graphs, until the graph is gone; older versions keep them for good."""


def full(value):
    return torch.full((COUNT,), float(value), device="cuda")


def test_replay_computes_anew():
    graph, source = torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(graph):
        result = source * 2 + 1
    for value in (5, 7):
        source.fill_(value)
        graph.replay()
        assert (result.cpu() == 2 * value + 1).all()


def test_eager_work_does_not_get_the_graphs_memory():
    graph, source = torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(graph):
        middle = source * 2
        inside = {middle.data_ptr()}
        result = middle + 1
        del middle
        inside.add(result.data_ptr())
    eager = [full(9) for _ in range(32)]
    assert inside.isdisjoint(tensor.data_ptr() for tensor in eager)
    source.fill_(4)
    graph.replay()
    assert (result.cpu() == 9).all()
    assert all((tensor.cpu() == 9).all() for tensor in eager)


def test_memory_freed_in_the_capture_is_used_again_in_it():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = full(1)
        address = first.data_ptr()
        del first
        assert full(2).data_ptr() == address


def test_two_graphs_share_a_pool():
    first, second, source = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(first):
        one = source * 2
    with torch.cuda.graph(second, pool=first.pool()):
        two = one + 1
    source.fill_(3)
    first.replay()
    second.replay()
    assert (two.cpu() == 7).all()


def test_a_released_graphs_memory_comes_back():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = full(1)
    del result
    before = flagstone.torch.memory_stats(0).reserved_bytes
    graph.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert flagstone.torch.memory_stats(0).reserved_bytes < before


def test_side_streams_in_a_capture():
    graph, side, source = torch.cuda.CUDAGraph(), torch.cuda.Stream(), full(1)
    with torch.cuda.graph(graph):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            doubled = source * 2
            doubled.record_stream(current)
        current.wait_stream(side)
        result = doubled + 1
        del doubled
    source.fill_(3)
    graph.replay()
    assert (result.cpu() == 7).all()


def test_a_shared_pools_memory_stays_while_one_graph_lives():
    first, second, source = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(first):
        one = source * 2
    with torch.cuda.graph(second, pool=first.pool()):
        middle = source * 3
        two = middle + 1
        address = middle.data_ptr()
        del middle
    del one
    first.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    eager = [full(9) for _ in range(16)]
    assert address not in {tensor.data_ptr() for tensor in eager}
    source.fill_(2)
    second.replay()
    assert (two.cpu() == 7).all()
    assert all((tensor.cpu() == 9).all() for tensor in eager)


@pytest.mark.process(install={"limit": "64MiB"})
def test_a_capture_outlives_everything_that_a_pool_does():
    side, graph, source = torch.cuda.Stream(), torch.cuda.CUDAGraph(), full(1)
    outside = full(5)
    outside.record_stream(side)
    with torch.cuda.graph(graph, capture_error_mode="global"):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            doubled = source * 2
            doubled.record_stream(current)
            del outside
        current.wait_stream(side)
        result = doubled + 1
        result.record_stream(current)
        del doubled
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(60 << 20, dtype=torch.uint8, device="cuda")
        parts = [full(n) for n in range(8)]
        del parts[::2]
        torch.cuda.empty_cache()
        torch.cuda.memory_stats()
        torch.cuda.memory_snapshot()
    source.fill_(3)
    graph.replay()
    assert (result.cpu() == 7).all()


@pytest.mark.process(install={"limit": "64MiB"})
def test_running_out_of_memory_leaves_the_capture_valid():
    graph, source = torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(graph):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        result = source + 1
    graph.replay()
    assert (result.cpu() == 2).all()


def test_growth_and_uses_from_before_leave_the_capture_valid():
    side = torch.cuda.Stream()
    tensor = full(1)
    tensor.record_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del tensor
        large = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        large.fill_(3)
    graph.replay()
    assert (large[:100].cpu() == 3).all()


def test_an_aborted_capture_gives_its_memory_back():
    before = flagstone.torch.memory_stats(0).live_blocks

    def capture():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            full(1)
            torch.cuda.synchronize()

    with pytest.raises(RuntimeError):
        capture()
    assert any("invalidated capture" in violation for violation in simcuda.violations())
    simcuda.forgive()
    torch.cuda.empty_cache()
    assert {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()} <= {(0, 0)}, (
        "the graph's is no more"
    )
    assert flagstone.torch.memory_stats(0).live_blocks <= before + GENERATOR
    graph, source = torch.cuda.CUDAGraph(), full(4)
    with torch.cuda.graph(graph):
        result = source + 1
    source.fill_(6)
    graph.replay()
    assert (result.cpu() == 7).all()


def test_a_capture_that_fails_leaves_a_shared_pool_to_the_others():
    graph, source = torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(graph):
        middle = source * 3
        result = middle + 1
        address = middle.data_ptr()
        del middle

    def capture():
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=graph.pool()):
            full(1)
            torch.cuda.synchronize()

    with pytest.raises(RuntimeError):
        capture()
    simcuda.forgive()
    torch.cuda.empty_cache()
    eager = [full(9) for _ in range(16)]
    assert address not in {tensor.data_ptr() for tensor in eager}
    source.fill_(2)
    graph.replay()
    assert (result.cpu() == 7).all()
    assert all((tensor.cpu() == 9).all() for tensor in eager)


@pytest.mark.process(install=False)
def test_a_capture_that_nobody_announced_is_found():
    for setter in ("set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"):
        flagstone.torch._swap.HOOKS.pop(setter)
    flagstone.torch.install()
    side, graph, source = torch.cuda.Stream(), torch.cuda.CUDAGraph(), full(1)
    with torch.cuda.graph(graph, stream=side):
        middle = source * 2
        result = middle + 1
        del middle
    with torch.cuda.stream(side):
        eager = [full(9) for _ in range(4)]
    graph.replay()
    torch.cuda.synchronize()
    assert all((tensor.cpu() == 9).all() for tensor in eager)
    assert (result.cpu() == 3).all()


def test_graphed_callables():
    if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # such callables make it so
    layer = torch.nn.Linear(16, 8, bias=False).cuda()
    sample = torch.ones(4, 16, device="cuda", requires_grad=True)
    expected = layer(sample).detach().cpu()
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    for factor in (1, 3):
        batch = (torch.ones(4, 16, device="cuda") * factor).requires_grad_()
        result = graphed(batch)
        result.backward(torch.ones(4, 8, device="cuda"))
        assert torch.allclose(result.detach().cpu(), expected * factor, rtol=1e-4)
        assert torch.allclose(layer.weight.grad.cpu(), torch.full((8, 16), 4.0 * factor))
        layer.weight.grad = None


@pytest.mark.process(install={"limit": "256MiB"})
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_nothing_that_the_pool_does_invalidates_a_capture(mode):
    side, source = torch.cuda.Stream(), full(1)
    waiting = full(2)
    waiting.record_stream(side)
    outside, failures = [], []

    def allocate():
        try:
            for size in (100, MIB, 20 * MIB):
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                tensor.record_stream(side)
                outside.append(tensor.data_ptr())
        except RuntimeError as error:
            failures.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        current = torch.cuda.current_stream()
        del waiting
        kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1, 4096, MIB, 30 * MIB)]
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            doubled = source * 2
            doubled.record_stream(current)
            kept[1].record_stream(side)
        current.wait_stream(side)
        del kept[1:3]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
        result = doubled + 1
        del doubled, kept
        torch.empty(150 * MIB, dtype=torch.uint8, device="cuda").fill_(9)
    assert (failures, len(outside)) == ([], 3)
    assert simcuda.violations() == []
    for value in (4, 5):
        source.fill_(value)
        graph.replay()
        assert (result.cpu() == 2 * value + 1).all()
