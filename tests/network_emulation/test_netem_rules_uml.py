"""Several rules for one source under a real netem: all hold here, and E2Clab 3.7's own deployment
keeps the last one."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.e2clab_rules_netem import DELAYS_MS, compare

from tests.uml import kernel
from tests.uml.tolerance import takes

pytestmark = [
    pytest.mark.uml,
    pytest.mark.long,
    pytest.mark.skipif(bool(kernel.missing()), reason=kernel.missing() or "can run"),
]


def test_all_rules_of_one_source_hold(tmp_path: Path) -> None:
    one_way, both_ways = compare(tmp_path)
    for comparison, factor in ((one_way, 1), (both_ways, 2)):
        asked_ms = {tier: factor * delay_ms for tier, delay_ms in DELAYS_MS.items()}
        ours_ms, theirs_ms = comparison["laggard"]["rtt_ms"], comparison["e2clab"]["rtt_ms"]
        assert all(takes(ours_ms[tier], asked_ms[tier]) for tier in DELAYS_MS), ours_ms
        assert takes(theirs_ms["cloud"], asked_ms["cloud"]), theirs_ms
        assert theirs_ms["fog"] < ours_ms["fog"], "the edge's own rule for the fog is gone"
