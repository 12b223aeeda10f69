"""The picture of `flagstone bench fragmentation`: bytes held over time."""

import sys

import pytest
from matplotlib.figure import Figure

from flagstone import _core
from flagstone.cli import picture
from flagstone.errors import FlagstoneError

GIB = 1 << 30


@pytest.fixture(scope="module")
def rows():
    """Rows of two traces on two allocators."""
    trace = _core.Trace.example()
    reports = {"torch-native": _core.model(trace, "torch-native"), "flagstone": _core.replay(trace)}
    return [{"case": case, "allocator": name, **reports[name]} for case in ("one", "two") for name in reports]


def test_each_trace_has_a_panel_and_each_allocator_a_line(rows, tmp_path, monkeypatch):
    figures = []

    savefig = Figure.savefig

    def save(figure, path):
        figures.append(figure)
        savefig(figure, path)

    monkeypatch.setattr(Figure, "savefig", save)
    path = tmp_path / "held.png"
    picture.draw(rows, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    assert [panel.get_title() for panel in figure.axes] == ["one", "two"]
    for panel in figure.axes:
        lines = {line.get_label(): line for line in panel.get_lines()}
        for row in rows[:2]:
            held = [reserved for _, _, reserved in row["series"]]
            assert list(lines[row["allocator"]].get_ydata()) == [value / GIB for value in held]
            assert max(held) == pytest.approx(row["peak_reserved_bytes"], rel=0.05)
        assert {text.get_text() for text in panel.get_legend().get_texts()} == {*lines, "live"}


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FlagstoneError, match=r"pip install 'flagstone\[plot\]'"):
        picture.need_matplotlib()
