"""Random sequences of torch's hooks, each in a process of its own: the hooks' pools are the process's."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("seed", range(6))
def test_the_hooks_agree_with_the_reference(child, seed):
    ran = child(str(Path(__file__).with_name("hooks.py")), str(seed), "1500")
    assert (ran.returncode, ran.stderr) == (0, "")
