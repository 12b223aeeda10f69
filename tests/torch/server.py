"""Starts processes that have torch under the simulated CUDA: each is a fork of this one, which has not touched CUDA.

It reads a call a line from standard input, as JSON, and answers with the exit status of the process that made it.
"""

import importlib.util
import json
import os
import signal
import sys
import warnings

import torch  # noqa: F401  (what takes long to load)

import flagstone.torch


def run(call: dict) -> None:
    """Run one test's function. Unless its end is of interest, which takes a second, the process ends at once."""
    os.environ.update(call["environment"])
    output = os.open(call["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(call["timeout"])
    import simcuda

    if call["install"] is not False:
        flagstone.torch.install(**call["install"])
    spec = importlib.util.spec_from_file_location(call["name"], call["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        getattr(module, call["name"])(**call["arguments"])
    except simcuda.Uncontrolled as needed:
        print(f"uncontrolled: {needed}", flush=True)
        os._exit(0)
    assert not simcuda.SIMULATED or simcuda.violations() == []
    print("passed", flush=True)
    if not call["ends"]:
        os._exit(0)


# torch says so whenever autograd's thread is the first to multiply matrices.
warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
