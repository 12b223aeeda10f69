"""README.md and the pages of docs/, and their examples as programs that tests run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))}
"""The text of each page, by its path."""

_IMPORTS = re.compile(r"^ *(?:import|from) (?:flagstone\.)?(\w+)", re.MULTILINE)
_LIBRARIES = {"cuda", "cuda_core", "cupy", "numba", "rmm", "torch"}


def fences(page: str, language: str) -> list[str]:
    """Return what the page shows in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def libraries(example: str) -> set[str]:
    """Return which of the libraries that flagstone serves, which need a device, a Python example imports."""
    return _LIBRARIES & set(_IMPORTS.findall(example))


def program(page: str, *, torch: bool = False) -> str:
    """Return the page's Python examples, in turn: those that import torch, or those that import no such library."""
    wanted = {"torch"} if torch else set()
    return "".join(code for code in fences(page, "python") if libraries(code) == wanted)


def commands(page: str) -> list[str]:
    """Return the `flagstone` command lines that the page shows as ones to try."""
    lines = [line for code in fences(page, "sh") for line in code.splitlines()]
    return [line.partition("  #")[0] for line in lines if line.startswith("flagstone ")]


def names(example: str) -> str:
    """Return what an example is called in a list of tests: the modules that it imports."""
    return "-".join(re.findall(r"^import (\S+)", example, re.MULTILINE))
