"""Products of matrices on the simulated cuBLAS, against those of the CPU. torch's kernels are not involved."""

import pytest
import simcuda
import torch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""By the numbers' precision, relative to the size of the results."""

NUMBERS = pytest.mark.parametrize("numbers", [str(numbers).removeprefix("torch.") for numbers in TOLERANCE])


def compare(compute, numbers, *shapes):
    torch.manual_seed(0)
    on_cpu = [torch.randn(shape, dtype=torch.float64).to(numbers) for shape in shapes]
    found = compute(*(operand.cuda() for operand in on_cpu)).cpu()
    assert simcuda.idle_kernels() == {}
    exact = compute(*(operand.double() for operand in on_cpu))
    assert found.dtype == numbers
    assert (found.double() - exact).abs().max() <= TOLERANCE[numbers] * exact.abs().max()


@NUMBERS
def test_products_are_those_of_the_cpu(numbers):
    numbers = getattr(torch, numbers)
    compare(torch.mm, numbers, (5, 7), (7, 3))
    compare(lambda a, b: torch.mm(a.t(), b.t()), numbers, (7, 5), (3, 7))
    compare(lambda a, b: torch.mm(a[:, 8:], b[:, :16]), numbers, (8, 24), (16, 32))
    if numbers != torch.float64:
        compare(torch.bmm, numbers, (4, 5, 7), (4, 7, 3))
        compare(lambda a, b: torch.bmm(a, b.transpose(1, 2)), numbers, (4, 5, 7), (4, 3, 7))
        compare(torch.nn.functional.linear, numbers, (6, 16), (8, 16), (8,))


def test_a_product_is_computed_when_its_stream_gets_there():
    side = torch.cuda.Stream()
    a = torch.full((4, 4), 1.0, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        simcuda.hold(side.cuda_stream)
        result = torch.full((4, 4), 9.0, device="cuda")
        torch.mm(a, a, out=result)
    seen = torch.empty(4, 4)
    simcuda.resume(side.cuda_stream)
    side.synchronize()
    seen.copy_(result)
    assert (seen == 4).all()
    with torch.cuda.stream(side):
        a.fill_(2)
        torch.mm(a, a, out=result)
        assert (result.cpu() == 16).all()


def test_special_numbers_of_16_bits_are_kept():
    special = torch.tensor([[float("inf"), -float("inf"), float("nan"), 65504.0, 6e-8, -6.1e-5, 1e-9, 0.0]]).half()
    one = torch.ones(1, 1).half()
    found = torch.mm(one.cuda(), special.cuda()).cpu()
    assert torch.equal(found.nan_to_num(7.0), special.nan_to_num(7.0))
    assert torch.mm((one * 65504).cuda(), (one * 2).cuda()).cpu().isinf().all(), "out of range"
    halves = torch.tensor([[2049.0, 2051.0, 2050.0]])
    found = torch.mm(torch.ones(1, 1).half().cuda(), torch.mm(torch.ones(1, 1), halves).half().cuda())
    assert found.cpu().tolist() == [[2048.0, 2052.0, 2050.0]], "ties go to the even number"
