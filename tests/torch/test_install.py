"""install(): when it can be called, and when not."""

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor

import flagstone
import flagstone.torch


@pytest.mark.process(install=False)
def test_it_is_too_late_once_cuda_is_initialised():
    torch.empty(1, device="cuda")
    with pytest.raises(flagstone.FlagstoneError, match=r"before the first CUDA tensor"):
        flagstone.torch.install()
    assert torch.cuda.get_allocator_backend() == "native"


@pytest.mark.process(install=False)
def test_looking_for_a_device_is_not_too_late():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    flagstone.torch.install()
    tensor = torch.ones(1, device="cuda")
    assert flagstone.torch.memory_stats(0).live_blocks == 1
    assert tensor.cpu() == 1


@pytest.mark.process(install={"limit": "1GiB"})
def test_other_settings_are_refused_once_it_is_in_force():
    flagstone.torch.install(limit="1GiB")
    with pytest.raises(flagstone.ConfigError, match=r"cuda,limit:2147483648.*first, backend:cuda,limit:1073741824$"):
        flagstone.torch.install(limit="2GiB")
    torch.ones(1, device="cuda")
    flagstone.torch.install(limit="1GiB")


@pytest.mark.process(install=False, FLAGSTONE_CONF="limit:64MiB")
def test_the_settings_come_from_the_environment_too():
    flagstone.torch.install()
    with pytest.raises(torch.OutOfMemoryError, match=r"limit 64\.00 MiB"):
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda")


@pytest.mark.process(install=False)
def test_a_torch_that_is_too_old_is_refused():
    torch.__version__ = "2.8.0+cu128"
    for way in (flagstone.torch.install, flagstone.torch.MemPool):
        with pytest.raises(flagstone.FlagstoneError, match=r"torch 2\.8\.0\+cu128 is too old.*2\.9 or newer"):
            way()
    assert torch.cuda.get_allocator_backend() == "native"
    assert not flagstone.torch.is_installed()


@pytest.mark.process(devices=0)
def test_without_a_device_torch_says_so():
    assert not torch.cuda.is_available()
    with pytest.raises(RuntimeError):
        torch.empty(1, device="cuda")


def test_what_cannot_be_served_says_so_by_name():
    tensor = torch.ones(10, device="cuda")
    with pytest.raises(flagstone.FlagstoneError, match=r"sending CUDA tensors to other processes.*docs/torch\.md"):
        tensor.untyped_storage()._share_cuda_()
    with pytest.raises(RuntimeError, match=r"sending CUDA tensors to other processes.*docs/torch\.md"):
        reduce_tensor(tensor)  # what a queue of torch.multiprocessing does
    with pytest.raises(flagstone.FlagstoneError, match=r"receiving CUDA tensors.*docs/torch\.md"):
        torch.UntypedStorage._new_shared_cuda(0)
    trees = {"_cuda_checkPoolLiveAllocations": (0, (0, 1), set()), "_cuda_getCheckpointState": (0, (0, 1))}
    for name, arguments in trees.items():
        with pytest.raises(RuntimeError, match=r"reduce-overhead.*docs/torch\.md"):
            getattr(torch._C, name)(*arguments)
    assert (tensor.cpu() == 1).all()
