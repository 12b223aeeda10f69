"""The end of a process with live tensors, and of a forked child. The exit status is part of each test."""

import atexit
import os

import pytest
import torch

pytestmark = pytest.mark.process(ends=True)

KEPT = []


def test_live_tensors_at_exit():
    KEPT.extend(torch.ones(1000, device="cuda") for _ in range(10))
    atexit.register(KEPT.clear)


def test_live_tensors_in_a_cycle_at_exit():
    cycle = [torch.ones(1000, device="cuda")]
    cycle.append(cycle)
    KEPT.append(cycle)


def test_freeing_in_a_forked_child_is_no_operation():
    tensor = torch.ones(1000, device="cuda")
    child = os.fork()
    if child == 0:
        del tensor
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tensor.cpu() == 1).all()
