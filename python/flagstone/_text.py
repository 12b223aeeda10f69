"""Numbers and tables as people read them."""

from collections.abc import Iterable, Sequence

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(nbytes: float) -> str:
    """Write a number of bytes for people: 1536 is "1.5 KiB"."""
    unit = 0
    while abs(nbytes) >= 1024 and unit < len(_UNITS) - 1:
        nbytes /= 1024
        unit += 1
    return f"{nbytes:.0f} {_UNITS[0]}" if unit == 0 else f"{nbytes:,.1f} {_UNITS[unit]}"


def duration(microseconds: float) -> str:
    """Write a time for people: 1500 microseconds are "1.5 ms"."""
    if microseconds < 1e3:
        return f"{microseconds:.1f} µs"
    return f"{microseconds / 1e3:,.1f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:,.2f} s"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out rows in columns: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def layout(line: Sequence[str]) -> str:
        first, *others = zip(line, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    return "\n".join([layout(header), "  ".join("-" * width for width in widths), *map(layout, lines[1:])])
