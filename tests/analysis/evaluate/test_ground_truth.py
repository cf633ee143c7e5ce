"""What is said to be true of a generated run, and that nothing but the injections differs from its
pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.case_evaluation import compute_cost_error, simulate_paired_makespan_s
from laggard.analysis.evaluate.ground_truth import build_events, compute_series_sigma
from laggard.analysis.evaluate.synthetic.durations import simulate_times
from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Noise,
    Tier,
    TraceSpec,
    build_hosts,
    generate_run,
    simulate_makespan_s,
)
from laggard.core.span_schema import Phase
from tests.analysis.traces import LEVEL

SPEC = TraceSpec(tiers=LEVEL, steps=200)
MANY = (
    Injection("compute", 2.0, 50, 79, rank=5),
    Injection("storage", 3.0, rank=1),
    Injection("network", 1.5, 150, tiers=("edge", "cloud")),
    Injection("network", 1.5, 5, 195, rank=2),
)


def test_labels() -> None:
    compute, storage, pair, link = build_events(replace(SPEC, injections=MANY))
    assert (compute.label, compute.rank, compute.first, compute.last) == (
        ("compute", "dynamic"),
        5,
        50,
        79,
    )
    assert (storage.label, storage.rank, storage.first, storage.last) == (
        ("storage", "deterministic"),
        1,
        3,
        199,
    )
    assert (pair.label, pair.rank, pair.first, pair.last) == (
        ("network", "dynamic"),
        None,
        150,
        199,
    )
    assert pair.links == {("edge.trainer.1.4", "cloud.trainer.1.1")}
    assert link.label == ("network", "deterministic")
    assert link.links == {("fog.trainer.1.1", "fog.trainer.1.2")}
    assert compute.links == frozenset()
    assert compute.detectable


def test_what_is_too_slight_is_said_to_be() -> None:
    noisy = Noise(sigma=0.15, transfer_sigma=0.15)
    slight = Injection("compute", 1.2, 50, 59, rank=5), Injection("compute", 1.2, 50, 99, rank=6)
    assert [
        event.detectable for event in build_events(replace(SPEC, noise=noisy, injections=slight))
    ] == [False, True]


def test_the_noise_that_the_bound_is_given_is_that_of_the_series() -> None:
    noise = replace(QUIET, sigma=0.1, transfer_sigma=0.08, fetch_sigma=0.12)
    spec = TraceSpec(
        tiers=(Tier("edge", 8),), steps=2000, steps_per_epoch=10**6, noise=noise, warm_up_steps=0
    )
    spans = generate_run(spec).spans

    def sigma(*phases: Phase) -> float:
        rows = np.isin(spans.phase, [phase.code for phase in phases])
        total = np.bincount(spans.step[rows] * 8 + spans.rank[rows], weights=spans.dur_ns[rows])
        return float(np.log(total).reshape(-1, 8).std(axis=0).mean())

    compute = sigma(Phase.PREP, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    assert compute == pytest.approx(compute_series_sigma("compute", spec), rel=0.03)
    assert sigma(Phase.FETCH) == pytest.approx(compute_series_sigma("storage", spec), rel=0.03)
    assert compute_series_sigma("network", spec) == 0.08


@given(
    st.sets(st.sampled_from(MANY)),
    st.integers(0, 2**31),
    st.sampled_from(["none", "shares", "drawn", "shift"]),
)
@settings(max_examples=25, deadline=None)
def test_without_an_injection_all_else_is_the_same(
    causes: set[Injection], seed: int, imbalance: str
) -> None:
    spec = replace(SPEC, seed=seed, imbalance=imbalance, steps=60)  # type: ignore[arg-type]
    hosts = build_hosts(spec)
    slow = simulate_times(replace(spec, injections=tuple(causes)), hosts)
    pair = simulate_times(spec, hosts)
    for slot in range(8):
        if slot in (2, 5):
            continue
        ratio = (slow.end - slow.start)[:, :, slot] / (pair.end - pair.start)[:, :, slot]
        expected = np.ones_like(ratio)
        for cause in causes:
            if cause.family == ("storage" if slot == 0 else "compute") and slot != 7:
                expected[
                    cause.first : None if cause.last is None else cause.last + 1, cause.rank
                ] *= cause.factor
        assert ratio == pytest.approx(expected)
    assert slow.makespan_s >= pair.makespan_s - 1e-9


def test_without_noise_the_pair_shows_what_was_put_in() -> None:
    spec = TraceSpec(
        tiers=LEVEL,
        steps=100,
        noise=QUIET,
        evaluate_every=0,
        injections=(Injection("storage", 6.0, 20, 59, rank=3),),
    )
    assert simulate_makespan_s(spec) - simulate_paired_makespan_s(spec) == pytest.approx(
        40 * 5 * spec.fetch_s
    )


def test_the_makespan_alone_is_that_of_the_run() -> None:
    spec = replace(SPEC, injections=MANY)
    record = generate_run(spec).record
    assert record is not None
    assert record.outcome is not None
    assert record.outcome.makespan_s == simulate_makespan_s(spec)


def test_the_analysis_is_given_no_label() -> None:
    """But for what was measured, a run with injections is the same value as its pair."""
    slow, pair = generate_run(replace(SPEC, injections=MANY)), generate_run(SPEC)
    assert slow.record is not None
    assert pair.record is not None
    assert slow.record.model_copy(update={"outcome": None}) == pair.record.model_copy(
        update={"outcome": None}
    )
    assert (slow.hosts, slow.fidelity, slow.decisions, slow.folder) == (
        pair.hosts,
        pair.fidelity,
        pair.decisions,
        pair.folder,
    )


@pytest.mark.parametrize(("predicted", "expected"), [(2.0, 0.0), (3.0, 0.1), (0.0, 0.2)])
def test_cost_error(predicted: float, expected: float) -> None:
    assert compute_cost_error(predicted, 10.0, 8.0) == pytest.approx(expected)


@pytest.mark.parametrize("imbalance", ["shares", "drawn", "shift"])
def test_unequal_work_is_recorded_as_work(imbalance: str) -> None:
    run = generate_run(replace(SPEC, imbalance=imbalance, noise=QUIET))  # type: ignore[arg-type]
    forward = run.spans.where(run.spans.phase == Phase.FORWARD.code)
    assert len(np.unique(forward.work)) > 2
    usual = forward.step >= SPEC.warm_up_steps
    load = SPEC.fixed_share + (1 - SPEC.fixed_share) * forward.work[usual] / SPEC.samples
    assert forward.dur_ns[usual] / 1e9 == pytest.approx(SPEC.forward_s * load)
