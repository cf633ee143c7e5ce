"""The detector on runs whose stragglers are known: what it tells, when, and that it cannot see
ahead."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.detection.online.detector import OnlineDetector
from laggard.analysis.detection.online.recorded_run import replay_alarms
from laggard.analysis.detection.online.series_bank import REFERENCE_STEPS, SeriesBank
from laggard.analysis.detection.online.step_rows import iterate_async_rows, iterate_lockstep_rows
from laggard.analysis.detection.reference import COMPUTE_CODES
from laggard.analysis.detection.transfers import measure_transfers
from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Noise,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.tables.columns import LinkColumns, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from tests.analysis.asynchronous_runs import as_run, simulated, strategy

TIERS = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4))


def run_of(
    *injections: Injection,
    steps: int = 240,
    seed: int = 3,
    tiers: tuple[Tier, ...] = TIERS,
    **noise: float,
) -> RunData:
    return generate_run(
        TraceSpec(
            tiers=tiers,
            steps=steps,
            fetch_s=0.02,
            noise=Noise(**noise),
            injections=injections,
            seed=seed,
        )
    )


def told(run: RunData) -> list[tuple[str, str, int | None]]:
    return [(alarm.family, alarm.kind, alarm.rank) for alarm in replay_alarms(run)]


@pytest.mark.parametrize("family", ["compute", "storage"])
@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_a_slow_worker_is_told_of_within_a_few_steps_and_when_it_is_over(
    family: str, factor: float
) -> None:
    run = run_of(Injection(family, factor, 120, 179, rank=5))  # type: ignore[arg-type]
    (alarm,) = replay_alarms(run)
    assert (alarm.family, alarm.kind, alarm.rank, alarm.host) == (
        family,
        "dynamic",
        5,
        "edge.trainer.1.2",
    )
    assert alarm.since_step == pytest.approx(120, abs=2)
    assert 126 <= alarm.raised_step <= 132
    assert alarm.last_step == pytest.approx(179, abs=2)
    assert alarm.slowdown == pytest.approx(factor, rel=0.08)
    assert alarm.raised_s > alarm.since_s > 0
    assert alarm.ended_s is not None
    assert alarm.ended_s > alarm.raised_s


def test_what_goes_on_is_not_over() -> None:
    (alarm,) = replay_alarms(run_of(Injection("compute", 2.0, 150, None, rank=1)))
    assert (alarm.kind, alarm.rank, alarm.last_step, alarm.ended_s) == ("dynamic", 1, None, None)


def test_slow_transfers_are_told_of_with_their_link() -> None:
    run = run_of(Injection("network", 4.0, 120, 179, tiers=("fog", "edge")), steps=300)
    (alarm,) = [each for each in replay_alarms(run) if each.kind == "dynamic"]
    assert (alarm.family, alarm.rank, alarm.host) == ("network", None, None)
    assert alarm.link == ("fog.trainer.1.2", "edge.trainer.1.1")
    assert 126 <= alarm.raised_step <= 134


def test_without_samples_no_link_is_named() -> None:
    run = generate_run(
        TraceSpec(
            tiers=TIERS,
            steps=240,
            with_links=False,
            injections=(Injection("network", 4.0, 120, 179, tiers=("fog", "edge")),),
        )
    )
    (alarm,) = replay_alarms(run)
    assert (alarm.family, alarm.link) == ("network", None)


def test_slower_hosts_are_told_of_once_there_are_steps_enough() -> None:
    run = run_of(tiers=(Tier("cloud", 2), Tier("edge", 3, 3.0)))
    alarms = replay_alarms(run)
    assert [(a.family, a.kind, a.rank) for a in alarms] == [
        ("compute", "deterministic", rank) for rank in (2, 3, 4)
    ]
    assert all(20 <= a.raised_step <= 32 and a.last_step is None for a in alarms)
    assert [a.slowdown for a in alarms] == pytest.approx([3.0] * 3, rel=0.08)


def test_a_slow_link_is_told_of_once_there_are_steps_enough() -> None:
    run = run_of(Injection("network", 4.0, 0, None, tiers=("fog", "edge")))
    (alarm,) = replay_alarms(run)
    assert (alarm.family, alarm.kind) == ("network", "deterministic")
    assert alarm.link in {
        ("fog.trainer.1.2", "edge.trainer.1.1"),
        ("edge.trainer.1.1", "fog.trainer.1.2"),
    }


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_told_of_level_runs(seed: int) -> None:
    """Spikes of twice the time for up to three steps, drift that all share, hosts that differ by a
    percent."""
    assert told(run_of(seed=seed, steps=400)) == []


def test_unequal_batches_are_nobodys_slowness() -> None:
    for imbalance in ("shares", "drawn", "shift"):
        spec = TraceSpec(
            tiers=TIERS, steps=300, imbalance=imbalance, noise=Noise(sigma=0.03), seed=9
        )  # type: ignore[arg-type]
        assert told(generate_run(spec)) == [], imbalance


def test_the_machine_under_all_is_no_workers_fault() -> None:
    """All ranks at 1.4 for 60 steps: what slows three quarters at once is the machine."""
    run = run_of(*(Injection("compute", 1.4, 100, 159, rank=rank) for rank in range(8)))
    assert [each for each in told(run) if each[0] == "compute"] == []


def upto(run: RunData, step: int) -> RunData:
    """The run as if it had been killed after a step."""
    end_ns = int(run.spans.end_ns[run.spans.step == step].max())
    return dataclasses.replace(
        run,
        spans=run.spans.where(run.spans.step <= step),
        links=run.links.where(run.links.time_ns <= end_ns),
    )


def test_it_cannot_see_ahead() -> None:
    """What is told by step 150 is the same whatever happens later."""
    whole = run_of(
        Injection("compute", 2.0, 100, 180, rank=2),
        Injection("network", 4.0, 160, 200, tiers=("fog", "edge")),
    )
    early = [alarm for alarm in replay_alarms(whole) if alarm.raised_step <= 150]
    cut = replay_alarms(upto(whole, 150))
    assert [(a.number, a.rank, a.since_step, a.raised_step) for a in early] == [
        (a.number, a.rank, a.since_step, a.raised_step) for a in cut
    ]
    assert cut[0].last_step is None


def test_parts_are_as_good_as_the_whole() -> None:
    """The rows of some steps are the same whether spans come at once or in parts."""
    run = run_of(steps=40)
    world = run.world_size
    whole = list(iterate_lockstep_rows(run.spans, world))
    parts = [
        row
        for begin in range(0, 40, 7)
        for row in iterate_lockstep_rows(
            run.spans.where((run.spans.step >= begin) & (run.spans.step < begin + 7)), world
        )
    ]
    assert len(whole) == len(parts) == 40
    for one, other in zip(whole, parts, strict=True):
        assert (one.groups, one.group_s) == (other.groups, other.group_s)
        np.testing.assert_array_equal(one.local_s["compute"], other.local_s["compute"])


def test_steps_are_those_that_the_analysis_sees() -> None:
    """The same compute and transfers as the timeline's and the transfers', which the findings are
    made of."""
    run = run_of(steps=60)
    timeline = build_timeline(run)
    transfers = measure_transfers(timeline)
    for index, row in enumerate(iterate_lockstep_rows(run.spans, run.world_size)):
        expected = timeline.work.total(COMPUTE_CODES)[index]
        np.testing.assert_allclose(row.local_s["compute"], expected, rtol=1e-6)
        assert sum(row.group_s) == pytest.approx(float(transfers.step_seconds[index]), rel=1e-9)
        np.testing.assert_array_equal(row.samples, timeline.samples[index])


def test_what_it_holds_does_not_grow() -> None:
    """Ten times as many steps, the same arrays."""

    def held(steps: int) -> int:
        bank = SeriesBank(3, 1e6)
        rng = np.random.default_rng(0)
        for step in range(steps):
            step_times = np.tile([step, step, step + 1], (3, 1))
            bank.update(np.arange(3), np.exp(0.05 * rng.standard_normal(3)), np.ones(3), step_times)
        return sum(value.nbytes for value in vars(bank).values() if isinstance(value, np.ndarray))

    assert held(3 * REFERENCE_STEPS) == held(30 * REFERENCE_STEPS)


def test_ranks_of_their_own_pace_are_watched_each_by_its_own_steps() -> None:
    rng = np.random.default_rng(5)
    seconds = [np.exp(0.05 * rng.standard_normal(count)) for count in (300, 300, 150)]
    seconds[2] *= 2.0
    seconds[0][200:260] *= 3.0
    run = as_run(
        strategy("asynchronous"),
        simulated(None, seconds, [np.full(len(s), 1e-3) for s in seconds]),
        300.0,
    )
    alarms = {(alarm.kind, alarm.rank): alarm for alarm in replay_alarms(run)}
    assert set(alarms) == {("deterministic", 2), ("dynamic", 0)}
    assert alarms["dynamic", 0].since_step == pytest.approx(200, abs=2)
    assert alarms["dynamic", 0].last_step == pytest.approx(259, abs=2)
    assert alarms["deterministic", 2].slowdown == pytest.approx(2.0, rel=0.1)


def test_no_steps_tell_nothing() -> None:
    run = run_of(steps=3)
    empty = run.spans.where(np.zeros(0, dtype=np.int64))
    assert isinstance(empty, SpanColumns)
    assert isinstance(run.links, LinkColumns)
    assert list(iterate_lockstep_rows(empty, 8)) == []
    assert list(iterate_async_rows(empty, 8)) == []
    rows = next(iter(iterate_lockstep_rows(run.spans, 8)))
    nobody = dataclasses.replace(rows, ranks=np.zeros(0, dtype=np.int64))
    assert OnlineDetector(run.hosts).update(nobody) == ()
