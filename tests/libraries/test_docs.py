"""What pages show with the real libraries, and that docs/rmm.md has all of RMM's names."""

import ast
import importlib.metadata
import re

import pages
import pytest
import simcuda
from pages import DOCS

EXAMPLES = [
    (page, code)
    for page in pages.PAGES
    for code in pages.fences(page, "python")
    if pages.libraries(code) and "torch" not in pages.libraries(code)
]
"""Each is a program of its own. tests/python has those without a library, tests/torch those with torch."""

LEAD = """\
import static_runtime
from cupy_backends.cuda.api import runtime
static_runtime.lead(runtime.__file__)
"""
"""What CuPy needs before its first call."""


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=[f"{page}-{pages.names(code)}" for page, code in EXAMPLES])
def test_examples(page, code, child, tmp_path):
    code = (LEAD if "cupy" in code else "") + code
    environment = simcuda.environment()
    folders = [*environment["PYTHONPATH"].split(":"), "tests/libraries"]
    environment["PYTHONPATH"] = ":".join(str(DOCS.parent / folder) for folder in folders if folder)
    ran = child(code, env=environment, cwd=tmp_path)
    assert ran.returncode == 0, f"{page}: {ran.stderr}"
    assert "simcuda:" not in ran.stderr, ran.stderr


def source(path: str) -> ast.Module:
    """Return a file of RMM's, which is not imported."""
    (file,) = [file for file in importlib.metadata.files("rmm-cu13") if str(file) == path]
    return ast.parse(file.read_text())


def declared(path: str) -> set[str]:
    """Return the names of `__all__` in a file of RMM's."""
    for node in source(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise LookupError(path)


def defined(path: str) -> set[str]:
    """Return the functions and classes in a file of RMM's, and what the file calls an allocator."""
    nodes = source(path).body
    names = {node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    names |= {ast.unparse(node.targets[0]) for node in nodes if isinstance(node, ast.Assign)}
    return {name for name in names if not name.startswith("_") and name not in {"P", "R", "T"}}


def test_the_page_for_rmm_has_all_of_its_names():
    page = (DOCS / "rmm.md").read_text()
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", prose))))
    public = declared("rmm/mr/__init__.py") | declared("rmm/__init__.py") | defined("rmm/statistics.py")
    for library in ("cupy", "numba", "torch"):
        public |= defined(f"rmm/allocators/{library}.py")
    assert len(public) > 50
    assert public - named == set()


def test_rmm_can_stand_on_a_pool(device):
    import rmm

    import flagstone

    pool = flagstone.Pool(0, backend="cuda")
    resource = rmm.mr.CallbackMemoryResource(pool.alloc_raw, lambda address, _, stream: pool.free_raw(address, stream))
    address = resource.allocate(1000)
    assert pool.stats().live_blocks == 1
    assert pool.stats().requested_bytes >= 1000
    resource.deallocate(address, 1000)
    assert pool.stats().live_blocks == 0
