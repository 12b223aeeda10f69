"""Nested batches: the tensors in them replaced, everything else as it is."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

Convert: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(batch: Any, convert: Convert) -> Any:
    """Return `batch` with each tensor replaced by what `convert` makes of it.

    Looks into mappings, lists, tuples, named tuples and dataclasses, and keeps their types. What is anything else,
    such as a string, stays the same object, and so does a list or tuple with nothing to replace.
    """
    if isinstance(batch, torch.Tensor):
        return convert(batch)
    if isinstance(batch, Mapping):
        return _mapping(batch, convert)
    if isinstance(batch, PackedSequence):
        # The sizes belong on the host.
        return batch._replace(
            **{name: map_tensors(value, convert) for name, value in batch._asdict().items() if name != "batch_sizes"}
        )
    if isinstance(batch, (list, tuple)):
        return _sequence(batch, convert)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _dataclass(batch, convert)
    return batch


def _sequence(batch: Any, convert: Convert) -> Any:
    converted = [map_tensors(value, convert) for value in batch]
    if all(new is old for new, old in zip(converted, batch, strict=True)):
        return batch
    if type(batch) is list:
        return converted
    if isinstance(batch, list):
        # A copy, as for mappings.
        clone = copy.copy(batch)
        clone[:] = converted
        return clone
    if hasattr(batch, "_make"):
        return batch._make(converted)
    # Its constructor may take something else.
    made = tuple.__new__(type(batch), converted)
    if hasattr(batch, "__dict__"):
        made.__dict__.update(batch.__dict__)
    return made


def _mapping(batch: Mapping[Any, Any], convert: Convert) -> Any:
    converted = {key: map_tensors(value, convert) for key, value in batch.items()}
    if type(batch) is dict:
        return converted
    if isinstance(batch, MutableMapping):
        # A copy keeps what the type has beside its items, as the factory of a defaultdict.
        clone = copy.copy(batch)
        clone.update(converted)
        return clone
    return type(batch)(converted)  # type: ignore[call-arg]


def _dataclass(batch: Any, convert: Convert) -> Any:
    clone = copy.copy(batch)
    for field in dataclasses.fields(batch):
        # As the generated initialiser of a frozen class does it.
        object.__setattr__(clone, field.name, map_tensors(getattr(batch, field.name), convert))
    return clone
