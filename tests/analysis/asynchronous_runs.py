"""Trainings of ranks of their own pace, walked through one moment at a time: what replays and costs
are held against."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.tables.columns import FloatArray, SpanColumns, StepColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import PHASES, RankTimeline
from laggard.core.rules.wait_rule import WaitRule
from laggard.core.run_schema import StrategyRecord
from laggard.core.span_schema import Flag, Phase
from tests.analysis.traces import quiet

Seconds = Sequence[FloatArray]


def strategy(name: str, **parameters: object) -> StrategyRecord:
    return StrategyRecord.model_validate(
        {"name": name, "sync_mode": "asynchronous", "description": name, "parameters": parameters}
    )


def simulated(rule: WaitRule | None, before: Seconds, after: Seconds) -> list[RankTimeline]:
    """Walks through a training: whoever can go on goes on; messages take no time."""
    world, counts = len(before), [len(each) for each in before]
    ready = np.full((world, max(counts)), np.nan)
    go, end, awaited = ready.copy(), ready.copy(), np.full(ready.shape, -1)
    waits = [0] * world
    clock = np.zeros(world)
    while waits != counts:
        moved = False
        for rank in range(world):
            step = waits[rank]
            if step == counts[rank]:
                continue
            ready[rank, step] = clock[rank] + before[rank][step]
            come = met(rule, rank, step, ready, end)
            if come is None:
                continue
            moment, last = come
            go[rank, step] = max(ready[rank, step], moment)
            awaited[rank, step] = last if moment > ready[rank, step] else -1
            end[rank, step] = clock[rank] = go[rank, step] + after[rank][step]
            waits[rank] += 1
            moved = True
        assert moved, "nobody can go on"
    return [
        pace(ready[r, :n], go[r, :n], end[r, :n], before[r], after[r], awaited[r, :n])
        for r, n in enumerate(counts)
    ]


def met(
    rule: WaitRule | None, rank: int, step: int, ready: FloatArray, end: FloatArray
) -> tuple[float, int] | None:
    """When what the rule asks for had come, and whose came last; None while it has not."""
    if rule is None:
        return 0.0, -1
    assert rule.others is not None
    least = step - rule.max_steps_behind - (1 if rule.start_suffices else 0)
    if least < 0:
        return 0.0, -1
    moments = sorted(
        (float((end if rule.start_suffices else ready)[q, least]), q) for q in rule.others[rank]
    )
    needed = moments[: len(moments) - min(rule.spare, len(moments) - 1)]
    # What a rank has not begun to compute sorts anywhere: it is not there yet.
    if any(np.isnan(moment) for moment, _ in moments):
        return None
    return needed[-1]


def pace(
    ready: FloatArray,
    go: FloatArray,
    end: FloatArray,
    before: FloatArray,
    after: FloatArray,
    awaited: FloatArray,
) -> RankTimeline:
    count = len(ready)
    work, rest = np.zeros((count, PHASES)), np.zeros((count, PHASES))
    work[:, Phase.FORWARD.code], rest[:, Phase.OPTIMIZER.code] = before, after
    return RankTimeline(
        number=np.arange(count),
        start_s=np.concatenate([[0.0], end[:-1]]),
        ready_s=ready,
        resume_s=go,
        end_s=end,
        before=work,
        after=rest,
        awaited=awaited.astype(np.int64),
        message_s=np.zeros(count),
        partners=(frozenset(),) * count,
        samples=np.full(count, 8.0),
        taken=np.full(count, 8),
        warm_up=np.zeros(count, dtype=np.bool_),
    )


def as_run(
    record: StrategyRecord, rank_timelines: Sequence[RankTimeline], end_s: float, warm_up: int = 1
) -> RunData:
    """A run folder's values of a training that was over after `end_s`; all ranks are of one tier,
    and transfers behind the wait are a server's."""
    spans: list[tuple[float, ...]] = []
    for rank, each in enumerate(rank_timelines):
        for step in range(len(each)):
            flag = int(Flag.WARM_UP) if step < warm_up else 0
            come_s = each.resume_s[step] + each.after[step, Phase.COMM.code]
            parts = [
                (Phase.FORWARD, each.start_s[step], each.ready_s[step], -1, 0),
                (Phase.COMM, each.ready_s[step], each.resume_s[step], each.awaited[step], 0),
                (Phase.COMM, each.resume_s[step], come_s, len(rank_timelines), 99),
                (Phase.OPTIMIZER, come_s, each.end_s[step], -1, 0),
            ]
            spans += [
                (step, rank, phase.code, begin, over - begin, peer, flag, size)
                for phase, begin, over, peer, size in parts
                if over > begin or size == 0
            ]
    numbered = [(*span[:6], span[7], span[6]) for span in spans]
    return run_of(record, numbered, [each.end_s for each in rank_timelines], end_s)


def run_of(
    record: StrategyRecord,
    spans: Sequence[tuple[float, ...]],
    ends: Sequence[FloatArray],
    end_s: float,
) -> RunData:
    """A run of such spans (step, rank, phase, start, seconds, peer, bytes, and flags or none) and
    ends of steps."""
    full = [(*span, 0)[:8] for span in spans]
    step, rank, phase, start, seconds, peer, size, flags = (
        np.array(column) for column in zip(*full, strict=True)
    )
    zeros = np.zeros(len(step), dtype=np.int64)
    table = SpanColumns(
        step=step.astype(np.int64), rank=rank.astype(np.int64), lane=zeros, phase=phase.astype(np.int64), seq=zeros,
        start_ns=np.rint(start * 1e9).astype(np.int64), dur_ns=np.rint(seconds * 1e9).astype(np.int64), group=zeros - 1,
        peer=peer.astype(np.int64), bytes=size.astype(np.int64), work=zeros + 8, flags=flags.astype(np.int64),
    )  # fmt: skip
    generated = generate_run(quiet(len(ends), 5))
    assert generated.record is not None
    assert generated.record.outcome is not None
    outcome = generated.record.outcome.model_copy(update={"makespan_s": end_s})
    described = generated.record.model_copy(
        update={"strategy": record, "status": "done", "outcome": outcome}
    )
    order = np.lexsort((table.start_ns, table.rank, table.step))
    return dataclasses.replace(
        generated, record=described, spans=table.where(order), steps=_steps(ends)
    )


def _steps(ends: Sequence[FloatArray]) -> StepColumns:
    rank = np.concatenate([np.full(len(each), r) for r, each in enumerate(ends)])
    number = np.concatenate([np.arange(len(each)) for each in ends])
    none = np.zeros(len(number), dtype=np.int64)
    begun = np.concatenate([np.concatenate([[0.0], each[:-1]]) for each in ends])
    return StepColumns(
        step=number, rank=rank, start_ns=np.rint(begun * 1e9).astype(np.int64),
        end_ns=np.rint(np.concatenate(list(ends)) * 1e9).astype(np.int64), loss=np.ones(len(number)),
        accuracy=np.full(len(number), np.nan), samples=none + 8, batch_size=none + 8, staleness=none, dropped=none,
        skipped=none, read_version=none, applied_version=none + 1, waited_for=none - 1,
    )  # fmt: skip
