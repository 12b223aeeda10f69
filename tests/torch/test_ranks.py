"""Several processes with a device each, as torchrun starts them."""

import subprocess
import sys

import pytest
import simcuda

pytestmark = pytest.mark.process(install=False)

RANKS = 2

SCRIPT = """
import os
import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("gloo")
mine = torch.full((1000,), float(rank + 1), device="cuda")
# The block is where the tensor says, whatever device is current.
other = torch.full((2000,), 7.0, device=f"cuda:{1 - rank}")
sum = mine.cpu()
dist.all_reduce(sum)
assert (sum == 3).all()
held = [torch.cuda.memory_allocated(device) for device in (rank, 1 - rank)]
# In one write: the ranks share the pipe.
print(f"rank {rank}: {torch.cuda.get_allocator_backend()} {held}", flush=True)
dist.destroy_process_group()
"""


def test_each_rank_allocates_on_the_devices_that_its_tensors_name(tmp_path):
    script = f"{tmp_path}/script.py"
    with open(script, "w") as file:
        file.write(SCRIPT)
    ran = subprocess.run(
        # As torchrun does it.
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"),
            *("--module", "flagstone", "run", script),
        ],
        env={**simcuda.environment(), **simcuda.settings(devices=RANKS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=45,
    )
    assert ran.returncode == 0, ran.stdout
    said = sorted(line for line in ran.stdout.splitlines() if line.startswith("rank "))
    assert said == [f"rank {rank}: pluggable [4096, 8192]" for rank in range(RANKS)]
    assert "simcuda:" not in ran.stdout
