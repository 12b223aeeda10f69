"""Several processes with a device each, as torchrun starts them."""

import os
import socket
import subprocess
import sys

import pytest
import simcuda

pytestmark = pytest.mark.process(install=False)

RANKS = 2

RANK = """
import os
import flagstone.torch
flagstone.torch.install()
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("gloo")
mine = torch.full((1000,), float(rank + 1), device="cuda")
sum = mine.cpu()
dist.all_reduce(sum)
assert (sum == 3).all()
assert mine.device.index == rank
assert torch.cuda.memory_allocated(rank) == 4096
assert torch.cuda.memory_allocated(1 - rank) == 0
dist.destroy_process_group()
"""


def test_each_rank_allocates_on_its_own_device():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, **simcuda.environment(), **simcuda.settings(devices=RANKS), **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate(timeout=45)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, "\n".join(said)
    assert not any("simcuda:" in text for text in said), "\n".join(said)
