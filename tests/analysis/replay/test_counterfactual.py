"""Runs replayed otherwise: against runs that were made otherwise, and closed forms."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.evaluate.synthetic.trace_spec import QUIET, Injection, Tier, TraceSpec
from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.replay.what_if.counterfactual import Counterfactual, build_replay
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import InputError, RunFolderError
from tests.analysis.asynchronous_runs import as_run, simulated, strategy

TIERS = (Tier("cloud", 2), Tier("edge", 2))
SLOW = Injection("compute", 3.0, rank=2)


def run_of(*injections: Injection, **changes: float) -> RunData:
    return generate_run(
        TraceSpec(tiers=TIERS, steps=80, noise=QUIET, injections=injections, seed=5, **changes)
    )  # type: ignore[arg-type]


def makespan_s(run: RunData) -> float:
    assert run.record is not None
    assert run.record.outcome is not None
    return run.record.outcome.makespan_s


def test_nothing_otherwise_is_the_run() -> None:
    run = run_of(SLOW)
    assert build_replay(run).makespan_s() == pytest.approx(makespan_s(run), rel=1e-3)


def test_without_its_causes_it_is_the_run_that_had_none() -> None:
    replay = build_replay(run_of(SLOW))
    assert [cause.rank for cause in replay.causes] == [2]
    # The three steps of warm-up, which take three times as long as others and of which nothing can
    # be told, stay slow.
    warm_up_s = 3 * 3 * (3.0 - 1.0) * 0.065
    expected_s = makespan_s(run_of()) + warm_up_s
    assert replay.makespan_s(Counterfactual(without=frozenset({0}))) == pytest.approx(
        expected_s, rel=1e-3
    )


def test_a_slow_worker_that_is_as_fast_as_the_others_holds_nobody_up() -> None:
    faster = build_replay(run_of(SLOW)).makespan_s(Counterfactual(speeds={2: 3.0}))
    assert faster == pytest.approx(makespan_s(run_of()), rel=0.01)


def test_speeds_and_causes_do_not_count_twice() -> None:
    """Half as fast again as a healthy worker it waits for the others; only its warm-up is still
    slower than theirs."""
    both = build_replay(run_of(SLOW)).makespan_s(
        Counterfactual(without=frozenset({0}), speeds={2: 1.5})
    )
    warm_up_s = 3 * 3 * (3.0 / 1.5 - 1.0) * 0.065
    assert both == pytest.approx(makespan_s(run_of()) + warm_up_s, rel=1e-3)


def test_slower_transfers_are_those_of_slower_links() -> None:
    run = run_of(rate_mbps=200.0)
    slower = build_replay(run).makespan_s(Counterfactual(transfers=0.5))
    # Of a transfer 2 ms are no matter of the rate.
    fixed_s = 80 * 2 * 0.002
    assert slower - fixed_s == pytest.approx(makespan_s(run_of(rate_mbps=100.0)), rel=0.01)


def test_ranks_of_their_own_pace_learn_as_much_sooner() -> None:
    """Steps of 1, 1 and 4 s in 120 s; were the third as fast as the others, 2.25 / 3 of that, but
    for its first step."""
    seconds = [np.full(120, 1.0), np.full(120, 1.0), np.full(30, 4.0)]
    run = as_run(
        strategy("asynchronous"),
        simulated(None, seconds, [np.full(len(s), 1e-3) for s in seconds]),
        120.0,
    )
    replay = build_replay(run)
    assert replay.makespan_s() == pytest.approx(120.0, rel=1e-3)
    assert replay.makespan_s(Counterfactual(speeds={2: 4.0})) == pytest.approx(90.0, rel=0.01)
    assert replay.makespan_s(Counterfactual(speeds={0: 2.0, 1: 2.0, 2: 2.0})) == pytest.approx(
        60.0, rel=0.01
    )
    assert replay.makespan_s(Counterfactual(without=frozenset({0}))) == pytest.approx(
        analyze_run(run).without_causes_s, rel=1e-6
    )


@pytest.mark.parametrize(
    "asked", [{"transfers": 0.0}, {"speeds": {0: -1.0}}, {"transfers": float("nan")}]
)
def test_what_is_no_speed_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must be greater than 0"):
        Counterfactual(**asked)  # type: ignore[arg-type]


def test_a_run_that_workers_left_cannot_be_replayed() -> None:
    run = as_run(
        strategy("asynchronous"),
        simulated(None, [np.full(20, 1.0)] * 2, [np.full(20, 0.1)] * 2),
        20.0,
    )
    assert run.record is not None
    lost = dataclasses.replace(run, record=run.record.model_copy(update={"lost_ranks": (1,)}))
    with pytest.raises(RunFolderError, match="not replayed"):
        build_replay(lost)
