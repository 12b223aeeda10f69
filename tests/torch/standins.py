"""Empty stand-ins for the CUDA libraries that torch links and an allocator's tests do not need: no 3 GB to download.

    python standins.py FOLDER    # the interpreter's torch; FOLDER goes on LD_LIBRARY_PATH

Each function of theirs that torch refers to is there and fails. A library that is installed is found first by torch.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

LIBRARIES = {
    "libcublas.so.13": "",
    "libcublasLt.so.13": "",
    "libcudnn.so.9": "",
    "libcufft.so.12": "",
    "libcufile.so.0": "cuFile",
    "libcupti.so.13": "",
    "libcurand.so.10": "curand",
    "libcusolver.so.12": "",
    "libcusparse.so.12": "",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvrtc.so.13": "",
    "libnvshmem_host.so.3": "nvshmem",
}
"""The libraries, with what their functions begin with where these carry no version that names the library."""

VERSIONS = {"NVSHMEM": "libnvshmem_host.so.3"}
"""Versions of symbols that are not named like their library."""


def references(torch: Path) -> dict[str, set[tuple[str, str]]]:
    """Return the symbols of each library that torch refers to, with their versions."""
    found: dict[str, set[tuple[str, str]]] = {library: set() for library in LIBRARIES}
    for file in sorted((torch / "lib").glob("*.so")):
        listed = subprocess.run(["nm", "-D", "--undefined-only", file], capture_output=True, text=True, check=True)
        for symbol in re.findall(r"^\s*\w (\S+)$", listed.stdout, re.MULTILINE):
            name, _, version = symbol.partition("@")
            library = VERSIONS.get(version, version)
            if not version:
                named = (known for known, prefix in LIBRARIES.items() if prefix and name.startswith(prefix))
                library = next(named, "")
            if library in found:
                found[library].add((name, version))
    return found


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
