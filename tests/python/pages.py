"""The Python examples of a page of documentation."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    """Return the examples of a page in docs/. Each is a program of its own."""
    found = FENCE.findall((DOCS / page).read_text())
    assert found, f"{page} has no examples"
    return found


def names(example: str) -> str:
    """Return what an example is called in a list of tests: the modules that it imports."""
    return "-".join(re.findall(r"^import (\S+)", example, re.MULTILINE))
