"""Traffic of links during a training, from counters before and after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from laggard.network_emulation.links.backend import LinkCounters, LinkHealth
from laggard.network_emulation.links.plan_links import Constraint, Pair
from laggard.run_folder.counters import COUNTERS_FILE, write_counters

BEFORE = {("a", "b"): LinkCounters(100, 4, 1), ("b", "a"): LinkCounters(5_000_000, 40, 0)}
AFTER = {("a", "b"): LinkCounters(150, 6, 1), ("b", "a"): LinkCounters(2_000, 3, 0)}


class CountedLinks:
    """Links at the end of a training."""

    name = "netem"

    def change(self, changes: Mapping[Pair, Constraint]) -> int:
        return 0

    def counters(self) -> Mapping[Pair, LinkCounters]:
        return AFTER

    def lateness_ms(self) -> float | None:
        return None

    def health(self) -> LinkHealth:
        return LinkHealth()

    def check_alive(self) -> None: ...

    def close(self) -> None: ...


def test_a_counter_that_began_anew_counts_what_passed_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_counters(tmp_path, CountedLinks(), BEFORE)
    links = json.loads((tmp_path / COUNTERS_FILE).read_text())["links"]
    assert [(each["bytes"], each["packets"], each["dropped"]) for each in links] == [
        (50, 2, 0),
        (2_000, 3, 0),
    ]
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["b to a"]
