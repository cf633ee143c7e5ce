"""Links slow all along where each rank has a pace of its own: found by the kernels' counters,
priced by what waits for them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.link_samples import LinkWork, sample_links
from laggard.analysis.findings.analyze_asynchronous import analyze_asynchronous
from laggard.analysis.findings.answer import format_answer
from laggard.analysis.replay.what_if.counterfactual import Counterfactual, build_replay
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import FidelityCheck
from laggard.core.span_schema import Flag, Phase
from tests.analysis.asynchronous_runs import run_of, strategy

SERVER, FOG, EDGE = "cloud.server.1.1", "fog.trainer.1.1", "edge.trainer.1.1"
MEGABYTES = 1_250_000
STOP_S = 180.0


def served(fog_mbps: float, edge_mbps: float, *, waits: bool = True) -> RunData:
    """A worker of the fog and one of the edge, a second of work each step, then a push and an
    answer of 10 Mbit; or a thread beside sends them, and nobody waits."""
    record = strategy("asynchronous").model_copy(update={"server_tier": "cloud"})
    spans: list[tuple[float, ...]] = []
    ends, work_s = [], 1.0
    for rank, mbps in enumerate((fog_mbps, edge_mbps)):
        way_s = 10.0 / mbps if waits else 0.0
        step_s = work_s + 2 * way_s
        ends.append(step_s * np.arange(1, round(STOP_S / step_s) + 1))
        for step in range(len(ends[-1])):
            begin, flag = step_s * step, int(Flag.WARM_UP) if step < 1 else 0
            spans.append((step, rank, Phase.FORWARD.code, begin, work_s, -1, 0, flag))
            if waits:
                spans += [
                    (step, rank, Phase.COMM.code, begin + work_s, way_s, 2, MEGABYTES, flag),
                    (step, rank, Phase.COMM.code, begin + work_s + way_s, 0.0, 2, 0, flag),
                    (
                        step,
                        rank,
                        Phase.COMM.code,
                        begin + work_s + way_s,
                        way_s,
                        2,
                        MEGABYTES,
                        flag,
                    ),
                ]
    run = run_of(record, spans, ends, STOP_S)
    hosts = tuple(
        dataclasses.replace(host, host=name, tier=name.partition(".")[0])
        for host, name in zip(run.hosts, (FOG, EDGE), strict=True)
    )
    names = ((FOG, SERVER), (SERVER, FOG), (EDGE, SERVER), (SERVER, EDGE))
    rates = np.array([fog_mbps, fog_mbps, edge_mbps, edge_mbps])
    meetings_s = np.linspace(3.0, STOP_S, 60)
    checks = tuple(
        FidelityCheck(
            kind="rate",
            src=src,
            dst=dst,
            requested=rate,
            measured=rate,
            unit="Mbit/s",
            tolerance=1.0,
            ok=True,
        )
        for (src, dst), rate in zip(names, rates, strict=True)
    )
    links = sample_links(LinkWork(names, np.tile(rates, (60, 1)), meetings_s, MEGABYTES), 1)
    return dataclasses.replace(run, hosts=hosts, links=links, fidelity=checks)


@pytest.mark.parametrize(("fog_mbps", "edge_mbps"), [(40.0, 10.0), (40.0, 20.0), (100.0, 10.0)])
def test_a_slow_link_that_is_waited_for_costs_what_its_worker_does_not_learn(
    fog_mbps: float, edge_mbps: float
) -> None:
    """Both workers as quick as the one with the fast link: what they learn in 180 s takes less by
    that."""
    run = served(fog_mbps, edge_mbps)
    analysis = analyze_asynchronous(run)
    (found,) = [each for each in analysis.findings if each.family == "network"]
    assert (found.kind, found.masked, found.host) == ("deterministic", False, None)
    assert found.link in {(EDGE, SERVER), (SERVER, EDGE)}
    assert found.slowdown == pytest.approx(fog_mbps / edge_mbps, rel=0.1)
    fast_s, slow_s = 1.0 + 20.0 / fog_mbps, 1.0 + 20.0 / edge_mbps
    without_s = STOP_S * (1 / fast_s + 1 / slow_s) / (2 / fast_s)
    assert found.cost_s == pytest.approx(STOP_S - without_s, rel=0.05)
    assert any("link" in each and "edge" in each for each in format_answer(run, analysis))
    place = next(i for i, cause in enumerate(build_replay(run).causes) if cause.rank is None)
    assert build_replay(run).makespan_s(
        Counterfactual(without=frozenset({place}))
    ) == pytest.approx(without_s, rel=0.03)


def test_equal_links_are_not_slow() -> None:
    assert [
        each
        for each in analyze_asynchronous(served(40.0, 40.0)).findings
        if each.family == "network"
    ] == []


def test_busy_time_that_no_flow_bears_out_makes_no_link_slow() -> None:
    """The edge's kernel says ten megabits, while a flow of its own had forty before."""
    run = served(40.0, 10.0)
    checks = tuple(check.model_copy(update={"measured": 40.0}) for check in run.fidelity)
    found = analyze_asynchronous(dataclasses.replace(run, fidelity=checks)).findings
    assert [each for each in found if each.family == "network"] == []


def test_a_slow_link_that_nobody_waits_for_is_masked() -> None:
    (found,) = [
        each
        for each in analyze_asynchronous(served(40.0, 10.0, waits=False)).findings
        if each.family == "network"
    ]
    assert found.masked
    assert found.cost_s == 0.0
