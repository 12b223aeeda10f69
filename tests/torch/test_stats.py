"""torch's own questions about memory, answered from the pools."""

import pickle

import pytest
import simcuda
import torch
from simcuda import GIB, MIB

import flagstone.torch


def used(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def test_allocated_and_reserved_and_their_peaks():
    assert torch.cuda.memory_allocated() == 0
    first = used(10 * MIB)
    second = used(20 * MIB)
    assert torch.cuda.memory_allocated() == 30 * MIB
    del second
    assert torch.cuda.memory_allocated() == 10 * MIB
    assert torch.cuda.max_memory_allocated() == 30 * MIB
    assert torch.cuda.memory_reserved() >= 30 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 10 * MIB
    del first
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.max_memory_reserved() >= 30 * MIB


@pytest.mark.process(install=False)
def test_the_keys_are_torchs_own():
    used(MIB)
    flat = set(torch.cuda.memory_stats())
    nested = set(torch.cuda.memory_stats_as_nested_dict())
    from flagstone import _core
    from flagstone.torch import _stats

    pool = _core.process_pool(0)
    ours = _stats.nested(pool.stats(), pool.stats())
    assert set(ours) >= nested, "older versions of torch have fewer"
    torch._C._cuda_memoryStats = lambda device: ours
    assert set(torch.cuda.memory_stats()) >= flat


def test_counts_and_accumulated_totals():
    kept = used(MIB)
    for _ in range(3):
        used(MIB)
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.current"] == 1
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (4, 3)
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (0, 0)
    assert stats["allocation.all.current"] == 1
    assert kept.numel() == MIB


def test_the_summary_can_be_printed():
    used(MIB)
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    assert "GPU reserved memory" in torch.cuda.memory_summary(abbreviated=True)


def test_the_snapshot_has_every_block():
    kept = [used(nbytes) for nbytes in (1000, 100_000, 5 * MIB)]
    segments = torch.cuda.memory_snapshot()
    blocks = {block["address"]: block for segment in segments for block in segment["blocks"]}
    for tensor in kept:
        block = blocks[tensor.data_ptr()]
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == tensor.numel()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


def test_a_dumped_snapshot_is_one_that_torch_reads():
    used(MIB)
    from torch.cuda import _memory_viz

    snapshot = pickle.loads(pickle.dumps(torch.cuda.memory._snapshot()))
    assert "b" in _memory_viz.segsum(snapshot)
    assert "<html>" in _memory_viz.trace_plot(snapshot).lower() or "<script" in _memory_viz.segment_plot(snapshot)


def test_recording_history_says_that_it_does_not():
    with pytest.warns(UserWarning, match="no history"):
        torch.cuda.memory._record_memory_history()
    torch.cuda.memory._record_memory_history(None)


@pytest.mark.process(memory=GIB)
def test_the_fraction_can_be_asked_for():
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25)


@pytest.mark.skipif(not hasattr(torch.accelerator, "memory_allocated"), reason="this version of torch has none of them")
def test_the_accelerators_functions_agree():
    kept = used(10 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 10 * MIB
    assert torch.accelerator.max_memory_allocated() == 10 * MIB
    del kept
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved() == 0
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0


@pytest.mark.process(devices=2)
def test_asking_about_a_device_does_not_use_it():
    kept = used(MIB)
    assert torch.cuda.memory_allocated(1) == 0
    assert torch.cuda.memory_snapshot()
    assert torch.cuda.memory_allocated(0) == MIB
    assert simcuda.counts()["cuDevicePrimaryCtxRetain"] == 1
    assert kept.numel() == MIB


@pytest.mark.process(install={"patch": False})
def test_torch_can_be_left_as_it_is():
    kept = used(MIB)
    with pytest.raises(RuntimeError, match="does not yet support"):
        torch.cuda.memory_allocated()
    assert flagstone.torch.memory_stats().allocated_bytes == MIB
    assert kept.numel() == MIB
