"""Batches in flagstone's pinned memory: their copies record themselves, whatever stream they run on."""

import copy
import dataclasses
import os
import pickle
from collections import OrderedDict, defaultdict, namedtuple

import numpy
import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone
import flagstone.torch
from flagstone.torch import PinnedTensor, pin_memory, pinned_pool

torch.set_num_threads(1)

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Example:
    image: torch.Tensor
    name: str


def stamped(value, nbytes=MIB):
    return torch.full((nbytes,), value, dtype=torch.uint8)


def overwrite(pool, nbytes=MIB):
    """Take all memory that the pool would give out now, and write over it."""
    buffers = [pool.alloc(nbytes) for _ in range(pool.stats().reserved_bytes // nbytes + 1)]
    for buffer in buffers:
        torch.from_dlpack(buffer).fill_(255)
        buffer.free(stream=0)


def test_a_nested_batch_keeps_its_shape():
    tensor = torch.arange(12.0).reshape(3, 4)
    batch = {
        "list": [tensor, "text", 7],
        "pair": Pair(tensor.half(), b"bytes"),
        "example": Example(tensor.t(), "name"),
        "ordered": OrderedDict(a=tensor > 3),
        "default": defaultdict(list, a=tensor[:, ::2]),
        "none": None,
        "empty": torch.empty(0, 3),
    }
    pinned = pin_memory(batch)
    kept = ("list", "pair", "example", "ordered", "default", "none")
    assert [type(pinned[name]) for name in kept] == [type(batch[name]) for name in kept]
    found = [
        (pinned["list"][0], tensor),
        (pinned["pair"].first, tensor.half()),
        (pinned["example"].image, tensor.t()),
        (pinned["ordered"]["a"], tensor > 3),
        (pinned["default"]["a"], tensor[:, ::2]),
    ]
    for got, expected in found:
        assert isinstance(got, PinnedTensor)
        assert got.is_pinned()
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
    assert pinned["example"].image.stride() == tensor.t().stride()
    assert pinned["list"][1:] == ["text", 7]
    assert pinned["pair"].second == b"bytes"
    assert pinned["default"]["new"] == []
    assert pinned["empty"].shape == (0, 3)
    assert pinned_pool().stats().live_blocks == 5


def test_packed_sequences_keep_their_sizes_on_the_host():
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    pinned = pin_memory(packed)
    assert isinstance(pinned, torch.nn.utils.rnn.PackedSequence)
    assert pinned.data.is_pinned()
    assert not pinned.batch_sizes.is_pinned()


COPIES = {
    "to": lambda tensor, there: tensor.to("cuda", non_blocking=True),
    "cuda": lambda tensor, there: tensor.cuda(non_blocking=True),
    "copy_": lambda tensor, there: there.copy_(tensor, non_blocking=True),
    "view": lambda tensor, there: tensor.view(1024, 1024).to("cuda", non_blocking=True),
    "split": lambda tensor, there: [part.to("cuda", non_blocking=True) for part in tensor.split(MIB // 4)],
    "foreach": lambda tensor, there: (
        [there] if torch._foreach_copy_([there], [tensor], non_blocking=True) is None else there
    ),
    "back": lambda tensor, there: tensor.copy_(there, non_blocking=True).to("cuda", non_blocking=True),
}


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.process(install=False)
def test_memory_that_a_late_copy_uses_is_not_given_out(swap):
    if swap:
        flagstone.torch.install()
    pool = pinned_pool()
    for number, copies in enumerate(COPIES.values()):
        side, there = torch.cuda.Stream(), stamped(number).cuda()
        torch.cuda.synchronize()
        tensor = pin_memory(stamped(number))
        simcuda.hold(side.cuda_stream)
        with torch.cuda.stream(side):
            there = copies(tensor, there)
        del tensor
        overwrite(pool)
        assert pool.stats().live_blocks == 0
        simcuda.resume(side.cuda_stream)
        torch.cuda.synchronize()
        for part in there if isinstance(there, list) else [there]:
            assert (part.cpu() == number).all()
    # Copies that are over hold nothing up.
    pool.alloc(MIB).free()
    pool.reset_peak()
    assert pin_memory(stamped(1)).numel() == MIB
    assert pool.stats().peak_reserved_bytes < 40 * MIB


@pytest.mark.process(install=False)
def test_a_copy_by_plain_torch_is_waited_for_by_a_synchronisation():
    """Nothing tells the pool of the copy: the buffer was handed out and freed with no recorded use."""
    pool, side = flagstone.PinnedPool(backend="cuda"), torch.cuda.Stream()
    buffer = pool.alloc(MIB)
    address = buffer.ptr
    tensor = torch.from_dlpack(buffer)
    tensor.fill_(7)
    there = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    simcuda.hold(side.cuda_stream)
    with torch.cuda.stream(side):
        there.copy_(tensor, non_blocking=True)
    del tensor, buffer
    overwrite(pool)
    simcuda.resume(side.cuda_stream)
    side.synchronize()
    assert (there.cpu() == 7).all()
    pool.synchronize()
    assert address in {pool.alloc(MIB).ptr for _ in range(pool.stats().reserved_bytes // MIB + 1)}


def test_views_without_copies():
    pool = flagstone.PinnedPool(backend="cuda")
    buffer = pool.alloc(1000)
    torch.cuda.init()
    arrays = [numpy.asarray(buffer), numpy.from_dlpack(buffer)]
    tensors = [torch.from_dlpack(buffer), torch.from_numpy(numpy.asarray(buffer))]
    tensors[0].fill_(9)
    assert all((array == 9).all() for array in arrays)
    assert all((tensor == 9).all() and tensor.is_pinned() for tensor in tensors)


def test_results_are_ordinary_tensors_and_views_are_not():
    tensor = pin_memory(torch.arange(6.0))
    assert type(tensor + 1) is torch.Tensor
    assert type(tensor.clone()) is torch.Tensor
    assert type(tensor.cuda()) is torch.Tensor
    assert type(torch.stack([tensor, tensor])) is torch.Tensor
    for view in (tensor[2:], tensor.view(2, 3), tensor.detach(), tensor.unbind()[0], tensor.add_(1)):
        assert type(view) is PinnedTensor
    assert type(tensor.as_subclass(torch.Tensor)) is torch.Tensor
    assert pin_memory(tensor) is tensor
    assert type(pickle.loads(pickle.dumps(tensor))) is torch.Tensor
    copied = copy.deepcopy(tensor)
    assert type(copied) is torch.Tensor
    assert torch.equal(copied, tensor)
    assert "PinnedTensor" in repr(tensor)


def test_memory_comes_back_and_is_used_again():
    pool = pinned_pool()
    for turn in range(50):
        there = pin_memory(stamped(turn, 3 * MIB + turn * 1000)).cuda(non_blocking=True)
        assert (there.cpu() == turn).all()
    stats = pool.stats()
    assert (stats.live_blocks, stats.pending_blocks > 1) == (0, False)
    assert stats.reserved_bytes <= 8 * MIB


@pytest.mark.process(devices=2)
def test_copies_to_another_device_are_waited_for():
    tensor = pin_memory(stamped(7), device=0)
    with torch.cuda.device(1):
        there = tensor.to("cuda:1", non_blocking=True)
    del tensor
    overwrite(pinned_pool(0))
    assert (there.cpu() == 7).all()
    assert pin_memory(stamped(1), device="cuda:1").cuda(1)[0].cpu() == 1
    assert pinned_pool(1).stats().alloc_count == 1


def test_no_memory_is_an_error_and_harms_nothing():
    pool = pinned_pool()
    pool.limit = 4 * MIB
    kept = pin_memory(stamped(3, 3 * MIB))
    with pytest.raises(flagstone.OutOfMemoryError):
        pin_memory(stamped(4, 3 * MIB))
    assert (kept.cuda().cpu() == 3).all()


def test_in_a_forked_child_the_batch_stays_as_it_is():
    before = pin_memory(torch.ones(1000))
    child = os.fork()
    if child == 0:
        batch = pin_memory({"a": torch.ones(3)})
        plain = type(batch["a"]) is torch.Tensor
        del before
        os._exit(0 if plain else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (before.cuda().cpu() == 1).all()


class PinsInWorkers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        tensor = pin_memory(torch.full((3,), index))
        return tensor, type(tensor) is torch.Tensor


def test_in_a_worker_of_a_loader_the_batch_stays_as_it_is():
    torch.zeros(1, device="cuda")
    loader = torch.utils.data.DataLoader(PinsInWorkers(), num_workers=2, batch_size=2)
    assert [plain.tolist() for _, plain in loader] == [[True, True]] * 2
