"""Batches on the device ahead of time: the right bytes in the right order, whatever ends the iteration."""

import dataclasses
import gc
import os
import signal
import threading
import time
import traceback
import warnings
from collections import namedtuple

import pytest
import simcuda
import torch
from simcuda import MIB
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import flagstone
import flagstone.torch
from flagstone.torch import Prefetcher, pin_memory, pinned_pool

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "This DataLoader will create")
warnings.filterwarnings("ignore", "torch.quantize_per_tensor")
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Sample:
    pair: Pair
    name: str


def length(index):
    """Bytes of a batch: as different as batches of sentences are."""
    return 1000 + index * 7_654_321 % (3 * MIB)


class Stamps(Dataset):
    """Batches of different sizes; each byte is the batch's number."""

    def __init__(self, count=12, fails=None, dies=None):
        self.count, self.fails, self.dies = count, fails, dies

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.fails:
            raise KeyError(f"sample {index}")
        if index == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"data": torch.full((length(index),), index % 251, dtype=torch.uint8), "index": index}


def loader(workers=2, **arguments):
    persistent = arguments.pop("persistent", False)
    return DataLoader(Stamps(**arguments), batch_size=None, num_workers=workers, persistent_workers=persistent)


def check(batch, index):
    assert batch["index"] == index
    assert batch["data"].is_cuda
    assert batch["data"].shape == (length(index),)
    assert (batch["data"].cpu() == index % 251).all()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "flagstone-prefetch"]


def raised_in(call):
    try:
        call()
    except BaseException as error:
        return "".join(traceback.format_exception(error))
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.process(install=False)
def test_batches_are_right_with_and_without_the_swap(swap):
    if swap:
        flagstone.torch.install()
    prefetcher = Prefetcher(loader(count=20), "cuda", depth=3)
    assert len(prefetcher) == 20
    for epoch in range(2):
        for index, batch in enumerate(prefetcher):
            check(batch, index)
        assert index == 19, epoch
    assert threads() == []
    if swap:
        assert flagstone.torch.memory_stats(0).alloc_count >= 40
    stats = pinned_pool().stats()
    assert stats.live_blocks == 0
    assert stats.peak_reserved_bytes <= 16 * MIB


def test_any_nest_keeps_its_shape():
    ints, floats = torch.arange(24).view(2, 3, 4), torch.rand(5, 3)
    batches = [
        [ints, (floats, "text", None, 3.5)],
        Sample(Pair(floats.t(), ints[:, ::2]), "name"),
        {"a": torch.empty(0, 4), "b": torch.tensor(7), "c": floats > 0.5, "d": floats.bfloat16()},
        {
            "sparse": torch.eye(3).to_sparse(),
            "pinned": pin_memory(ints),
            "there": ints.cuda(),
            "expanded": floats[:1].expand(4, 3),
        },
    ]
    (got0, got1, got2, got3) = Prefetcher(batches, "cuda:0")
    for got, expected in [
        (got0[0], ints),
        (got0[1][0], floats),
        (got1.pair.first, floats.t()),
        (got1.pair.second, ints[:, ::2]),
        *((got2[name], batches[2][name]) for name in "abcd"),
        (got3["pinned"], ints),
        (got3["there"], ints),
        (got3["expanded"], floats[:1].expand(4, 3)),
    ]:
        assert type(got) is torch.Tensor
        assert got.is_cuda
        assert got.dtype == expected.dtype
        assert torch.equal(got.cpu(), expected)
    assert got0[1][1:] == ("text", None, 3.5)
    assert (type(got1), type(got1.pair), got1.name) == (Sample, Pair, "name")
    assert got1.pair.first.stride() == floats.t().stride()
    assert got3["sparse"].is_cuda
    assert batches[1].pair.first.device.type == "cpu", "the loader's own batch is not changed"


@pytest.mark.parametrize("depth", [1, 100])
def test_any_depth_gives_each_batch_once(depth):
    seen = []
    for index, batch in enumerate(Prefetcher(loader(), depth=depth)):
        check(batch, index)
        seen.append(batch["index"])
    assert seen == list(range(12))


def test_batches_without_tensors_stay_as_they_are():
    batches = [{}, [], (), None, "text", 7, {"a": [(), {}]}]
    assert list(Prefetcher(batches)) == batches
    assert list(Prefetcher([])) == []


class Subclass(torch.Tensor):
    pass


