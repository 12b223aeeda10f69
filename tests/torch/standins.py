"""Empty stand-ins for the CUDA libraries that torch links and an allocator's tests do not need: no 3 GB to download.

    python standins.py FOLDER    # for the interpreter's torch; FOLDER has the simulated libcuda.so.1

Each function of theirs that torch refers to is there and fails. With the folder on LD_LIBRARY_PATH torch finds them,
but a library that is installed first. The stand-in for CUDA's runtime, of the version that torch was built for, has
nothing of its own and brings the simulation along. Preloaded (LD_PRELOAD=FOLDER/libcudart.so) it is the runtime that
torch finds, also where the real one is installed.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PREFIXES = {
    "cublas": "",
    "cublasLt": "",
    "cudnn": "",
    "cufft": "",
    "cufile": "cuFile",
    "cupti": "",
    "curand": "curand",
    "cusolver": "",
    "cusparse": "",
    "cusparseLt": "cusparseLt",
    "nccl": "nccl",
    "nvrtc": "",
    "nvshmem_host": "nvshmem",
}
"""The libraries, with what their functions begin with where these carry no version that names the library."""

VERSIONS = {"NVSHMEM": "nvshmem_host"}
"""Versions of symbols that are not named like their library."""


def needed(files: list[Path]) -> dict[str, str]:
    """Return the libraries that torch's need, as libcublas.so.13, by the name without the version."""
    return {name: soname for soname, name in matches(["readelf", "-d"], files, r"\[(lib(\w+)\.so\.\d+)\]")}


def references(files: list[Path], sonames: dict[str, str]) -> dict[str, set[tuple[str, str]]]:
    """Return the symbols of each library that torch refers to, with their versions."""
    found: dict[str, set[tuple[str, str]]] = {sonames[name]: set() for name in PREFIXES if name in sonames}
    for symbol in matches(["nm", "-D", "--undefined-only"], files, r"^\s*\w (\S+)$"):
        name, _, version = symbol.partition("@")
        library = sonames.get(VERSIONS.get(version, ""), version)
        if not version:
            named = (known for known, prefix in PREFIXES.items() if prefix and name.startswith(prefix))
            library = sonames.get(next(named, ""), "")
        if library in found:
            found[library].add((name, version))
    return found


def matches(command: list[str], files: list[Path], pattern: str) -> list[Any]:
    """Return what of a command's output about the files matches."""
    output = subprocess.run([*command, *files], capture_output=True, text=True, check=True).stdout
    return re.findall(pattern, output, re.MULTILINE)


def link(folder: Path, library: str, functions: str, versions: set[str], *options: str) -> None:
    """Write a library that has these functions, in C, of these versions."""
    source, script = folder / "standin.c", folder / "standin.map"
    source.write_text(functions)
    script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions) or "{ global: *; };\n")
    named = ["-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
    subprocess.run(["cc", *named, "-o", folder / library, source, *options], check=True)
    source.unlink()
    script.unlink()


def build(folder: Path) -> None:
    """Write the libraries into a folder, by the C compiler."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("torch is not installed")
    files = sorted((Path(spec.origin).parent / "lib").glob("*.so"))
    sonames = needed(files)
    for library, symbols in references(files, sonames).items():
        functions = "".join(f"int {name}(void) {{ return 1; }}\n" for name, _ in sorted(symbols))
        link(folder, library, functions, {version for _, version in symbols if version})
    runtime = sonames["cudart"]
    simulation = ["-Wl,--no-as-needed", str(folder / "libcuda.so.1"), "-Wl,-rpath,$ORIGIN"]
    link(folder, runtime, "char standin_for_cudart;\n", {runtime}, *simulation)
    shortcut = folder / "libcudart.so"
    shortcut.unlink(missing_ok=True)
    shortcut.symlink_to(runtime)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
