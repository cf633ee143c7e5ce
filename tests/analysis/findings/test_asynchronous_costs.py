"""What slow ranks cost where each has a pace of its own: against closed forms."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.analyze_asynchronous import analyze_asynchronous
from laggard.analysis.findings.answer import format_answer
from laggard.analysis.report import write_report
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.rules.wait_rule import get_wait_rule
from laggard.core.run_schema import StrategyRecord
from laggard.core.span_schema import Phase
from tests.analysis.asynchronous_runs import as_run, run_of, simulated, strategy

AFTER_S = 0.02
SIGMA = 0.02


def trained(
    record: StrategyRecord, seconds: list[FloatArray], end_s: float | None = None
) -> RunData:
    """A run of ranks that take so long before each wait."""
    paces = simulated(
        get_wait_rule(record, len(seconds)),
        seconds,
        [np.full(len(each), AFTER_S) for each in seconds],
    )
    return as_run(record, paces, end_s or min(float(each.end_s[-1]) for each in paces))


def noisy(slowness: list[float], steps: list[int], seed: int = 3) -> list[FloatArray]:
    rng = np.random.default_rng(seed)
    return [
        m * np.exp(SIGMA * rng.standard_normal(n)) for m, n in zip(slowness, steps, strict=True)
    ]


def found(analysis: AnalysisResult) -> list[tuple[int | None, str, str]]:
    return [(f.rank, f.family, f.kind) for f in analysis.stragglers]


def test_a_slow_rank_that_nobody_waits_for_costs_what_it_does_not_learn() -> None:
    """Four ranks in 100 s, one of them four times slower: what they learn takes 3.25 / 4 of it were
    all alike."""
    analysis = analyze_asynchronous(
        trained(strategy("asynchronous"), noisy([1, 1, 1, 4], [120, 120, 120, 30]), 100.0)
    )
    assert found(analysis) == [(3, "compute", "deterministic")]
    assert analysis.stragglers[0].slowdown == pytest.approx(4.0, rel=0.03)
    rates = np.array([1 / (m + AFTER_S) for m in (1, 1, 1, 4)])
    assert analysis.stragglers[0].cost_s == pytest.approx(
        100 * (1 - rates.sum() / (4 * rates[0])), rel=0.05
    )
    assert analysis.is_reliable
    assert analysis.replayed_s == pytest.approx(100.0)


@pytest.mark.parametrize(
    "record",
    [
        strategy("bounded_staleness", staleness=2),
        strategy("gossip", graph="ring"),
        strategy("hop", graph="ring", staleness=2, backups=0),
    ],
    ids=["bounded_staleness", "gossip", "hop"],
)
def test_a_slow_rank_that_all_wait_for_costs_what_it_is_slow(record: StrategyRecord) -> None:
    """All go at the pace of the slowest, but for the few steps that they may be ahead of it."""
    analysis = analyze_asynchronous(trained(record, noisy([1, 1, 1, 3], [100] * 4)))
    assert found(analysis) == [(3, "compute", "deterministic")]
    assert analysis.stragglers[0].cost_s == pytest.approx(analysis.makespan_s * 2 / 3, rel=0.06)
    assert analysis.is_reliable
    assert "compute_slow" not in analysis.notes


def test_two_equally_slow_ranks_share_what_they_cost() -> None:
    analysis = analyze_asynchronous(
        trained(strategy("bounded_staleness", staleness=1), noisy([1, 1, 2, 2], [100] * 4))
    )
    assert sorted(found(analysis)) == [
        (2, "compute", "deterministic"),
        (3, "compute", "deterministic"),
    ]
    first, second = (f.cost_s for f in analysis.stragglers)
    assert first == pytest.approx(second, rel=0.15)
    assert first + second == pytest.approx(analysis.makespan_s / 2, rel=0.06)
    assert first + second == pytest.approx(analysis.lost_s)


def test_a_rank_that_is_slow_for_a_while_costs_that_while() -> None:
    """Twice as slow in 30 of 120 steps, under a bound that lets nobody run ahead."""
    seconds = noisy([1, 1, 1], [120] * 3)
    paired = analyze_asynchronous(trained(strategy("bounded_staleness", staleness=0), seconds))
    seconds[1][40:70] *= 2.0
    analysis = analyze_asynchronous(trained(strategy("bounded_staleness", staleness=0), seconds))
    assert found(analysis) == [(1, "compute", "dynamic")]
    finding = analysis.stragglers[0]
    assert (finding.first_step, finding.last_step) == (
        pytest.approx(40, abs=2),
        pytest.approx(69, abs=2),
    )
    # A step more or less at the ends of the interval is a second.
    assert finding.cost_s == pytest.approx(analysis.makespan_s - paired.makespan_s, abs=2.0)


def test_nobody_slow_is_nobody_named() -> None:
    for record in (
        strategy("asynchronous"),
        strategy("gossip", graph="ring"),
        strategy("bounded_staleness", staleness=4),
    ):
        analysis = analyze_asynchronous(trained(record, noisy([1, 1, 1, 1], [100] * 4)))
        assert found(analysis) == []
        assert analysis.is_reliable


def test_the_report_tells_costs_and_claims_nothing_of_common_steps(tmp_path: Path) -> None:
    run = trained(strategy("asynchronous"), noisy([1, 1, 1, 4], [120, 120, 120, 30]), 100.0)
    analysis = analyze_asynchronous(run)
    said = " ".join(format_answer(run, analysis))
    name = run.hosts[3].host
    assert f"{name} computes 4.0x slower" in said
    assert "The cost of a cause is the time that the run would save without it" in said
    assert "not computed" not in said
    page = write_report(run, analysis, tmp_path).read_text()
    assert "Lost to stragglers" in page
    figures = sorted(path.stem for path in (tmp_path / "figures").glob("*.svg"))
    assert figures == ["progress", "time_split", "timeline"]


def test_when_a_rank_was_slow_is_told_by_its_own_steps() -> None:
    """Rank 1 takes a third of the steps that the others do: its thirtieth is long after theirs."""
    seconds = noisy([1, 3, 1], [150, 50, 150])
    seconds[1][20:40] *= 2.0
    run = trained(strategy("asynchronous"), seconds, 200.0)
    dynamic = next(f for f in analyze_asynchronous(run).findings if f.kind == "dynamic")
    assert (dynamic.first_step, dynamic.last_step) == (
        pytest.approx(20, abs=1),
        pytest.approx(39, abs=1),
    )
    said = " ".join(format_answer(run, analyze_asynchronous(run)))
    begin_s = float(seconds[1][:20].sum())
    assert (
        f"From {begin_s:.0f}" in said
        or f"From {begin_s + 1:.0f}" in said
        or f"From {begin_s - 1:.0f}" in said
    ), said


def test_where_ranks_were_lost_nothing_is_priced() -> None:
    run = trained(strategy("asynchronous"), noisy([1, 1, 1, 4], [120, 120, 120, 30]), 100.0)
    assert run.record is not None
    lost = dataclasses.replace(run, record=run.record.model_copy(update={"lost_ranks": (2,)}))
    analysis = analyze_asynchronous(lost)
    assert not analysis.costed
    assert analysis.findings == ()


def test_the_steps_in_which_ranks_are_told_that_it_is_over_explain_no_others() -> None:
    """The last one of each takes twenty times as long, all of it behind the end."""
    seconds = noisy([1, 1, 1, 2], [40, 40, 40, 20])
    end_s = min(float((each + AFTER_S).sum()) for each in seconds) - 1.0
    for each in seconds:
        each[-1] += 20.0
    analysis = analyze_asynchronous(trained(strategy("asynchronous"), seconds, end_s))
    assert found(analysis) == [(3, "compute", "deterministic")]
    assert analysis.explained == pytest.approx(1.0, abs=0.01)


def answered(seconds: list[FloatArray], transfers: list[FloatArray]) -> RunData:
    """A run of ranks that have an answer of a server behind their work in every step, or where it
    takes no time, in none."""
    paces = simulated(None, seconds, [each + AFTER_S for each in transfers])
    for pace, each in zip(paces, transfers, strict=True):
        pace.after[:, Phase.COMM.code] = each
        pace.after[:, Phase.OPTIMIZER.code] -= each
    return as_run(strategy("asynchronous"), paces, min(float(each.end_s[-1]) for each in paces))


def test_transfers_that_are_slow_for_a_while_cost_that_while() -> None:
    """A server's answers take a tenth of a second, and one rank's half a second more in a third of
    its steps; nobody waits for it."""
    seconds = noisy([1, 1, 1], [90] * 3)
    transfers = [
        np.full(90, 0.1) * np.exp(0.05 * np.random.default_rng(r).standard_normal(90))
        for r in range(3)
    ]
    transfers[2][30:60] += 0.5
    analysis = analyze_asynchronous(answered(seconds, transfers))
    assert found(analysis) == [(2, "network", "dynamic")]
    finding = analysis.stragglers[0]
    assert (finding.first_step, finding.last_step) == (
        pytest.approx(30, abs=1),
        pytest.approx(59, abs=1),
    )
    assert finding.link is None
    # 15 s of one rank's time are a third of that of three.
    assert finding.cost_s == pytest.approx(5.0, rel=0.15)
    assert analysis.is_reliable


def test_transfers_that_some_steps_have_are_dealt_out_among_those() -> None:
    """Every third step waits for its server, half of the time for a second, and else for a
    hundredth of one."""
    seconds, rng = noisy([1, 1, 1], [150] * 3), np.random.default_rng(5)
    transfers = [np.where(rng.random(150) < 0.5, 1.0, 0.01) for _ in seconds]
    for each in transfers:
        each[np.arange(150) % 3 != 0] = 0.0
    analysis = analyze_asynchronous(answered(seconds, transfers))
    assert analysis.explained == pytest.approx(1.0, abs=0.02)


def test_a_link_is_named_where_all_messages_of_the_time_came_over_it() -> None:
    """A neighbour's message takes 0.2 s, for a while 0.45 s from one of two ranks to the other."""
    seconds, lag_s = noisy([1.0, 1.5], [120] * 2), np.full(120, 0.2)
    lag_s[40:80] = 0.45
    run = messages_of_two(seconds, lag_s)
    analysis = analyze_asynchronous(run)
    slow = [f for f in analysis.findings if f.family == "network"]
    assert [f.link for f in slow] == [(run.hosts[1].host, run.hosts[0].host)]
    assert slow[0].slowdown == pytest.approx(2.25, rel=0.1)
    # The quick rank comes a quarter of a second later for once, and is in step with the slow one
    # again.
    assert slow[0].masked
    assert analysis.replayed_s == pytest.approx(analysis.makespan_s, rel=1e-6)


