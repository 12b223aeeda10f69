"""A set of addresses, as runs that do not touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Runs:
    """Ranges of addresses that are there, in order."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with ranges, each an address and a number of bytes."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        for address, size in ranges:
            self.add(address, size)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield each run as its address and bytes."""
        return ((start, end - start) for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def bytes(self) -> int:
        """All bytes together."""
        return sum(self._ends) - sum(self._starts)

    def add(self, address: int, size: int) -> None:
        """Add a range; what is there already stays."""
        first, last = bisect_left(self._ends, address), bisect_right(self._starts, address + size)
        start = min([address, *self._starts[first:last][:1]])
        end = max([address + size, *self._ends[first:last][-1:]])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def remove(self, address: int, size: int) -> None:
        """Take a range out; what is not there is not missed."""
        end = address + size
        first, last = bisect_right(self._ends, address), bisect_left(self._starts, end)
        left = [(start, address) for start in self._starts[first:last][:1] if start < address]
        right = [(end, stop) for stop in self._ends[first:last][-1:] if stop > end]
        kept = left + right
        self._starts[first:last] = [start for start, _ in kept]
        self._ends[first:last] = [stop for _, stop in kept]
