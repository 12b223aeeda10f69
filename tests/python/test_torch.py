"""The adapter for torch: what can be seen without a GPU. Each test is a process of its own, as the swap is for life."""

import importlib.util

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

WITH_CUDA = "import sys, torch\nif not hasattr(torch._C, '_cuda_customAllocator'): sys.exit(77)\n"


def succeed(ran):
    if ran.returncode == 77:
        pytest.skip("this torch is a build without CUDA")
    assert ran.returncode == 0, ran.stderr


def test_a_build_without_cuda_is_refused(child):
    succeed(
        child(
            "import torch, flagstone, flagstone.torch\n"
            "if hasattr(torch._C, '_cuda_customAllocator'): del torch._C._cuda_customAllocator\n"
            "for use in (flagstone.torch.install, flagstone.torch.MemPool):\n"
            "    try: use()\n"
            "    except flagstone.FlagstoneError as error: assert 'without CUDA' in str(error)\n"
            "    else: raise AssertionError(use)\n"
        )
    )


def test_install_swaps_the_allocator_once(child):
    succeed(
        child(
            WITH_CUDA + "import flagstone, flagstone.torch\n"
            "assert not flagstone.torch.is_installed()\n"
            "flagstone.torch.install(limit='2GiB')\n"
            "flagstone.torch.install(limit='2GiB')\n"
            "assert flagstone.torch.is_installed()\n"
            "assert torch.cuda.get_allocator_backend() == 'pluggable'\n"
            "for settings in ({'limit': '3GiB'}, {'limti': 1}):\n"
            "    try: flagstone.torch.install(**settings)\n"
            "    except flagstone.ConfigError: pass\n"
            "    else: raise AssertionError(settings)\n"
            "assert flagstone._core.torch_error() == 'OutOfMemoryError'\n"
        )
    )


def test_every_hook_is_set(child):
    succeed(
        child(
            WITH_CUDA + "import flagstone.torch\n"
            "setters = {name for name in dir(torch._C._CUDAPluggableAllocator) if name.startswith('set_')}\n"
            "assert setters == set(flagstone.torch._swap.HOOKS), setters\n"
        )
    )


def test_install_refuses_what_is_too_late(child):
    succeed(
        child(
            WITH_CUDA + "import flagstone, flagstone.torch\n"
            "torch.cuda.is_initialized = lambda: True\n"
            "try: flagstone.torch.install()\n"
            "except flagstone.FlagstoneError as error: assert 'before the first CUDA tensor' in str(error)\n"
            "else: raise AssertionError\n"
        )
    )


def test_install_after_another_allocator_is_refused(child):
    succeed(
        child(
            WITH_CUDA + "import flagstone, flagstone.torch\n"
            "torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(1, 1))\n"
            "try: flagstone.torch.install()\n"
            "except flagstone.FlagstoneError as error: assert 'another allocator' in str(error)\n"
            "else: raise AssertionError\n"
            "assert not flagstone.torch.is_installed()\n"
        )
    )
