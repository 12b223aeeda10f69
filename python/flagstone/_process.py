"""The process's pools, one for each device, which the adapters for other libraries share."""

from typing import Literal, TypeAlias

from flagstone import _core

Backend: TypeAlias = Literal["auto", "cuda", "sim"]


def configure(backend: Backend, settings: dict[str, object]) -> None:
    """Set what the process's pools are made with; `ConfigError` where other settings are in force already."""
    _core.configure(backend, ",".join(f"{key}:{value}" for key, value in settings.items() if value is not None))
