"""torch's kernels computed by the CPU: any operator gives the CPU's numbers on the simulated device."""

import ctypes
import sys

import pytest
import simcuda
import torch
from torch import nn

pytestmark = pytest.mark.process(install={})

PROGRAMS = {
    "in place": lambda x: x.clone().mul_(2).clamp_(max=1).add_(x.t(), alpha=3),
    "views": lambda x: torch.cat([x[1:, ::2], x.t()[:5, 3:], x.flip(0)[:5, :3]], 1),
    "out": lambda x: torch.sum(x, 0, out=torch.empty(6, device=x.device)),
    "sizes that depend on values": lambda x: x[x > 0].sort().values,
    "several results": lambda x: torch.cat([part.flatten().double() for part in (*x.topk(2), *torch.var_mean(x))]),
    "lists": lambda x: torch._foreach_add([x, x + 1], [x, x])[1],
    "made on the device": lambda x: torch.arange(6, device=x.device) * torch.eye(6, device=x.device) + x,
    "other types": lambda x: (x.half() + x.bfloat16()).to(torch.int8).sum(0),
    "indices": lambda x: x.clone().index_put_((torch.tensor([0, 2], device=x.device),), x[:2], accumulate=True),
    "convolution": lambda x: nn.functional.conv2d(x.view(1, 1, 6, 6), x[:2, :2].reshape(1, 1, 2, 2)),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(*x.view(3, 1, 3, 4), is_causal=True),
    "decomposition": lambda x: torch.linalg.qr(x).R.abs(),
    "broadcast": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)).expand(2, 6, 6).contiguous(),
}


def use_kernels():
    sys.path.insert(0, str(simcuda.KERNELS))
    import kernels

    kernels.install()


def test_operators_give_the_cpus_numbers():
    use_kernels()
    torch.manual_seed(0)
    x = torch.randn(6, 6)
    for name, program in PROGRAMS.items():
        found = program(x.cuda())
        assert found.is_cuda, name
        torch.testing.assert_close(found.cpu(), program(x), msg=lambda message, name=name: f"{name}: {message}")
    assert simcuda.idle_kernels() == {}


def test_gradients_are_the_cpus():
    use_kernels()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    images, targets = torch.randn(2, 1, 8, 8), torch.tensor([1, 3])
    gradients = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), targets.to(device)).backward()
        gradients.append([parameter.grad.cpu().clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)
    assert simcuda.idle_kernels() == {}


def test_an_operator_that_the_cpu_lacks_is_named():
    use_kernels()
    with pytest.raises(NotImplementedError, match="_cudnn_rnn_flatten_weight"):
        torch._cudnn_rnn_flatten_weight([torch.ones(4, 1, device="cuda")], 1, 1, 2, 1, 0, 1, False, False)


def test_memory_that_nobody_wrote_holds_no_numbers():
    use_kernels()
    assert torch.full((1000,), 3.0, device="cuda").sum().cpu() == 3000
    assert torch.empty(1000, device="cuda").isnan().all(), "that of the block before"


@pytest.mark.process(install=False)
def test_memory_that_is_given_out_twice_is_found():
    """An allocator whose blocks overlap: what pools must never do."""
    library = ctypes.CDLL("libcuda.so.1")
    start, given = ctypes.c_void_p(), []

    def allocate(nbytes, _device, _stream):
        if not given:
            assert library.cudaMalloc(ctypes.byref(start), ctypes.c_size_t(1 << 20)) == 0
        given.append(start.value + 512 * len(given))
        return given[-1]

    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(allocate)
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (allocate, release)]
    torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(*addresses))
    use_kernels()
    first = torch.full((100,), 3.0, device="cuda")
    assert first.sum().cpu() == 300
    second = torch.full((1000,), 3.0, device="cuda")
    third = torch.empty(10, device="cuda")
    assert second.data_ptr() < third.data_ptr() < second.data_ptr() + 4000
    assert second.sum().isnan().cpu()
