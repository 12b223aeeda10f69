"""The examples of README.md and of the pages of docs/, as programs that tests run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
"""The text of each page, by its path."""

_TORCH = re.compile(r"^(from|import) (flagstone\.)?torch", re.MULTILINE)


def fences(page: str, language: str) -> list[str]:
    """Return what the page shows in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def program(page: str, *, torch: bool) -> str:
    """Return the page's Python examples, in turn: those that import torch, which need a device, or the others."""
    return "".join(code for code in fences(page, "python") if bool(_TORCH.search(code)) == torch)


def commands(page: str) -> list[str]:
    """Return the `flagstone` command lines that the page shows as ones to try."""
    lines = [line for code in fences(page, "sh") for line in code.splitlines()]
    return [line.partition("  #")[0] for line in lines if line.startswith("flagstone ")]
