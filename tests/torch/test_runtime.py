"""The simulated runtime itself, against the real library's list of functions."""

import ctypes
import re
import subprocess
from importlib import metadata

import pytest
import torch

pytestmark = pytest.mark.process(install=False)


def test_every_function_of_the_real_library_is_there():
    major = torch.version.cuda.split(".")[0]
    files = metadata.files("nvidia-cuda-runtime" if major == "13" else f"nvidia-cuda-runtime-cu{major}") or []
    library = next(file for file in files if file.name == f"libcudart.so.{major}")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library.locate()], capture_output=True, text=True, check=True
    )
    names = set(re.findall(r"(\w*cuda\w+)@@", listed.stdout)) - {"cudaCreateChannelDesc"}  # it returns a C++ structure
    assert len(names) > 400
    simulated = ctypes.CDLL("libcuda.so.1")
    assert [name for name in sorted(names) if not hasattr(simulated, name)] == []
