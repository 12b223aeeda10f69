"""Pools of the user's choice, by torch.cuda.use_mem_pool, with flagstone as torch's allocator."""

import gc
import threading

import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone
import flagstone.torch
from flagstone.torch._swap import version


def used(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def held(pool):
    return sum(segment["total_size"] for segment in pool.snapshot())


def test_its_memory_is_its_own():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = used(4 * MIB)
        address = inside.data_ptr()
        del inside
    outside = [used(4 * MIB) for _ in range(4)]
    assert address not in {tensor.data_ptr() for tensor in outside}
    with torch.cuda.use_mem_pool(pool):
        assert used(4 * MIB).data_ptr() == address, "it stays with the pool between two uses"


def test_only_the_threads_own_requests_go_there():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=used, args=(32 * MIB,))
        thread.start()
        thread.join()
        assert held(pool) == 0
        used(4 * MIB)
    assert held(pool) >= 4 * MIB


def test_nested_pools_are_used_from_the_inside_out():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    assert outer.id != inner.id
    with torch.cuda.use_mem_pool(outer):
        with torch.cuda.use_mem_pool(inner):
            used(2 * MIB)
        used(4 * MIB)
    assert held(inner) >= 2 * MIB
    assert held(outer) >= 4 * MIB


def test_the_statistics_name_it():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = used(4 * MIB)
    name = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}.all.current"
    # Older versions of torch have no such figures.
    assert torch.cuda.memory_stats().get(name) == (held(pool) if version() >= (2, 13) else None)
    assert all(segment["segment_pool_id"] == pool.id for segment in torch.cuda.memory_snapshot(pool.id))
    assert kept.numel() == 4 * MIB


def test_its_memory_goes_back_once_it_is_gone_and_not_before():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        used(64 * MIB)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() >= 64 * MIB
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_tensors_outlive_it():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.full((MIB,), 3.0, device="cuda")
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((MIB,), 4.0, device="cuda") for _ in range(8)]
    assert (kept.cpu() == 3).all()
    assert len(others) == 8


@pytest.mark.process(devices=2)
def test_it_serves_every_device():
    pool = torch.cuda.MemPool()
    for device in (0, 1):
        with torch.cuda.use_mem_pool(pool, device=device):
            torch.empty(4 * MIB, dtype=torch.uint8, device=f"cuda:{device}")
    assert {segment["device"] for segment in pool.snapshot()} == {0, 1}


def test_graphs_are_captured_into_it():
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    source = torch.full((MIB,), 1.0, device="cuda")
    # Older versions of torch take the name alone.
    with torch.cuda.graph(graph, pool=pool if version() >= (2, 14) else pool.id):
        result = source * 2 + 1
    assert any(segment["address"] <= result.data_ptr() for segment in pool.snapshot())
    source.fill_(5)
    graph.replay()
    assert (result.cpu() == 11).all()
    del graph, pool
    gc.collect()
    assert (result.cpu() == 11).all()


def test_it_is_used_within_a_capture():
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    source = torch.full((MIB,), 1.0, device="cuda")
    with torch.cuda.graph(graph), torch.cuda.use_mem_pool(pool):
        result = source * 2
    source.fill_(5)
    graph.replay()
    assert (result.cpu() == 10).all()
    assert simcuda.violations() == []


@pytest.mark.parametrize("option", ["allocator", "use_on_oom", "no_split"])
def test_options_for_torchs_own_allocator_are_refused_by_name(option):
    with pytest.raises(flagstone.torch.NotServedError, match=rf"MemPool\({option}=.*docs/torch\.md"):
        torch.cuda.MemPool(**{option: True})


@pytest.mark.process(install={"patch": False})
def test_without_the_patch_it_has_its_own_name():
    pool = flagstone.torch.PrivatePool()
    with torch.cuda.use_mem_pool(pool):
        kept = used(4 * MIB)
    assert held(pool) >= 4 * MIB
    with pytest.raises(RuntimeError, match="createOrIncrefPool"):
        torch.cuda.MemPool()
    assert kept.numel() == 4 * MIB


@pytest.mark.process(install=False)
def test_without_the_swap_it_names_the_other_way():
    with pytest.raises(flagstone.FlagstoneError, match=r"flagstone\.torch\.MemPool"):
        flagstone.torch.PrivatePool()
