"""Leads the CUDA runtime that is linked into CuPy to the simulated one.

CuPy's wheels have NVIDIA's libcudart_static inside, which asks the driver for tables that no documentation describes:
it cannot start on a simulated driver. The wheels name each of its functions in their symbol table, so that each can be
made a jump to the function of that name of the simulated runtime. This is done in the memory of this process; no file
is changed.
"""

import ctypes
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

SYMBOL_TABLE = 2
FUNCTION = 2
"""Kinds of sections and of symbols in an ELF file."""

JUMP = struct.Struct("<2sQ2s")
"""movabs $address, %rax; jmp *%rax."""

READ_EXECUTE = mmap.PROT_READ | mmap.PROT_EXEC

NAME = re.compile(r"cuda[A-Z]\w*")


def functions(image: bytes) -> Iterator[tuple[str, int]]:
    """Yield the names of the functions in an ELF file's symbol table, and how far behind its start each is."""
    (table,) = struct.unpack_from("<Q", image, 40)
    entry_bytes, count = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + index * entry_bytes) for index in range(count)]
    for _, kind, _, _, start, size, names, _, _, symbol_bytes in sections:
        if kind != SYMBOL_TABLE:
            continue
        for at in range(start, start + size, symbol_bytes):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", image, at)
            if info & 15 == FUNCTION and section:
                text = sections[names][4] + name
                yield image[text : image.index(b"\0", text)].decode(), value


def loaded_at(path: str) -> int:
    """Return the address at which this process has a library."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, _, _, *file = line.split(maxsplit=5)
        if file == [path] and int(offset, 16) == 0:
            return int(addresses.split("-")[0], 16)
    raise LookupError(f"{path} is not loaded")


def lead(path: str) -> int:
    """Lead the runtime inside a loaded library to the simulated one; return how many functions were led."""
    simulated, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
    # What the simulated runtime lacks says "not supported", as this function does.
    lacking = simulated.cudaDeviceGetNvSciSyncAttributes
    start = loaded_at(path)
    found = [(name, start + value) for name, value in functions(Path(path).read_bytes()) if NAME.fullmatch(name)]
    for name, address in found:
        target = ctypes.cast(getattr(simulated, name, lacking), ctypes.c_void_p).value
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        pages = ctypes.c_void_p(page), ctypes.c_size_t(address + JUMP.size - page)
        for protection in (READ_EXECUTE | mmap.PROT_WRITE, READ_EXECUTE):
            if libc.mprotect(*pages, protection) != 0:
                raise OSError(f"the code of {name} cannot be changed")
            if protection != READ_EXECUTE:
                ctypes.memmove(address, JUMP.pack(b"\x48\xb8", target, b"\xff\xe0"), JUMP.size)
    return len(found)
