"""Filled and guarded memory under torch: nothing that is right changes, and what is wrong is found, with its stacks."""

import pytest
import torch

import flagstone.torch
from flagstone import history


def train():
    torch.manual_seed(0)
    weights = [torch.ones(300, 300, device="cuda") for _ in range(4)]
    side = torch.cuda.Stream()
    for _ in range(3):
        total = torch.zeros(300, 300, device="cuda")
        for weight in weights:
            total = total + weight * weight
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            doubled = total + total
        total.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        doubled.record_stream(torch.cuda.current_stream())
        weights = [weight + doubled for weight in weights]
    return weights[0].cpu()


@pytest.mark.process(install={"guard": "4GiB", "poison": "0xff"})
def test_a_program_that_does_nothing_wrong_has_the_same_results():
    expected = 1.0
    for _ in range(3):
        expected = expected + 2 * 4 * expected * expected
    assert torch.equal(train(), torch.full((300, 300), expected))
    pool = flagstone.torch.pool(0)
    assert pool.stats().reserved_bytes <= 64 << 20


@pytest.mark.process(install={"guard": "1GiB"})
def test_an_address_is_described_with_the_stacks_of_its_tensor():
    pool = flagstone.torch.pool(0)
    with history.record(pool, stacks=True):
        tensor = torch.empty(1000, device="cuda")
        address = tensor.data_ptr()
        del tensor
    info = pool.describe(address + 4096 + 8)
    assert (info.address, info.requested, info.state, info.offset) == (address, 4000, "freed", 4104)
    assert info.alloc_stack[0].name == "test_an_address_is_described_with_the_stacks_of_its_tensor"
    assert "104 bytes behind the end of a block of 4000 bytes" in str(info)


@pytest.mark.process(install={"poison": "0"})
def test_zeroed_memory_shows_nothing_of_its_last_user():
    first = torch.full((1000,), 7.0, device="cuda")
    address = first.data_ptr()
    del first
    second = torch.empty(1000, device="cuda")
    assert second.data_ptr() == address
    assert not second.cpu().any()