def test_tensors_that_are_more_than_bytes_arrive_whole():
    complex_, subclass = torch.randn(3, dtype=torch.cfloat), torch.ones(3).as_subclass(Subclass)
    rows, parts = torch.eye(3).to_sparse_csr(), [torch.ones(2), torch.ones(3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    leaf = torch.ones(4, requires_grad=True)
    coarse = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, torch.quint8)
    batch = next(iter(Prefetcher([[complex_.conj(), complex_.conj().imag, subclass, rows, nested, leaf * 2, coarse]])))
    assert all(tensor.is_cuda for tensor in batch)
    assert torch.equal(batch[0].cpu(), complex_.conj())
    assert torch.equal(batch[1].cpu(), complex_.conj().imag)
    assert isinstance(batch[2], Subclass)
    assert torch.equal(batch[3].cpu().to_dense(), torch.eye(3))
    assert [part.tolist() for part in batch[4].cpu().unbind()] == [[1, 1], [1, 1, 1]]
    batch[5].backward(torch.full((4,), 3.0).cuda())
    assert leaf.grad.tolist() == [6.0] * 4
    assert batch[6].cpu().dequantize().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_loaders_own_work_on_the_device_is_waited_for():
    """Tensors that the loader puts on the device itself, on the stream of its thread, are used on another one."""

    def batches():
        for index in range(1, 9):
            yield torch.full((MIB,), index, dtype=torch.uint8).pin_memory().to("cuda", non_blocking=True)

    simcuda.timing(kernel_ns=1000, copy_ns_per_mib=5_000_000)
    stream, kept = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for batch in Prefetcher(batches()):
            kept.append(batch.clone())
            del batch
    stream.synchronize()
    assert [int(data.cpu().max()) for data in kept] == [int(data.cpu().min()) for data in kept] == list(range(1, 9))


def test_several_at_once_do_not_mix():
    first, second = Prefetcher(loader(count=15)), Prefetcher(loader(workers=0, count=15), depth=4)
    for index, (one, two) in enumerate(zip(first, second, strict=True)):
        check(one, index)
        check(two, index)
    assert index == 14
    assert threads() == []


def test_it_may_be_iterated_over_in_any_thread():
    errors = []

    def work(prefetcher, count):
        try:
            for index, batch in enumerate(prefetcher):
                check(batch, index)
            assert index == count - 1
        except BaseException as error:
            errors.append(error)

    # Made here or there; workers that are processes are for the main thread to wait for.
    workers = [threading.Thread(target=work, args=(Prefetcher(loader(0, count=9)), 9)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    assert threads() == []


def test_an_iteration_that_is_dropped_ends_its_thread():
    prefetcher = Prefetcher(loader(workers=0, count=1000))
    iterations = [iter(prefetcher)]
    check(next(iterations[0]), 0)
    iterations.append(iterations)  # a cycle: for the garbage collector
    del iterations
    gc.collect()
    assert threads() == []
    assert pinned_pool().stats().live_blocks == 0


def test_copies_that_are_late_are_waited_for_on_the_device():
    """Each copy takes longer than the program takes for a batch; results are made on a stream that never waits on the
    host."""
    simcuda.timing(kernel_ns=1000, copy_ns_per_mib=10_000_000)
    copies = []
    for batch in Prefetcher(loader(count=40), depth=2):
        copies.append(batch["data"].clone())
        del batch
        simcuda.advance(1_000_000)
    for index, data in enumerate(copies):
        assert (data.cpu() == index % 251).all()
    stats = pinned_pool().stats()
    assert stats.peak_reserved_bytes <= 1.15 * stats.peak_active_bytes
    assert stats.peak_reserved_bytes <= 16 * MIB, "however late the device is"


def test_pinned_memory_is_taken_from_the_driver_at_the_start_only():
    simcuda.timing(kernel_ns=1000, copy_ns_per_mib=3_000_000)
    calls = []
    for batch in Prefetcher(loader(workers=8, count=100)):
        check(batch, len(calls))
        simcuda.advance(1_000_000)
        counts = simcuda.counts()
        calls.append(counts["cuMemHostAlloc"] + counts.get("cuMemFreeHost", 0))
    assert calls[50:] == [calls[50]] * 50
    stats = pinned_pool().stats()
    assert stats.peak_reserved_bytes <= 1.15 * stats.peak_active_bytes
    assert simcuda.counts().get("cudaHostAlloc", 0) == 0


def test_batches_on_another_stream_are_safe_to_drop():
    stream = torch.cuda.Stream()
    simcuda.timing(kernel_ns=5_000_000, copy_ns_per_mib=100_000)
    kept = []
    with torch.cuda.stream(stream):
        for batch in Prefetcher(loader(count=16)):
            kept.append(batch["data"].clone())
            del batch
    stream.synchronize()
    assert all((data.cpu() == index % 251).all() for index, data in enumerate(kept))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_the_loader_comes_with_its_traceback(workers):
    seen = []

    def run():
        seen.extend(batch["index"] for batch in Prefetcher(loader(workers=workers, fails=3)))

    said = raised_in(run)
    assert seen == [0, 1, 2]
    assert "KeyError" in said
    assert "sample 3" in said
    assert "__getitem__" in said
    assert threads() == []


def test_after_an_exception_the_iteration_is_over():
    iteration = iter(Prefetcher(loader(workers=0, fails=0)))
    with pytest.raises(KeyError):
        next(iteration)
    with pytest.raises(StopIteration):
        next(iteration)


def test_the_death_of_a_worker_is_an_error():
    iteration = iter(Prefetcher(loader(dies=5)))
    # torch also raises it in the main thread, whatever that does just then.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with pytest.raises((RuntimeError, OSError)):
        list(iteration)
    assert threads() == []


@pytest.mark.parametrize("persistent", [True, False])
def test_leaving_the_loop_ends_the_thread_and_the_next_loop_begins_anew(persistent):
    prefetcher = Prefetcher(loader(persistent=persistent))
    for _ in range(3):
        for index, batch in enumerate(prefetcher):
            check(batch, index)
            if index == 2:
                break
        del batch
        assert threads() == []
    assert [batch["index"] for batch in prefetcher] == list(range(12))

    def fail():
        for _ in prefetcher:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    gc.collect()
    assert threads() == []
    assert pinned_pool().stats().live_blocks == 0


def test_persistent_workers_stay():
    prefetcher = Prefetcher(loader(persistent=True))
    workers = []
    for _ in range(2):
        assert [batch["index"] for batch in prefetcher] == list(range(12))
        workers.append({worker.pid for worker in prefetcher.loader._iterator._workers})
    assert workers[0] == workers[1]


def test_one_iteration_at_a_time():
    prefetcher = Prefetcher(loader(workers=0))
    first = iter(prefetcher)
    next(first)
    assert len(list(prefetcher)) == 12
    with pytest.raises(RuntimeError, match="one at a time"):
        next(first)


def test_at_most_depth_batches_are_loaded_ahead():
    loaded = []

    def batches():
        for index in range(20):
            loaded.append(index)
            yield torch.tensor(index)

    iteration = iter(Prefetcher(batches(), depth=3))
    for taken in range(5):
        for _ in range(2000):
            if len(loaded) >= taken + 3:
                break
            time.sleep(0.01)
        assert len(loaded) == taken + 3
        assert int(next(iteration)) == taken
    del iteration


class Epochs(IterableDataset):
    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.arange(3) + 100 * (self.epoch or 0))


def test_the_epoch_is_passed_on():
    sampler = DistributedSampler(Stamps(), num_replicas=1, rank=0)
    Prefetcher(DataLoader(Stamps(), sampler=sampler, batch_size=2)).set_epoch(7)
    assert sampler.epoch == 7
    epochs = Epochs()
    prefetcher = Prefetcher(DataLoader(epochs, batch_size=None))
    prefetcher.set_epoch(5)
    assert [int(value) for value in prefetcher] == [500, 501, 502]
    direct = Prefetcher(epochs)
    direct.set_epoch(1)
    assert [int(value) for value in direct] == [100, 101, 102]
    with pytest.raises(TypeError):
        len(direct)


def test_wrong_arguments_say_so():
    for depth in (0, -1):
        with pytest.raises(ValueError, match="depth is the number of batches"):
            Prefetcher([], depth=depth)
    for depth in (1.5, "2", None):
        with pytest.raises(TypeError, match="depth is a number of batches"):
            Prefetcher([], depth=depth)
    with pytest.raises(flagstone.FlagstoneError, match="CUDA device"):
        Prefetcher([], "cpu")


def test_little_pinned_memory_is_enough_and_none_is_an_error():
    pinned_pool().limit = 4 * MIB
    for index, batch in enumerate(Prefetcher(loader(workers=0))):
        check(batch, index)
    pinned_pool().trim()
    pinned_pool().limit = MIB
    with pytest.raises(flagstone.OutOfMemoryError):
        list(Prefetcher(loader(workers=0)))
    assert pinned_pool().stats().live_blocks == 0


@pytest.mark.process(devices=2)
def test_batches_go_to_the_device_that_is_named():
    batch = next(iter(Prefetcher([torch.ones(1000)], "cuda:1")))
    assert batch.device.index == 1
    assert (batch.cpu() == 1).all()
    assert torch.cuda.current_device() == 0


KEPT = []


@pytest.mark.process(ends=True)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_interpreter_may_end_in_the_middle(workers):
    prefetcher = Prefetcher(loader(workers=workers, count=1000))
    iteration = iter(prefetcher)
    check(next(iteration), 0)
    KEPT.append((prefetcher, iteration, next(iteration)))
