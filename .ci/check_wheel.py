"""Checks wheels before anybody gets them: the glibc they need, what they link, size, bill of materials, licences.

python check_wheel.py WHEEL...   with an interpreter that has auditwheel and abi3audit
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PLATFORM = "manylinux_2_28"
MOST_BYTES = 5 << 20
LICENCES = {"LICENSE", "THIRD-PARTY-LICENSES.txt"}
UNWINDER = "libgcc_s.so.1"
LINKED = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", UNWINDER}
"""Libraries of every Linux. libgcc_s has the unwinder that an error needs on its way through torch's frames."""


def output(*command: str) -> str:
    """Return what a command prints, or end with what it said."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def tools(module: str, *arguments: str) -> str:
    """Return what a module of this interpreter prints."""
    return output(sys.executable, "-m", module, *arguments)


def version(tag: str) -> tuple[int, ...]:
    """Return the glibc of a platform tag such as manylinux_2_28_x86_64; the numbers come first after the name."""
    return tuple(int(part) for part in tag.split("_")[1:3])


def dependencies() -> set[str]:
    """Return the names of the crates that the extension is built from, on Linux."""
    tree = output(
        *("cargo", "tree", "--locked", "--edges", "normal", "--features", "python", "--prefix", "none"),
        *("--target", "x86_64-unknown-linux-gnu", "--format", "{p}"),
    )
    return {line.split()[0] for line in tree.splitlines() if line}


def materials(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """Return the software bill of materials (CycloneDX, where PEP 770 wants it)."""
    (name,) = [name for name in wheel.namelist() if ".dist-info/sboms/" in name]
    bill: dict[str, Any] = json.loads(wheel.read(name))
    assert bill["bomFormat"] == "CycloneDX", bill["bomFormat"]
    return bill


def check(path: Path) -> None:
    """Check one wheel; says what it found."""
    audit = json.loads(tools("auditwheel", "show", "--json", str(path)))
    assert version(audit["overall_tag"]) <= version(PLATFORM), audit
    assert PLATFORM in path.name, path.name
    assert not audit["external_libs"], audit["external_libs"]
    if "-abi3-" in path.name:
        tools("abi3audit", "--strict", str(path))
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{size} bytes, more than {MOST_BYTES}"
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        (extension,) = [name for name in wheel.namelist() if name.endswith(".so")]
        dynamic = output("readelf", "--dynamic", "--wide", wheel.extract(extension, folder))
        linked = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
        assert linked <= LINKED, linked - LINKED
        assert UNWINDER in linked, linked
        listed = {component["name"] for component in materials(wheel)["components"]}
        licences = {Path(name).name for name in wheel.namelist() if ".dist-info/licenses/" in name}
        assert licences == LICENCES, licences
    missing = dependencies() - listed - {"flagstone"}
    assert not missing, f"not in the bill of materials: {missing}"
    print(f"{path.name}: {size} bytes, needs {audit['sym_tag']}, lists {len(listed)} crates")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        check(Path(argument))
