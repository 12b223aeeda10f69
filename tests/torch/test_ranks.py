"""Several processes with a device each, as torchrun starts them."""

import subprocess
import sys

import pytest
import simcuda

pytestmark = pytest.mark.process(install=False)

RANKS = 2

SCRIPT = """
import os
import sys
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
# To a file of its own: in the pipe that the ranks share, lines can meet.
with open(f"{sys.argv[1]}/rank-{rank}", "w") as file:
    print(torch.cuda.get_allocator_backend(), held, file=file)
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
            *("--module", "flagstone", "run", script, str(tmp_path)),
        ],
        env={**simcuda.environment(), **simcuda.settings(devices=RANKS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=45,
    )
    assert ran.returncode == 0, ran.stdout
    for rank in range(RANKS):
        with open(f"{tmp_path}/rank-{rank}") as file:
            assert file.read() == "pluggable [4096, 8192]\n", ran.stdout
    assert "simcuda:" not in ran.stdout, ran.stdout
