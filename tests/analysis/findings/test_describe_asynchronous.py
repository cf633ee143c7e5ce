"""Runs whose ranks go at their own pace: nothing is claimed that needs common steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.findings.answer import format_answer
from laggard.analysis.findings.describe_asynchronous import describe_asynchronous
from laggard.analysis.report import write_report
from laggard.analysis.report.figures.progress import build_accuracy_curve, build_loss_curve
from laggard.analysis.report.timeline.activity import build_activity
from laggard.analysis.tables.columns import SpanColumns, StepColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import ChurnEvent, StrategyRecord
from laggard.core.span_schema import Phase
from tests.analysis.traces import keep_spans, quiet

PUSH_S, PULL_S, WAIT_S, END_S = 0.2, 0.3, 0.5, 60.0


@pytest.fixture
def run() -> RunData:
    """Rank 0 computes for 1 s, rank 1 for 4 s; rank 0 waits half a second for rank 1 in every step,
    and drops its every tenth."""
    spans, steps = [], []
    for rank, (compute_s, wait_s) in enumerate([(1.0, WAIT_S), (4.0, 0.0)]):
        now, step = 0.0, 0
        while now + compute_s + PUSH_S + PULL_S + wait_s <= END_S:
            parts = [(Phase.FORWARD, compute_s, -1, 0), (Phase.COMM, PUSH_S, 2, 99)]
            parts += [(Phase.COMM, wait_s, 1, 0)] if wait_s else []
            began = now
            for phase, seconds, peer, size in [*parts, (Phase.COMM, PULL_S, 2, 99)]:
                spans.append((step, rank, phase.code, now, seconds, peer, size))
                now += seconds
            lost = rank == 0 and step % 10 == 9
            steps.append(
                (step, rank, began, now, 0 if lost else 8, 8 if lost else 0, 1 if wait_s else -1)
            )
            step += 1
    return _run(spans, steps)


def _run(spans: list[tuple[float, ...]], steps: list[tuple[float, ...]]) -> RunData:
    columns = [np.array(column) for column in zip(*spans, strict=True)]
    step, rank, phase, start, duration, peer, size = columns
    zeros = np.zeros(len(step), dtype=np.int64)
    table = SpanColumns(
        step=step, rank=rank, lane=zeros, phase=phase, seq=zeros, start_ns=np.rint(start * 1e9).astype(np.int64),
        dur_ns=np.rint(duration * 1e9).astype(np.int64), group=zeros - 1, peer=peer, bytes=size, work=zeros, flags=zeros,
    )  # fmt: skip
    number, who, began, ended, samples, dropped, waited = (
        np.array(column) for column in zip(*steps, strict=True)
    )
    none = np.zeros(len(number), dtype=np.int64)
    described = StepColumns(
        step=number, rank=who, start_ns=np.rint(began * 1e9).astype(np.int64), end_ns=np.rint(ended * 1e9).astype(np.int64),
        loss=2.0 - ended / 60, accuracy=np.where(number % 5 == 4, ended / 100, np.nan), samples=samples, batch_size=none + 16,
        staleness=none, dropped=dropped, skipped=none, read_version=none, applied_version=none + 1, waited_for=waited,
    )  # fmt: skip
    generated = generate_run(quiet(2, 5))
    assert generated.record is not None
    strategy = StrategyRecord(
        name="bounded_staleness",
        sync_mode="asynchronous",
        description="bounded_staleness, staleness 2",
    )
    record = generated.record.model_copy(update={"strategy": strategy, "status": "done"})
    order = np.lexsort((table.start_ns, table.rank, table.step))
    return dataclasses.replace(generated, record=record, spans=table.where(order), steps=described)


def test_time_is_split_as_it_was_spent(run: RunData) -> None:
    analysis = describe_asynchronous(run)
    split = analysis.time_split
    end = run.spans.end_ns.max() / 1e9
    assert split.compute_s == pytest.approx([30 * 1.0, 13 * 4.0])
    assert split.transfer_s == pytest.approx([30 * 0.5, 13 * 0.5])
    assert split.wait_s == pytest.approx([30 * 0.5, 0.0])
    assert split.idle_s == pytest.approx([end - 60.0, end - 58.5])
    assert split.total_s == pytest.approx([end, end])
    assert analysis.findings == ()
    assert analysis.compute_s.shape == (13, 2)
    assert analysis.slowdown[0] == pytest.approx([1.0, 4.0])


def test_the_timeline_tells_waiting_from_transfers_too(run: RunData) -> None:
    activity = build_activity(run)
    shares = (
        activity.compute_shares(np.arange(2), 0.0, activity.end_ns, 1)[0] * activity.end_ns / 1e9
    )
    told = dict(zip([paint.label for paint in activity.kinds], shares.T, strict=True))
    assert told["wait"] == pytest.approx([30 * 0.5, 0.0])
    assert told["transfer"] == pytest.approx([30 * 0.5, 13 * 0.5])
    assert told["forward"] == pytest.approx([30 * 1.0, 13 * 4.0])


def test_who_was_slow_is_told_and_no_cost(run: RunData) -> None:
    said = " ".join(format_answer(run, describe_asynchronous(run)))
    assert "the cost of slow workers is not computed" in said
    assert (
        "edge.trainer.1.2 computes 4.0x slower than edge.trainer.1.1; it took 13 steps,"
        " edge.trainer.1.1 took 30." in said
    )
    assert "edge.trainer.1.1 waits 25 % of the time, mostly for edge.trainer.1.2" in said
    assert "7 % of the computed samples were discarded without training on them" in said
    assert "straggler" not in said.lower()


def test_the_report_claims_nothing_of_common_steps(run: RunData, tmp_path: Path) -> None:
    page = write_report(run, describe_asynchronous(run), tmp_path).read_text()
    assert "Not computed: costs require that all workers are present throughout the run" in page
    assert "Lost to stragglers" not in page
    assert "bounded_staleness, staleness 2" in page
    figures = sorted(path.stem for path in (tmp_path / "figures").glob("*.svg"))
    assert figures == ["progress", "time_split", "timeline"]


def test_curves_are_in_order_of_time(run: RunData) -> None:
    when, accuracy = build_accuracy_curve(run.steps)
    assert len(when) == np.isfinite(run.steps.accuracy).sum()
    assert (np.diff(when) >= 0).all()
    assert accuracy == pytest.approx(when / 100)
    when, loss = build_loss_curve(run.steps, asynchronous=True)
    assert (np.diff(when) >= 0).all()
    assert (np.diff(loss) <= 0).all()


def test_a_rank_that_was_lost_is_told_of_and_the_rest_analysed(run: RunData) -> None:
    assert run.record is not None
    strategy = StrategyRecord(
        name="parameter_server", sync_mode="lockstep", description="parameter_server"
    )
    record = run.record.model_copy(update={"strategy": strategy, "lost_ranks": (1,)})
    left = dataclasses.replace(keep_spans(run, run.spans.rank != 1), record=record)
    assert not left.is_lockstep
    analysis = describe_asynchronous(left)
    said = " ".join(format_answer(left, analysis))
    assert "edge.trainer.1.2 (rank 1) was lost, and the others went on without it" in said
    assert np.isfinite(analysis.slowdown).all()
    gone = ChurnEvent(
        rank=1, host="edge.trainer.1.2", kind="left", requested_s=20, effective_s=20.04
    )
    back = ChurnEvent(
        rank=1, host="edge.trainer.1.2", kind="joined", requested_s=40, effective_s=41.5
    )
    churned = dataclasses.replace(
        run, record=record.model_copy(update={"lost_ranks": (), "churn": (gone, back)})
    )
    assert not churned.is_lockstep
    said = " ".join(format_answer(churned, describe_asynchronous(churned)))
    assert "In this run with parameter_server, workers left or joined, so" in said
    gone_for_good = dataclasses.replace(
        left, record=record.model_copy(update={"lost_ranks": (), "churn": (gone,)})
    )
    split = describe_asynchronous(gone_for_good).time_split
    assert (split.wait_s[1], split.idle_s[1]) == (0.0, 0.0)
    assert split.other_s[1] == pytest.approx(split.total_s[0] - split.other_s[0])
    assert "edge.trainer.1.2 (rank 1) left after 20.0 s and joined after 41.5 s." in said
    with pytest.raises(RunFolderError, match="no rank finished"):
        describe_asynchronous(keep_spans(run, run.spans.rank < 0))
