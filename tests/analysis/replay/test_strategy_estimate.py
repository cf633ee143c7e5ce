"""Runs imagined under another strategy: against what the same traces make of it by arithmetic, and
what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.replay.run_network import build_network
from laggard.analysis.replay.training_work import measure_work
from laggard.analysis.replay.what_if.estimate_text import (
    NOT_ACCURACY,
    format_estimates,
    to_estimate_document,
)
from laggard.analysis.replay.what_if.strategy_estimate import (
    DeploymentInfo,
    estimate_strategies,
    message_bytes,
)
from laggard.analysis.tables.load_run import RunData, create_empty_links
from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import FidelityCheck, TraceOrigin
from laggard.core.simulation.network import SimulatedNetwork
from laggard.core.simulation.strategies.catalog import STRATEGIES, AlternativeStrategy
from laggard.core.span_schema import Phase
from tests.analysis.asynchronous_runs import as_run, simulated, strategy
from tests.analysis.traces import HARSH

STEPS = 80
WORK_S, COMPUTE_S = 0.0665, 0.065
"""A step of the fastest tier: all of it, and what a slow processor takes longer for."""

CHECKS = tuple(
    FidelityCheck(
        kind=kind,
        src=src,
        dst=dst,
        requested=value,
        measured=value,
        unit="",
        tolerance=1.0,
        ok=True,
    )
    for src, dst in (
        ("cloud.trainer.1.1", "edge.trainer.1.1"),
        ("cloud.trainer.1.2", "edge.trainer.1.2"),
    )
    for kind, value in (("rtt", 2.0), ("rate", 200.0))
)


def run_of(*injections: Injection, edge: float = 1.0, **changes: object) -> RunData:
    """Four workers without noise, and links that were verified."""
    spec = TraceSpec(
        tiers=(Tier("cloud", 2), Tier("edge", 2, edge)),
        steps=STEPS,
        noise=QUIET,
        injections=injections,
        steps_per_epoch=STEPS + 1,
        evaluate_every=0,
        warm_up_steps=0,
        seed=5,
    )
    spec = dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(generate_run(spec), fidelity=CHECKS)


def makespan_s(run: RunData) -> float:
    assert run.record is not None
    assert run.record.outcome is not None
    return run.record.outcome.makespan_s


def told_s(run: RunData, name: str, **parameters: int | str) -> float:
    (told,) = estimate_strategies(run, [AlternativeStrategy(name, parameters)])
    assert told.makespan_s is not None, told.failure_reason
    return told.makespan_s


@pytest.mark.parametrize(
    ("injections", "noise"),
    [
        ((), QUIET),
        ((Injection("compute", 3.0, rank=2),), QUIET),
        ((Injection("compute", 3.0, 20, 50, rank=2),), QUIET),
        ((Injection("compute", 3.0, 20, 50, rank=2),), HARSH),
        ((Injection("network", 4.0, 20, 50, tiers=("cloud", "edge")),), HARSH),
    ],
)
def test_by_its_own_strategy_it_takes_what_it_took(
    injections: tuple[Injection, ...], noise: object
) -> None:
    run = run_of(*injections, noise=noise, evaluate_every=20, steps_per_epoch=12, warm_up_steps=3)
    assert told_s(run, "allreduce") == pytest.approx(makespan_s(run), rel=0.015)


def test_averages_now_and_then_save_their_transfers() -> None:
    run = run_of()
    collectives_s = makespan_s(run) - STEPS * WORK_S
    # A buffer's broadcast and the gradients' all-reduce in each step become one all-reduce in
    # eight.
    assert told_s(run, "local_sgd", steps=8) < STEPS * WORK_S + collectives_s / 8
    assert told_s(run, "local_sgd", steps=8) > STEPS * WORK_S


def test_who_waits_for_nobody_learns_at_the_sum_of_paces() -> None:
    """Edge devices take four times as long: 1 + 1 + 1/4 + 1/4 instead of 4/4."""
    told = told_s(run_of(edge=4.0), "ad_psgd")
    pace = 2 / WORK_S + 2 / (WORK_S + 3 * COMPUTE_S)
    assert told == pytest.approx(STEPS * 4 / pace, rel=0.02)


def test_a_slow_while_stays_where_it_was_in_time() -> None:
    """A worker is slow for ten of DDP's steps; by itself it computes on meanwhile, at a third, and
    as ever before and behind."""
    run = run_of(Injection("compute", 3.0, 10, 19, rank=2))
    begin_s, end_s = (
        float(run.steps.start_ns[run.steps.step == step].min()) * 1e-9 for step in (10, 20)
    )
    slow_s = WORK_S + 2 * COMPUTE_S
    told = told_s(run, "ad_psgd")
    assert told > end_s
    # The other three do not stand for it any more.
    done = 3 * told / WORK_S + (told - (end_s - begin_s)) / WORK_S + (end_s - begin_s) / slow_s
    assert done == pytest.approx(STEPS * 4, rel=0.02)


def test_what_lies_beyond_the_run_is_told_of() -> None:
    (told,) = estimate_strategies(
        run_of(edge=4.0), [AlternativeStrategy("backup_workers", {"backups": 1})]
    )
    assert told.makespan_s is not None
    assert told.extrapolated_s == pytest.approx(
        max(told.makespan_s - makespan_s(run_of(edge=4.0)), 0.0), rel=1e-6
    )
    assert len(told.steps) == 4


def test_a_run_without_lockstep_can_be_imagined_in_step() -> None:
    """Steps of 1, 1 and 4 s, 270 in all: 90 of the whole, each as slow as the slowest."""
    seconds = [np.full(120, 1.0), np.full(120, 1.0), np.full(30, 4.0)]
    run = as_run(
        strategy("asynchronous"),
        simulated(None, seconds, [np.full(len(s), 1e-3) for s in seconds]),
        120.0,
    )
    assert run.record is not None
    assert run.record.outcome is not None
    rate = 270 * 8 / 120.0
    outcome = run.record.outcome.model_copy(update={"samples_per_s": rate})
    sent = np.where(run.spans.phase == Phase.COMM.code, 99, 0)
    run = dataclasses.replace(
        run,
        record=run.record.model_copy(update={"outcome": outcome}),
        spans=dataclasses.replace(run.spans, bytes=sent),
        hosts=run.hosts[:3],
        fidelity=tuple(
            c.model_copy(update={"src": run.hosts[0].host, "dst": run.hosts[1].host})
            for c in CHECKS[:2]
        ),
    )
    assert told_s(run, "ad_psgd") == pytest.approx(120.0, rel=0.02)
    # Six ways of a ring of three, a millisecond each.
    assert told_s(run, "allreduce") == pytest.approx(90 * 4.0, rel=0.02)


def test_all_strategies_are_told_of_and_it_is_said_what_they_are_not() -> None:
    run = run_of(edge=2.0)
    told = estimate_strategies(run)
    assert tuple(each.strategy.name for each in told) == STRATEGIES
    assert all(each.makespan_s is not None for each in told), [each.failure_reason for each in told]
    text, document = format_estimates(run, told), to_estimate_document(run, told)
    assert NOT_ACCURACY in text
    assert all(each.strategy.label in text for each in told)
    assert isinstance(document, dict)
    assert document["compared_at"] == "the same work, not the same accuracy"
    assert document["measured_s"] == makespan_s(run)


# --- links


def test_links_are_those_that_were_verified_or_those_like_them() -> None:
    network = build_network(run_of(with_links=False))
    assert network.hop(("edge.trainer.1.1", "cloud.trainer.1.2")) == NetworkHop(
        ("edge.trainer.1.1", "cloud.trainer.1.2"), 200.0, 2.0
    )
    assert network.hop(("edge.trainer.1.1", "edge.trainer.1.2")).rate_mbps == float("inf")


def test_ways_that_nothing_is_known_of_are_refused() -> None:
    run = dataclasses.replace(run_of(), fidelity=())
    # In a ring nobody sent from the cloud to the server there, nor back.
    assert ("cloud.trainer.1.1", "edge.trainer.1.2") in build_network(run).hops
    (told,) = estimate_strategies(
        run, [AlternativeStrategy("parameter_server")], DeploymentInfo(server="moon.1.1")
    )
    assert "no traffic on it was sampled" in told.failure_reason
    nothing = dataclasses.replace(run, links=create_empty_links())
    with pytest.raises(RunFolderError, match="has a measurement of a link"):
        build_network(nothing)
    # What needs no link that the run had not is told all the same.
    assert told_s(nothing, "local_sgd") > 0
    with pytest.raises(RunFolderError, match="the link from a to b is unknown"):
        SimulatedNetwork({}).hop(("a", "b"))


# --- refusals


def test_what_a_run_does_not_tell_is_refused() -> None:
    run = run_of()
    assert run.record is not None
    compressed = run.record.strategy.model_copy(
        update={"parameters": {"compress": {"name": "topk"}}}
    )
    with pytest.raises(RunFolderError, match="compress"):
        message_bytes(
            dataclasses.replace(run, record=run.record.model_copy(update={"strategy": compressed}))
        )
    adaptive = run.record.strategy.model_copy(update={"name": "adaptive"})
    with pytest.raises(RunFolderError, match="do not record the size of its model"):
        message_bytes(
            dataclasses.replace(run, record=run.record.model_copy(update={"strategy": adaptive}))
        )
    traced = run.record.model_copy(update={"origin": TraceOrigin(format="kineto", path="x")})
    with pytest.raises(RunFolderError, match="another tool"):
        estimate_strategies(dataclasses.replace(run, record=traced))
    lost = run.record.model_copy(update={"lost_ranks": (1,)})
    with pytest.raises(RunFolderError, match="not replayed"):
        estimate_strategies(dataclasses.replace(run, record=lost))
    without = run.spans.where(np.flatnonzero(run.spans.rank != 2))
    with pytest.raises(RunFolderError, match="finished no training step"):
        measure_work(dataclasses.replace(run, spans=without))


def test_a_slow_time_whose_link_was_not_named_is_refused_where_links_matter() -> None:
    run = run_of(Injection("network", 4.0, 20, 50, tiers=("cloud", "edge")), with_links=False)
    (served, reduced) = estimate_strategies(
        run, [AlternativeStrategy("parameter_server"), AlternativeStrategy("local_sgd")]
    )
    assert "slow link is unknown" in served.failure_reason
    assert reduced.makespan_s is not None


def test_a_slow_link_to_a_server_is_as_slow_for_other_strategies() -> None:
    """No ring shows the rate then; the messages of a usual step do."""
    run = run_of(
        Injection("network", 4.0, 20, 50, tiers=("cloud", "edge")), gradient_bytes=6_000_000
    )
    assert run.record is not None
    served = run.record.strategy.model_copy(
        update={"name": "parameter_server", "server_tier": "cloud"}
    )
    run = dataclasses.replace(run, record=run.record.model_copy(update={"strategy": served}))
    assert told_s(run, "asynchronous") > told_s(
        dataclasses.replace(run_of(gradient_bytes=6_000_000), record=run.record), "asynchronous"
    )


def test_a_slow_link_holds_up_messages_of_others_meanwhile() -> None:
    """A quarter of the rate for a while, and for all of it: a server's messages wait in between."""
    asked = [AlternativeStrategy("parameter_server")]
    usual, slow = (
        estimate_strategies(run_of(*injections, gradient_bytes=6_000_000), asked)[0].makespan_s
        for injections in ((), (Injection("network", 4.0, 20, 50, tiers=("cloud", "edge")),))
    )
    assert usual is not None
    assert slow is not None
    assert slow > 1.1 * usual
