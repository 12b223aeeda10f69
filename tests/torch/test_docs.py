"""What docs/rmm.md shows of torch."""

import pages
import pytest

EXAMPLES = [code for code in pages.examples("rmm.md") if "torch" in code]


@pytest.mark.process(install=False)
@pytest.mark.parametrize("code", EXAMPLES, ids=pages.names)
def test_examples_for_those_who_come_from_rmm(code):
    import flagstone.torch

    exec(code, {})
    assert flagstone.torch.memory_stats().live_blocks > 0
