"""A training script as people write them, with batches that a side stream copies ahead. It prints its losses.

It keeps to operations that the simulated CUDA carries out: products of matrices, sums, multiplication.
"""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def batches(loader, device):
    """Copy each batch on a side stream while the one before it is worked on."""
    if device == "cpu":
        yield from loader
        return
    side, ready = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(side):
            ahead = [part.to(device, non_blocking=True) for part in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(side)
        for part in ahead:
            part.record_stream(torch.cuda.current_stream())
        ready = ahead
    yield ready


def main(device):
    """Fit two layers to a linear function."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    loader = DataLoader(
        TensorDataset(inputs, inputs @ torch.randn(16, 4)), batch_size=32, shuffle=True, pin_memory=device == "cuda"
    )
    model = nn.Sequential(nn.Linear(16, 64, bias=False), nn.Linear(64, 4, bias=False)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=False)
    losses = []
    for _ in range(3):
        for batch, wanted in batches(loader, device):
            result = model(batch)
            difference = result.detach() - wanted
            result.backward(difference * (1 / 32))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(difference.cpu().square().mean().item())
    return losses


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:] or ["cuda"])))
