"""Empty stand-ins for the CUDA libraries that torch links and an allocator's tests do not need: no 3 GB to download.

    python standins.py FOLDER    # the interpreter's torch; FOLDER goes on LD_LIBRARY_PATH

Each function of theirs that torch refers to is there and fails. A library that is installed is found first by torch.
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


def references(torch: Path) -> dict[str, set[tuple[str, str]]]:
    """Return the symbols of each library that torch refers to, with their versions."""
    files = sorted((torch / "lib").glob("*.so"))
    # As libcublas.so.13, by the name without the version.
    sonames = {name: soname for soname, name in matches(["readelf", "-d"], files, r"\[(lib(\w+)\.so\.\d+)\]")}
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


def build(folder: Path) -> None:
    """Write the libraries into a folder, by the C compiler."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("torch is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    for library, symbols in references(Path(spec.origin).parent).items():
        source, script = folder / "standin.c", folder / "standin.map"
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name, _ in sorted(symbols)))
        versions = {version for _, version in symbols if version}
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions) or "{ global: *; };\n")
        options = ["-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
        subprocess.run(["cc", *options, "-o", folder / library, source], check=True)
        source.unlink()
        script.unlink()


if __name__ == "__main__":
    build(Path(sys.argv[1]))
