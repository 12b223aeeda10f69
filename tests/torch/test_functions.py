"""docs/torch.md has tables of every memory function of torch: they name them all, and each does what they say."""

import re
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch
from simcuda import MIB
from torch.cuda import _memory_viz, memory

from flagstone import _core

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
OWNERS = {"torch.cuda.": memory, "torch.cuda.memory.": memory, "torch.accelerator.": torch.accelerator}


def table():
    """Return who answers each function, by its full name."""
    found = {}
    for part in PAGE.split("\n\n"):
        head, *rows = part.splitlines()
        prefix = head.split("|")[1].strip(" `") if head.startswith("|") else ""
        if prefix in OWNERS:
            for row in rows[1:]:
                names, who = row.split("|")[1:3]
                found.update({prefix + name: who.strip() for name in re.findall(r"`(\w+)`", names)})
    return found


NEWEST = (Path(__file__).parents[2] / "requirements" / "torch.in").read_text()
"""Names the newest torch that was tried: it has every function of the tables, which older ones need not."""


def is_newest():
    return f"\ntorch=={torch.__version__.split('+')[0]}\n" in NEWEST


def test_every_public_function_is_in_the_tables():
    public = {f"torch.cuda.{name}" for name in memory.__all__}
    public |= {f"torch.accelerator.{name}" for name in torch.accelerator.memory.__all__}
    assert public - table().keys() == set()
    assert set(table().values()) == {"flagstone", "torch", "no effect", "cannot"}


def use_mem_pool():
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        torch.ones(10, device="cuda")


def disable():
    with memory.caching_allocator_disabled():
        torch.ones(10, device="cuda")


def calls(folder):
    """Return what calls those functions that need arguments."""
    functions = _core.c_functions()
    tensor = torch.ones(MIB, device="cuda")
    other = memory._CUDAAllocator(torch._C._cuda_customAllocator(functions["alloc"], functions["free"]))
    return {
        "torch.cuda.use_mem_pool": use_mem_pool,
        "torch.cuda.caching_allocator_disabled": disable,
        "torch.cuda.set_per_process_memory_fraction": lambda: memory.set_per_process_memory_fraction(0.9),
        "torch.cuda.caching_allocator_alloc": lambda: memory.caching_allocator_alloc(100),
        "torch.cuda.caching_allocator_delete": lambda: memory.caching_allocator_delete(
            memory.caching_allocator_alloc(100)
        ),
        "torch.cuda.CUDAPluggableAllocator": lambda: memory.CUDAPluggableAllocator(
            _core.__file__, "flagstone_alloc", "flagstone_free"
        ),
        "torch.cuda.change_current_allocator": lambda: memory.change_current_allocator(other),
        "torch.cuda.memory._dump_snapshot": lambda: memory._dump_snapshot(f"{folder}/snapshot.pickle"),
        "torch.cuda.memory._save_segment_usage": lambda: memory._save_segment_usage(f"{folder}/segments.svg"),
        "torch.cuda.memory._save_memory_usage": lambda: memory._save_memory_usage(f"{folder}/memory.svg"),
        "torch.cuda.memory._allocation_traceback": lambda: memory._allocation_traceback(tensor.data_ptr()),
        "torch.cuda.memory._set_memory_metadata": lambda: memory._set_memory_metadata("text"),
        "torch.cuda.memory._annotate_tensor": lambda: memory._annotate_tensor(tensor, "text"),
        "torch.cuda.memory._set_allocator_settings": lambda: memory._set_allocator_settings("max_split_size_mb:100"),
    }


def test_each_does_what_the_tables_say():
    # torch loads the script that draws from the network.
    memory._segments = partial(_memory_viz.segments, format_flamegraph=str)
    memory._memory = partial(_memory_viz.memory, format_flamegraph=str)
    warnings.simplefilter("ignore")
    wrong, done = [], []
    with tempfile.TemporaryDirectory() as folder:
        special = calls(folder)
        for name, who in table().items():
            prefix, _, last = name.rpartition(".")
            owner = OWNERS[f"{prefix}."]
            if not hasattr(owner, last) and not is_newest():
                continue
            call = special.get(name) or getattr(owner, last)
            done.append(name)
            try:
                call()
                raised = None
            except Exception as error:
                raised = error
            as_said = isinstance(raised, RuntimeError) if who == "cannot" else raised is None
            if not as_said:
                wrong.append((name, who, raised))
    assert wrong == [], wrong
    assert len(done) == len(table()) or not is_newest()
    assert len(done) > 40
    assert torch.cuda.memory_allocated() > 0
