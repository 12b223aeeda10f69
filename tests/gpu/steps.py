"""The table of steps: what each shows, its command and its limit. Those that prove the most come first."""

import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Step:
    """A step of the check."""

    name: str
    shows: str
    command: list[str]
    limit_s: float


def python(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script of this folder."""
    return [sys.executable, str(HERE / script), *arguments]


STEPS = [
    Step("facts", "what the machine, its driver and its device are", python("facts.py"), 15),
    Step("driver", "the driver does what the simulation takes for granted", python("assumptions.py"), 30),
    Step("contract", "pools of device and pinned memory keep the contract", python("contract.py"), 30),
    Step("ordering", "no block is given out while a kernel may still use it", python("ordering.py"), 30),
    Step("prices", "what each call of the driver takes", python("driver_prices.py"), 25),
    Step("training", "the same losses on native, the swap and a MemPool", python("training.py"), 45),
    Step("torch", "PyTorch's tests with the swap and with MemPool", python("suite.py"), 65),
    Step("latency", "nanoseconds of a pair of alloc and free", python("bench.py", "latency"), 15),
    Step("allocators", "the same under torch, next to its own allocators", python("bench.py", "torch"), 25),
    Step("fragmentation", "memory held for three traces, by allocator under torch", python("fragmentation.py"), 45),
    Step("loader", "batches of a data loader to the device", python("bench.py", "dataloader"), 25),
]
