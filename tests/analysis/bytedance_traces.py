"""Traces in ByteDance's format with known answers: pure data parallelism, and a pipeline that runs
one forward, one backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from laggard.analysis.formats.bytedance.operations import Operations, OpType

STEPS, FORWARD_S, BACKWARD_S, OPTIMIZER_S, TRANSFER_S = 4, 0.020, 0.040, 0.003, 0.010
Row = dict[str, float]


def table(rows: Sequence[Row]) -> Operations:
    """Rows as operations, numbered within their type."""
    counts: dict[tuple[float, ...], int] = {}
    for row in rows:
        key = (row["step"], row["dp_rank"], row["stage"], row["optype"])
        row["seq_id"] = counts.setdefault(key, 0)
        counts[key] += 1
    columns = {f.name: np.array([row[f.name] for row in rows]) for f in fields(Operations)}
    return Operations(
        **{name: c if name.endswith("_s") else c.astype(np.int64) for name, c in columns.items()}
    ).to_sorted()


def _row(
    dp: int, stage: int, stages: int, step: int, optype: OpType, start_s: float, end_s: float
) -> Row:
    return {
        "dp_rank": dp,
        "stage": stage,
        "rank": dp * stages + stage,
        "step": step,
        "optype": optype.code,
        "start_s": start_s,
        "duration_s": end_s - start_s,
        "mc": 0 if optype in (OpType.FORWARD, OpType.BACKWARD) else -1,
        "mb_id": 0 if optype in (OpType.FORWARD, OpType.BACKWARD) else -1,
        "gmc": stage if optype in (OpType.FORWARD, OpType.BACKWARD) else -1,
    }


def data_parallel(
    slowness: Sequence[float], gap_s: float = 0.0, *, sampled: bool = False
) -> Operations:
    """One worker per slowness: forward, backward, one collective, clipping, optimizer; `gap_s` is
    lost before every operation.

    With `sampled`, steps have numbers apart and begin at zero each, as in published traces.
    """
    rows: list[Row] = []
    begin = 0.0
    for step in range(STEPS):
        arrival = [begin + m * (FORWARD_S + BACKWARD_S) + 3 * gap_s for m in slowness]
        met = max(arrival) + TRANSFER_S
        ends = [met + gap_s + m * OPTIMIZER_S for m in slowness]
        for dp, m in enumerate(slowness):
            forward = begin + gap_s + m * FORWARD_S
            times = [
                (OpType.FORWARD, begin + gap_s, forward),
                (OpType.BACKWARD, forward + gap_s, arrival[dp] - gap_s),
                (OpType.GC, arrival[dp] - gap_s, arrival[dp] - gap_s),
                (OpType.GRADS_REDUCE_SCATTER, arrival[dp], met),
                (OpType.CLIP, met, met),
                (OpType.OPTIMIZER, met + gap_s, ends[dp]),
            ]
            shift = begin if sampled else 0.0
            number = 100 * step if sampled else step
            rows += [
                _row(dp, 0, 1, number, optype, start - shift, end - shift)
                for optype, start, end in times
            ]
        begin = max(ends)
    return table(rows)


@dataclass
class _Pipeline:
    """One forward, one backward: stage s does P - s forwards ahead, then alternates; transfers take
    no time."""

    stages: int
    microbatches: int
    forward_s: Callable[[int], float]
    backward_s: Callable[[int], float]

    def order(self, stage: int) -> list[tuple[OpType, int]]:
        ahead = min(self.stages - stage, self.microbatches)
        compute = [(OpType.FORWARD, k) for k in range(ahead)]
        for k in range(self.microbatches):
            compute.append((OpType.BACKWARD, k))
            if ahead + k < self.microbatches:
                compute.append((OpType.FORWARD, ahead + k))
        return compute

    def ends(self) -> dict[tuple[OpType, int, int], float]:
        """End of every compute, by type, microbatch and stage."""
        end: dict[tuple[OpType, int, int], float] = {}
        left = {stage: self.order(stage) for stage in range(self.stages)}
        clock = dict.fromkeys(left, 0.0)
        while any(left.values()):
            for stage, queue in left.items():
                if not queue:
                    continue
                optype, k = queue[0]
                needs = (optype, k, stage - 1 if optype is OpType.FORWARD else stage + 1)
                if 0 <= needs[2] < self.stages and needs not in end:
                    continue
                takes = (self.forward_s if optype is OpType.FORWARD else self.backward_s)(stage)
                clock[stage] = end[optype, k, stage] = (
                    max(clock[stage], end.get(needs, 0.0)) + takes
                )
                queue.pop(0)
        return end

    def arrival(self, stage: int) -> float:
        """When a stage may reduce its gradients: the first and the last have a common embedding."""
        ends = {s: max(t for key, t in self.ends().items() if key[2] == s) for s in (0, stage)}
        return max(ends.values()) if stage in (0, self.stages - 1) else ends[stage]


def _not_slow(_replica: int, _stage: int) -> float:
    return 1.0


def _plan(
    stages: int, microbatches: int, slowness: Callable[[int], float], factor: Callable[[int], float]
) -> _Pipeline:
    return _Pipeline(
        stages,
        microbatches,
        lambda s: FORWARD_S * slowness(s) * factor(s),
        lambda s: BACKWARD_S * slowness(s) * factor(s),
    )


def pipeline(
    stages: int,
    microbatches: int,
    slowness: Callable[[int], float],
    replicas: int = 2,
    slow_worker: Callable[[int, int], float] = _not_slow,
) -> Operations:
    """A pipeline whose stage s computes `slowness(s)` times as long; sends and receives last from
    the earlier end's launch to the later's.

    `slow_worker` is another factor, by replica and stage.
    """
    plans = [
        _plan(stages, microbatches, slowness, partial(slow_worker, dp)) for dp in range(replicas)
    ]
    rows: list[Row] = []
    last = max(max(plan.ends().values()) for plan in plans)
    for step in range(STEPS):
        for dp, plan in enumerate(plans):
            end = plan.ends()
            for stage in range(stages):
                add = lambda optype, a, b, dp=dp, stage=stage, step=step: rows.append(  # noqa: E731
                    _row(dp, stage, stages, step, optype, a, b)
                )
                before = 0.0
                for optype, k in plan.order(stage):
                    own = end[optype, k, stage]
                    takes = (plan.forward_s if optype is OpType.FORWARD else plan.backward_s)(stage)
                    add(optype, own - takes, own)
                    towards = 1 if optype is OpType.FORWARD else -1
                    receive, send = (
                        (OpType.FORWARD_RECV, OpType.FORWARD_SEND)
                        if optype is OpType.FORWARD
                        else (OpType.BACKWARD_RECV, OpType.BACKWARD_SEND)
                    )
                    if 0 <= stage - towards < stages:
                        came = end[optype, k, stage - towards]
                        add(receive, min(before, came), came)
                    if 0 <= stage + towards < stages:
                        add(send, own, own)
                    before = own
                for optype in (OpType.GC, OpType.LAYERNORM_ALL_REDUCE):
                    add(optype, before, before)
                if stage in (0, stages - 1):
                    add(OpType.EMBEDDING_ALL_REDUCE, before, plan.arrival(stage))
                reduced = max(each.arrival(stage) for each in plans)
                add(OpType.GRADS_REDUCE_SCATTER, plan.arrival(stage), reduced)
                add(OpType.CLIP, reduced, last)
                add(OpType.OPTIMIZER, last, last)
    return table(rows)
