"""The entry point that torch calls while it is imported; what it does with torch is in tests/torch."""

import sys
from importlib.metadata import entry_points

import pytest

import flagstone
from flagstone import _autoload


def test_torch_finds_the_entry_point():
    (point,) = entry_points(group="torch.backends", name="flagstone")
    assert point.load() is _autoload.load


@pytest.mark.parametrize("value", [None, "", "0"])
def test_unless_it_is_asked_for_nothing_is_imported(monkeypatch, value):
    if value is None:
        monkeypatch.delenv(_autoload.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(_autoload.VARIABLE, value)
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would be an error
    _autoload.load()


def test_a_value_that_means_nothing_is_refused(monkeypatch):
    monkeypatch.setenv(_autoload.VARIABLE, "on")
    with pytest.raises(flagstone.ConfigError, match=r"FLAGSTONE_TORCH.*'on'.*1 to make flagstone") as caught:
        _autoload.load()
    assert (caught.value.key, caught.value.value) == ("FLAGSTONE_TORCH", "on")
