"""torch's own questions about memory, answered from the pools."""

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
    ours = _stats.nested(pool.stats(), pool.stats(), {})
    assert set(ours) >= nested, "older versions of torch have fewer"
    torch._C._cuda_memoryStats = lambda device: ours
    assert set(torch.cuda.memory_stats()) >= flat


def figures(sizes, freed):
    """Return what torch's statistics are to be after blocks of these sizes, of which some were freed."""
    expected = {}
    for pool, inside in {
        "all": lambda size: True,
        "small_pool": lambda size: size <= MIB,
        "large_pool": lambda size: size > MIB,
    }.items():
        given = [size for size in sizes if inside(size)]
        gone = [size for size in freed if inside(size)]
        for name, count in {
            "allocation": lambda size: 1,
            "active": lambda size: 1,
            "requested_bytes": lambda size: size,
            "allocated_bytes": lambda size: -(-size // 512) * 512,
            "active_bytes": lambda size: -(-size // 512) * 512,
        }.items():
            allocated, freed_ = sum(map(count, given)), sum(map(count, gone))
            key = f"{name}.{pool}"
            expected |= {f"{key}.allocated": allocated, f"{key}.freed": freed_, f"{key}.current": allocated - freed_}
            # Everything was live at once before anything was freed.
            expected[f"{key}.peak"] = allocated
    return expected


def check_figures():
    sizes = [1, 1000, 1000, 512, 16 * 1024, 100_000, MIB, MIB + 1, 3 * MIB, 20 * MIB, 20 * MIB]
    tensors = [used(size) for size in sizes]
    gone = [1, 4, 6, 8, 10]
    for index in gone:
        tensors[index] = None
    stats = torch.cuda.memory_stats()
    expected = figures(sizes, [sizes[index] for index in gone])
    assert {key: stats[key] for key in expected} == expected
    for name in ("reserved_bytes", "segment"):
        for pool in ("all", "small_pool", "large_pool"):
            allocated, freed, current, peak = (
                stats[f"{name}.{pool}.{part}"] for part in ("allocated", "freed", "current", "peak")
            )
            assert allocated - freed == current <= peak
    assert stats["reserved_bytes.all.current"] >= stats["active_bytes.all.current"]
    assert stats["num_device_alloc"] - stats["num_device_free"] == stats["segment.all.current"] > 0


def test_every_figure():
    check_figures()


@pytest.mark.process(install=False)
def test_every_figure_as_torchs_own_allocator_has_it():
    check_figures()


def test_totals_begin_anew_when_they_are_reset():
    kept, freed = used(MIB), used(4 * MIB)
    del freed
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    for name in ("allocation", "allocated_bytes", "requested_bytes", "active_bytes", "reserved_bytes", "segment"):
        assert (stats[f"{name}.all.allocated"], stats[f"{name}.all.freed"]) == (0, 0), name
    assert stats["allocation.all.current"] == 1
    used(2 * MIB)
    stats = torch.cuda.memory_stats()
    assert (stats["allocated_bytes.all.allocated"], stats["allocated_bytes.all.freed"]) == (2 * MIB, 2 * MIB)
    assert kept.numel() == MIB


def test_peaks_begin_anew_when_they_are_reset():
    kept = [used(4 * MIB), used(1000)]
    used(32 * MIB)
    torch.cuda.reset_peak_memory_stats()
    stats = torch.cuda.memory_stats()
    for name in ("allocation", "active", "allocated_bytes", "requested_bytes", "active_bytes", "reserved_bytes"):
        assert stats[f"{name}.all.peak"] == stats[f"{name}.all.current"], name
    assert stats["allocation.all.peak"] == len(kept)


@pytest.mark.process(install={"limit": "64MiB"})
def test_what_was_short_is_counted():
    kept = used(32 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        used(48 * MIB)
    stats = torch.cuda.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
    assert stats["num_sync_all_streams"] >= 1
    assert kept.numel() == 32 * MIB


def test_blocks_that_wait_for_a_stream_are_active():
    side, tensor = torch.cuda.Stream(), used(4 * MIB)
    simcuda.hold(side.cuda_stream)
    with torch.cuda.stream(side):
        tensor.fill_(1)
    tensor.record_stream(side)
    del tensor
    stats = torch.cuda.memory_stats()
    assert (stats["active.all.current"], stats["allocation.all.current"]) == (1, 0)
    assert (stats["active.all.freed"], stats["allocation.all.freed"]) == (0, 1)
    assert (stats["active_bytes.large_pool.current"], stats["allocated_bytes.all.current"]) == (4 * MIB, 0)
    simcuda.resume(side.cuda_stream)


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


@pytest.mark.process(memory=GIB)
def test_the_fraction_can_be_asked_for():
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25)


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
def test_asking_about_a_device_that_is_not_there_is_an_error_as_with_torch():
    used(MIB)
    for device in (-1, 2):
        for ask in (
            torch.cuda.memory_allocated,
            torch.cuda.memory_summary,
            torch.cuda.reset_peak_memory_stats,
            torch.cuda.reset_accumulated_memory_stats,
            torch.accelerator.memory_reserved,
        ):
            with pytest.raises(RuntimeError, match="invalid device argument"):
                ask(device)


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


def test_pools_are_of_cuda_devices_that_are_there():
    with pytest.raises(ValueError, match="CUDA devices, not of cpu"):
        flagstone.torch.memory_stats("cpu")
    for device in (-1, 7):
        with pytest.raises(flagstone.DeviceError, match=f"device {device} does not exist: 1 found"):
            flagstone.torch.pool(device)