def messages_of_two(seconds: list[FloatArray], lag_s: FloatArray) -> RunData:
    """Gossip of two: rank 0 is the quicker, and stands until rank 1's model of the step before is
    here; rank 1 goes on at once."""
    ends = np.cumsum(seconds[1])
    quick, steps = [], len(lag_s)
    now = 0.0
    for step in range(steps):
        ready = now + seconds[0][step]
        sent = float(ends[step - 1]) if step else 0.0
        come = max(ready, sent + lag_s[step]) if step else ready
        quick.append((now, ready, max(ready, sent), come))
        now = come
    spans = []
    for step, (begin, ready, sent, come) in enumerate(quick):
        spans.append((step, 0, Phase.FORWARD.code, begin, ready - begin, -1, 0))
        spans.append((step, 0, Phase.COMM.code, ready, sent - ready, 1, 0))
        if come > sent:
            spans.append((step, 0, Phase.COMM.code, sent, come - sent, 1, 99))
    spans += [
        (step, 1, Phase.FORWARD.code, ends[step] - seconds[1][step], seconds[1][step], -1, 0)
        for step in range(steps)
    ]
    rank_ends = [np.array([come for *_, come in quick]), ends]
    return run_of(
        strategy("gossip", graph="ring"), spans, rank_ends, float(min(rank_ends[0][-1], ends[-1]))
    )


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("MAX_REPLAYED_STEPS", "The workers took"),
        ("MAX_DEPENDENCIES", "too many to replay"),
    ],
)
def test_runs_too_large_to_be_replayed_are_not_priced(
    limit: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(strategy("bounded_staleness", staleness=2), noisy([1, 1, 3], [30] * 3))
    assert analyze_asynchronous(run).costed
    monkeypatch.setattr(f"laggard.analysis.replay.asynchronous.async_analysis.{limit}", 80)
    analysis = analyze_asynchronous(run)
    assert not analysis.costed
    assert told in analysis.notes[-1]
