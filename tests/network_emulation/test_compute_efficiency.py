"""Work that is counted: what a host is charged for is what its steps are worth, however much CPU
time they take."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.work_counter import WorkCounter, WorkDone
from laggard.network_emulation.compute.efficiency import (
    WARM_UP_STEPS,
    Efficiency,
    compute_excess_slowdown,
)
from laggard.network_emulation.compute.ledger import CATCH_UP_NS, Ledger
from laggard.network_emulation.dilation import compute_load

_MS = 1_000_000


def _warmed_up(path: Path) -> WorkCounter:
    """A worker's counter after the steps that do not count."""
    worker = WorkCounter(path)
    for _ in range(WARM_UP_STEPS):
        worker.add(_MS, 9 * _MS)
    return worker


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_cores_are_planned_for_what_is_expected(share: float) -> None:
    assert compute_load(share) == pytest.approx(share / expected_efficiency(share))


@settings(deadline=None, max_examples=50)
@given(
    st.floats(0.02, 0.9),
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.55, 1.05)), min_size=3, max_size=40),
    st.integers(1, 5),
)
def test_all_that_is_charged_is_what_the_steps_were_worth(
    tmp_path_factory: pytest.TempPathFactory,
    share: float,
    steps: list[tuple[int, float]],
    looks: int,
) -> None:
    """Over a whole training the wall time is work / share, exactly, but for what one step may be
    amiss."""
    path = tmp_path_factory.mktemp("work") / "work"
    with _warmed_up(path) as worker, WorkCounter(path) as seen:
        efficiency, charged, work = Efficiency(seen, share), 0.0, 0.0
        worker.set_computing(True)
        for cpu_ms, worth in steps:
            cpu_ns = cpu_ms * _MS
            for _ in range(looks):
                charged += efficiency.charge_uncounted()
                charged += efficiency.charge(cpu_ns // looks)
            worker.add(round(cpu_ns * worth), cpu_ns)
            work += round(cpu_ns * worth)
        charged += efficiency.charge_uncounted()
        assert charged + efficiency.outstanding_ns == pytest.approx(work, rel=1e-6)
        assert (
            abs(efficiency.outstanding_ns) < 3 * 50 * _MS
        )  # a few steps' worth, however many there were


def test_what_cpu_time_is_worth_is_learnt_from_the_first_step_on(tmp_path: Path) -> None:
    with _warmed_up(tmp_path / "work") as worker, WorkCounter(tmp_path / "work") as seen:
        efficiency = Efficiency(seen, 0.2)
        assert efficiency.value == pytest.approx(1 / 1.8)
        worker.add(4 * _MS, 5 * _MS)
        efficiency.charge_uncounted()
        assert efficiency.value == pytest.approx(0.8)
        for _ in range(30):
            worker.add(3 * _MS, 5 * _MS)
            efficiency.charge_uncounted()
        assert efficiency.value == pytest.approx(0.6, abs=0.001)


def test_the_first_steps_of_a_training_are_neither_learnt_from_nor_made_up_for(
    tmp_path: Path,
) -> None:
    with WorkCounter(tmp_path / "work") as worker, WorkCounter(tmp_path / "work") as seen:
        efficiency = Efficiency(seen, 0.2)
        worker.set_computing(True)
        for _ in range(WARM_UP_STEPS):
            efficiency.charge(90 * _MS)
            worker.add(10 * _MS, 90 * _MS)
            assert efficiency.charge_uncounted() == 0
        assert efficiency.value == pytest.approx(1 / 1.8)
        assert efficiency.outstanding_ns == 0
        worker.add(4 * _MS, 5 * _MS)
        efficiency.charge_uncounted()
        assert efficiency.value == pytest.approx(0.8)


def test_moving_data_is_not_work(tmp_path: Path) -> None:
    with _warmed_up(tmp_path / "work") as worker, WorkCounter(tmp_path / "work") as seen:
        efficiency = Efficiency(seen, 0.5)
        assert efficiency.charge(_MS) == 0
        worker.set_computing(True)
        assert efficiency.charge(_MS) > 0
        worker.set_computing(False)
        assert efficiency.charge(_MS) == 0


def test_one_step_of_nonsense_is_believed_within_bounds(tmp_path: Path) -> None:
    with _warmed_up(tmp_path / "work") as worker, WorkCounter(tmp_path / "work") as seen:
        efficiency = Efficiency(seen, 0.5)
        worker.add(1000 * _MS, 1)
        assert 0 < efficiency.charge_uncounted() + efficiency.outstanding_ns <= 1000 * _MS
        before_ns = efficiency.outstanding_ns
        assert efficiency.value <= 2
        worker.add(1, 1000 * _MS)
        worker.set_computing(True)
        efficiency.charge(500 * _MS)
        assert efficiency.charge_uncounted() + efficiency.outstanding_ns == before_ns - 1
        worker.add(1, 0)
        efficiency.charge_uncounted()


def test_no_host_needs_more_than_its_core_was_planned_to_give(tmp_path: Path) -> None:
    with _warmed_up(tmp_path / "work") as worker, WorkCounter(tmp_path / "work") as seen:
        efficiency = Efficiency(seen, 0.3, fullness=0.8)
        worker.set_computing(True)
        for _ in range(100):
            efficiency.charge(9 * _MS)
            worker.add(_MS, 9 * _MS)  # so short that nothing of it is ever warm
            efficiency.charge_uncounted()
        assert efficiency.value == pytest.approx(0.8 / 1.7)
        assert abs(efficiency.outstanding_ns) < _MS


def test_what_was_done_under_another_share_is_not_settled_under_this_one(tmp_path: Path) -> None:
    with _warmed_up(tmp_path / "work") as worker, WorkCounter(tmp_path / "work") as seen:
        efficiency = Efficiency(seen, 1.0)
        worker.add(50 * _MS, 50 * _MS)
        efficiency.change_share(0.1)
        assert efficiency.charge_uncounted() == 0
        assert efficiency.value == pytest.approx(1 / 1.9)
        worker.add(50 * _MS, 90 * _MS)  # begun under the other share
        assert efficiency.charge_uncounted() == 0
        worker.add(50 * _MS, 90 * _MS)
        assert efficiency.charge_uncounted() + efficiency.outstanding_ns == 50 * _MS


@pytest.mark.parametrize(
    ("done", "least", "slower"),
    [
        (WorkDone(), 0.5, 1.0),
        (WorkDone(9, 50 * _MS, 100 * _MS), 0.4, 1.0),
        (WorkDone(9, 50 * _MS, 100 * _MS), 0.5, 1.0),
        (WorkDone(9, 10 * _MS, 100 * _MS), 0.5, 5.0),
        (WorkDone(9, 10 * _MS, 100 * _MS), 0.0, 1.0),
    ],
)
def test_who_was_left_short_is_slower_by_what_is_missing(
    done: WorkDone, least: float, slower: float
) -> None:
    assert compute_excess_slowdown(done, least) == pytest.approx(slower)


def test_cpu_time_that_is_worth_half_is_paid_for_by_half() -> None:
    ledger = Ledger(0.25)
    ledger.observe(_MS, _MS, 0, _MS / 2)
    assert ledger.owed_ns == _MS  # 0.5 / 0.25 of wall time, one of which has passed


def test_a_host_that_cannot_have_its_speed_is_told_of() -> None:
    ledger = Ledger(0.8)
    for _ in range(100):
        ledger.observe(_MS, _MS, 0, 0.6 * _MS)  # would need 4 / 3 of the core
    assert ledger.lost_ns == pytest.approx(100 * 0.25 * _MS - CATCH_UP_NS)


def test_a_correction_makes_up_within_bounds_and_is_no_loss() -> None:
    ledger = Ledger(0.5)
    ledger.correct(3 * _MS)
    assert ledger.owed_ns == 6 * _MS
    ledger.correct(-1000 * _MS)
    assert (ledger.owed_ns, ledger.lost_ns) == (-CATCH_UP_NS, 0)
    ledger.correct(_MS)
    assert ledger.owed_ns == 2 * _MS - CATCH_UP_NS
