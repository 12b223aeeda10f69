"""Bytes held over time, drawn by matplotlib, which is needed for nothing else."""

from itertools import groupby
from operator import itemgetter
from typing import Any

from flagstone.errors import FlagstoneError

_GIB = 1 << 30


def need_matplotlib() -> None:
    """Raise `FlagstoneError` where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise FlagstoneError(f"pictures need matplotlib ({error}); pip install 'flagstone[plot]'") from error


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw a panel for each trace with a line for each allocator's bytes held, and write the file that `path` names."""
    from matplotlib.figure import Figure

    traces = [(name, list(group)) for name, group in groupby(rows, key=itemgetter("case"))]
    figure = Figure(figsize=(12, 3 * len(traces)), layout="constrained")
    for panel, (name, group) in zip(figure.subplots(len(traces), squeeze=False)[:, 0], traces, strict=True):
        for row in group:
            times, live, held = zip(*row["series"], strict=True)
            seconds = [time / 1e6 for time in times]
            panel.step(seconds, [value / _GIB for value in held], where="post", linewidth=1, label=row["allocator"])
        panel.fill_between(seconds, [value / _GIB for value in live], step="post", color="0.85", label="live")
        panel.set(title=name, xlabel="seconds of the trace", ylabel="GiB held", ylim=(0, None))
        panel.legend(fontsize="small", loc="lower right")
    figure.savefig(path)
