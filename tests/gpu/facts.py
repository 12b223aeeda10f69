"""Says what the machine, its driver and its device are."""

import json
import os
import platform
import resource
import subprocess
import sys
from ctypes import c_int

import driver
import torch

from flagstone import _core

ATTRIBUTES = {
    "compute capability, major": 75,
    "compute capability, minor": 76,
    "virtual memory management": 102,
    "RDMA to such memory": 110,
    "driver memory pools": 115,
    "can map host memory": 19,
    "concurrent managed access": 89,
}
"""Attributes that matter here, by their number in `CUdevice_attribute`."""


def smi() -> dict[str, str]:
    """Return what nvidia-smi says, where it is there."""
    asked = (
        "name",
        "driver_version",
        "memory.total",
        "clocks.max.sm",
        "pcie.link.gen.max",
        "compute_mode",
        "mig.mode.current",
    )
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia-smi": str(error)}
    return dict(zip(asked, (cell.strip() for cell in ran.stdout.splitlines()[0].split(",")), strict=False))


def say(**facts: object) -> None:
    """Add facts to the results."""
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Say everything; what needs the device comes last."""
    say(
        system=platform.platform(),
        libc=" ".join(platform.libc_ver()),
        cores=os.cpu_count(),
        pinned_limit=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        flagstone=_core.build_info(),
        torch={"version": torch.__version__, "cuda": torch.version.cuda},
        simulated_prices=_core.simulated_prices()["source"],
    )
    if not os.environ.get("FLAGSTONE_REHEARSAL"):
        say(smi=smi())
    driver.start()
    say(driver_version=driver.given("cuDriverGetVersion", c_int), free_and_total_bytes=driver.memory())
    say(attributes={name: driver.attribute(number) for name, number in ATTRIBUTES.items()}, granularity=driver.page())
    say(devices=_core.devices("cuda"))


if __name__ == "__main__":
    sys.exit(main())
