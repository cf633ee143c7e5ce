"""A stand-in Grid'5000 whose nodes are on paper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.oar import Timing
from tests.testbed.stand_in import StandIn, stand_in


@pytest.fixture
def grid() -> Iterator[StandIn]:
    """A stand-in with nodes on paper, and quick."""
    timing = Timing(waiting_s=0.3, to_launch_s=0.1, launching_s=0.1, killing_s=0.3, deploying_s=0.5)
    with stand_in(None, {"gemini": 2, "parasilo": 2}, timing) as grid:
        yield grid
