"""Batches in flagstone's pinned memory: their copies record themselves, whatever stream they run on."""

import copy
import dataclasses
import os
import pickle
import warnings
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping

import numpy
import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone
import flagstone.torch
from flagstone.torch import PinnedTensor, pin_memory, pinned_pool

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Example:
    image: torch.Tensor
    name: str


class Named(list):
    """A list whose constructor takes something else."""

    def __init__(self, name):
        super().__init__()
        self.name = name


class Span(tuple):
    """A tuple whose constructor takes something else."""

    def __new__(cls, first, second, unit):
        made = super().__new__(cls, (first, second))
        made.unit = unit
        return made


class Frozen(Mapping):
    """A mapping that cannot be changed."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


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
        "named": Named("some"),
        "span": Span(tensor, 7, "metres"),
        "frozen": Frozen({"a": tensor}),
        "user": UserDict(a=tensor),
        "size": tensor.shape,
    }
    batch["named"].append(tensor)
    pinned = pin_memory(batch)
    kept = ("list", "pair", "example", "ordered", "default", "none", "named", "span", "frozen", "user", "size")
    assert [type(pinned[name]) for name in kept] == [type(batch[name]) for name in kept]
    found = [
        (pinned["list"][0], tensor),
        (pinned["pair"].first, tensor.half()),
        (pinned["example"].image, tensor.t()),
        (pinned["ordered"]["a"], tensor > 3),
        (pinned["default"]["a"], tensor[:, ::2]),
        (pinned["named"][0], tensor),
        (pinned["span"][0], tensor),
        (pinned["frozen"]["a"], tensor),
        (pinned["user"]["a"], tensor),
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
    assert pinned["named"].name == "some"
    assert (pinned["span"][1], pinned["span"].unit) == (7, "metres")
    assert type(batch["named"][0]) is torch.Tensor, "the batch that was given is not changed"
    assert pinned_pool().stats().live_blocks == 9


def kinds():
    """Tensors that are more, or less, than bytes in rows."""
    floats = torch.arange(12.0).reshape(3, 4)
    return {
        "scalar": torch.tensor(3.5),
        "nothing": torch.empty(0, 3),
        "columns": floats.t(),
        "gaps": floats[:, ::2],
        "expanded": floats[:1].expand(4, 4),
        "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "part": torch.arange(20, dtype=torch.uint8)[3:9],
        "conjugate": torch.randn(3, dtype=torch.cfloat).conj(),
        "negative": torch.randn(3, dtype=torch.cfloat).conj().imag,
        "eight bits": floats.to(torch.float8_e4m3fn),
        "sparse": torch.eye(3).to_sparse(),
        "sparse rows": torch.eye(3).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "subclass": floats.as_subclass(Subclass),
        "parameter": torch.nn.Parameter(floats),
        "there": floats.cuda(),
        "pinned": floats.pin_memory(),
    }


class Subclass(torch.Tensor):
    pass


def same(got, expected):
    """Whether two tensors have the same values, as their kinds allow to compare them."""
    if expected.is_nested:
        return all(map(same, got.cpu().unbind(), expected.unbind()))
    if expected.layout != torch.strided:
        return torch.equal(got.cpu().to_dense(), expected.to_dense())
    raw = [tensor.detach().cpu().resolve_conj().resolve_neg().contiguous() for tensor in (got, expected)]
    return raw[0].numel() == 0 or torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in raw))


def test_each_kind_of_tensor_keeps_its_values():
    for name, tensor in kinds().items():
        pinned = pin_memory(tensor)
        assert (pinned.dtype, pinned.layout, pinned.requires_grad) == (
            tensor.dtype,
            tensor.layout,
            tensor.requires_grad,
        ), name
        assert pinned.is_cuda == tensor.is_cuda, name
        assert pinned.is_cuda or tensor.numel() == 0 or pinned.is_pinned(), name
        assert tensor.is_nested or pinned.shape == tensor.shape, name
        assert same(pinned, tensor), name
    assert isinstance(pin_memory(torch.ones(2).as_subclass(Subclass)), Subclass)


def test_batches_without_tensors_stay_as_they_are():
    assert [pin_memory(batch) for batch in ({}, [], (), None, "text", 7, {"a": [(), {}]})] == [
        {},
        [],
        (),
        None,
        "text",
        7,
        {"a": [(), {}]},
    ]


def test_gradients_flow_back_to_the_batch():
    tensor = torch.ones(4, requires_grad=True)
    pin_memory([tensor])[0].to("cuda", non_blocking=True).backward(torch.full((4,), 3.0).cuda())
    assert tensor.grad.tolist() == [3.0] * 4


def test_what_is_kept_of_a_batch_keeps_only_itself():
    """As the labels of an epoch, while the large tensors beside them go."""
    kept = []
    for turn in range(50):
        batch = pin_memory({"data": stamped(1), "labels": torch.full((64,), turn)})
        batch["data"].to("cuda", non_blocking=True)
        kept.append(batch["labels"])
    assert [int(labels[-1]) for labels in kept] == list(range(50))
    assert pinned_pool().stats().reserved_bytes <= 3 * MIB


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
        # The pool has waited a little for the copy that is held: by this device's clock for ever.
        simcuda.forgive()
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
