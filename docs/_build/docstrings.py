"""An extension of griffe: what is written in Rust has its types from the stubs and its docstrings from the extension."""

import inspect
from typing import Any

import griffe

from flagstone import _core


class FromExtension(griffe.Extension):
    """Fills in the docstrings of `flagstone._core`."""

    def on_package(self, *, pkg: griffe.Module, **_others: Any) -> None:
        """Look at each class and function, and at their members."""
        if pkg.name == "flagstone":
            fill(pkg["_core"], _core)


def fill(known: griffe.Module | griffe.Class, real: object) -> None:
    """Copy docstrings to `known`, an entry of the stubs, from the same thing in the extension."""
    for name, member in known.members.items():
        if name == "__new__":
            member.docstring = griffe.Docstring("Make one.", parent=member)
        if member.is_alias or name.startswith("_") or not hasattr(real, name):
            continue
        text = inspect.getdoc(getattr(real, name))
        if text and (member.is_class or member.is_function or isinstance(known, griffe.Class)):
            member.docstring = griffe.Docstring(text, parent=member)
        if isinstance(member, griffe.Class):
            fill(member, getattr(real, name))
