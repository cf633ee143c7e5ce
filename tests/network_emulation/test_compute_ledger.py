"""The arithmetic of shares against its theory: wall time of phases = CPU time / share, up to one
slice carried over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.network_emulation.compute.ledger import CATCH_UP_NS, Ledger

_US = 1_000
_MS = 1_000_000
_SLICE_NS = _MS


def _wall_of_phases(
    ledger: Ledger, phases_us: list[int], gaps_us: list[int], look_us: int
) -> list[int]:
    """Wall ns of each phase of a worker alone on its core, looked at every `look_us`, held back
    while it computes."""
    walls = []
    for phase_us, gap_us in zip(phases_us, gaps_us, strict=True):
        ledger.observe(gap_us * _US, 0, 0)
        left, wall = phase_us * _US, 0
        while left > 0:
            ran = min(left, look_us * _US)
            left -= ran
            wall += ran
            ledger.observe(look_us * _US, ran, 0)
            if left > 0 and ledger.used_ns >= _SLICE_NS and ledger.owed_ns > 0:
                held = int(ledger.owed_ns)
                ledger.pay(held, queue_remembers=False)
                wall += held
        walls.append(wall)
    return walls


@settings(deadline=None)
@given(
    st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9]),
    st.lists(st.tuples(st.integers(100, 20_000), st.integers(0, 20_000)), min_size=1, max_size=40),
    st.sampled_from([50, 250, 1000]),
)
def test_phases_take_their_cpu_time_over_the_share(
    share: float, phases: list[tuple[int, int]], look_us: int
) -> None:
    ledger = Ledger(share)
    wall = sum(_wall_of_phases(ledger, [p for p, _ in phases], [g for _, g in phases], look_us))
    cpu = sum(p for p, _ in phases) * _US
    slices = (_SLICE_NS + 2 * look_us * _US) * ledger.slow_by + sum(
        p < 1000 for p, _ in phases
    ) * _MS * ledger.slow_by
    assert wall <= cpu / share + len(phases)
    assert wall >= cpu / share - slices - len(phases)


@pytest.mark.parametrize("phase_us", [1000, 10_000, 100_000])
def test_short_phases_are_slowed_like_long_ones(phase_us: int) -> None:
    ledger = Ledger(0.1)
    count = 400_000 // phase_us
    walls = _wall_of_phases(ledger, [phase_us + 7] * count, [5000] * count, 100)
    assert sum(walls) / (count * (phase_us + 7) * _US) == pytest.approx(10, rel=0.03)


def test_idle_time_earns_nothing() -> None:
    ledger = Ledger(0.25)
    ledger.observe(_MS, _MS, 0)
    owed = ledger.owed_ns
    ledger.observe(1000 * _MS, 0, 0)
    assert ledger.owed_ns == owed == 3 * _MS


def test_waiting_for_the_core_counts_as_time_taken() -> None:
    ledger = Ledger(0.25)
    ledger.observe(3 * _MS, _MS, 2 * _MS)
    assert ledger.owed_ns == 1 * _MS


def test_overlapping_waits_of_threads_count_once() -> None:
    ledger = Ledger(0.25)
    ledger.observe(3 * _MS, _MS, 20 * _MS)
    assert ledger.owed_ns == 1 * _MS


def test_a_wait_that_ends_later_is_counted_then() -> None:
    ledger = Ledger(0.25)
    ledger.observe(2 * _MS, 0, 0)
    ledger.observe(_MS, _MS, 2 * _MS)
    assert ledger.owed_ns == 1 * _MS


def test_lateness_is_made_up_for_within_bounds() -> None:
    ledger = Ledger(0.5)
    for _ in range(100):
        ledger.observe(2 * _MS, 0, 0)
    ledger.observe(_MS, _MS, 200 * _MS)
    assert ledger.owed_ns == -CATCH_UP_NS
    assert ledger.lost_ns == 200 * _MS - _MS - CATCH_UP_NS


def test_a_whole_core_that_is_waited_for_is_lost() -> None:
    ledger = Ledger(1.0)
    ledger.observe(5 * _MS, 3 * _MS, 2 * _MS)
    assert (ledger.lost_ns, ledger.owed_ns) == (2 * _MS, 0)


def test_a_new_share_reprices_what_is_owed() -> None:
    ledger = Ledger(0.25)
    ledger.observe(_MS, _MS, 0)
    ledger.share = 0.1
    assert ledger.owed_ns == pytest.approx(9 * _MS)
    ledger.share = 1.0
    assert ledger.owed_ns == 0
    ledger.share = 0.5
    assert ledger.owed_ns == 0


def test_what_is_computed_while_held_back_is_owed_in_full() -> None:
    ledger = Ledger(0.2)
    ledger.observe_held(_MS)
    assert ledger.owed_ns == 5 * _MS
