"""What is set once for a process: its pools, which the adapters for other libraries share, and environment switches."""

import os
from typing import Literal, TypeAlias

from flagstone import _core
from flagstone.errors import ConfigError

Backend: TypeAlias = Literal["auto", "cuda", "sim"]


_backend: Backend | None = None
"""That of the settings that are in force."""


def configure(backend: Backend, settings: dict[str, object]) -> None:
    """Set what the process's pools are made with; `ConfigError` where other settings are in force already.

    A later call without settings leaves those that are in force: several libraries share the pools.
    """
    global _backend
    given = {key: value for key, value in settings.items() if value is not None}
    if given or backend != _backend:
        _core.configure(backend, ",".join(f"{key}:{_text(value)}" for key, value in given.items()))
        _backend = backend


def _text(value: object) -> object:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def switched_on(variable: str, allowed: str) -> bool:
    """Whether an environment variable is 1; `ConfigError`, with what is allowed, if it is neither 1, 0 nor empty."""
    value = os.environ.get(variable, "")
    if value not in {"", "0", "1"}:
        message = f"environment variable {variable}: {value!r} is not allowed; allowed: {allowed}"
        raise ConfigError(message, key=variable, value=value, allowed=allowed)
    return value == "1"
