"""Runs an unchanged script inside a flagstone.torch.MemPool: python in_mempool.py SCRIPT ARGUMENTS."""

import runpy
import sys

import torch

import flagstone.torch

del sys.argv[0]
with torch.cuda.use_mem_pool(flagstone.torch.MemPool()):
    runpy.run_path(sys.argv[0], run_name="__main__")
