"""The simulated runtime itself, against the real library's list of functions."""

import ctypes
import re
import subprocess
from importlib import metadata

import pytest

pytestmark = pytest.mark.process(install=False)


def test_every_function_of_the_real_library_is_there():
    files = metadata.files("nvidia-cuda-runtime") or []
    library = next(file for file in files if file.name == "libcudart.so.13")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library.locate()], capture_output=True, text=True, check=True
    )
    names = set(re.findall(r"(\w*cuda\w+)@@", listed.stdout)) - {"cudaCreateChannelDesc"}  # it returns a C++ structure
    assert len(names) > 400
    simulated = ctypes.CDLL("libcuda.so.1")
    assert [name for name in sorted(names) if not hasattr(simulated, name)] == []
