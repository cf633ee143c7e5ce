"""Process groups of gloo's collectives, inferred from threads and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.run_schema import TraceOrigin
from tests.analysis.kineto_traces import Document, annotation, document, event, write

PAIRS, CROSS, ALL = ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3),)
ORDER: Sequence[tuple[Sequence[tuple[int, ...]], int]] = ((PAIRS, 20), (PAIRS, 20), (CROSS, 30))
"""Groups of the collectives of a step, in order, and the first of two threads that run them."""
FORWARD_US, REDUCE_US, SPREAD_US = 1000.0, 150.0, 20.0


def make_documents(
    order: Sequence[tuple[Sequence[tuple[int, ...]], int]],
    slow: Mapping[int, float],
    steps: int = 12,
) -> tuple[list[Document], float]:
    """Documents of four ranks, and the microseconds that the steps take."""
    random = np.random.default_rng(0)
    now = dict.fromkeys(range(4), 1000.0)
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in now}
    for step in range(steps):
        begin = dict(now)
        for place, (family, thread) in enumerate(order):
            for rank in now:
                took = FORWARD_US * slow.get(rank, 1.0) * np.exp(random.normal(0.0, 0.05))
                end = now[rank] + float(took)
                events[rank].append(annotation("DistributedDataParallel.forward", now[rank], end))
                now[rank] = end + 1
            for group in family:
                met = max(now[rank] for rank in group) + REDUCE_US
                for rank in group:
                    left = met + float(random.uniform(0, SPREAD_US))
                    at = now[rank]
                    events[rank] += [
                        event("c10d::allreduce_", at, at + 3),
                        annotation(
                            "gloo:all_reduce", at + 1, left, tid=thread + (step + place) % 2
                        ),
                    ]
                    now[rank] = left + 1
        for rank, own in events.items():
            own.append(annotation("Optimizer.step#SGD.step", now[rank], now[rank] + 50))
            now[rank] += 51
            own.append(annotation(f"ProfilerStep#{step}", begin[rank], now[rank] - 0.5))
    made = [document(rank, own, 4) for rank, own in events.items()]
    for rank, each in enumerate(made):
        groups = [group for family in (ALL, PAIRS, CROSS) for group in family if rank in group]
        each["distributedInfo"]["pg_config"] = [
            {"pg_name": str(n), "ranks": list(ranks)} for n, ranks in enumerate(groups)
        ]
    return made, max(now.values()) - 1000.0


def read(folder: Path, documents: list[Document]) -> tuple[RunData, TraceOrigin]:
    run = open_run(write(folder, documents))
    assert run.record is not None
    assert run.record.origin is not None
    return run, run.record.origin


def members(run: RunData) -> set[tuple[int, ...]]:
    return {tuple(np.flatnonzero(row).tolist()) for row in build_timeline(run).member}


@pytest.mark.parametrize(
    "order",
    [ORDER, ((ALL, 20),), ((PAIRS, 20), (ALL, 30)), ((PAIRS, 20), (CROSS, 30), (ALL, 40))],
)
def test_groups_and_costs(
    tmp_path: Path, order: Sequence[tuple[Sequence[tuple[int, ...]], int]]
) -> None:
    slow, slow_us = make_documents(order, {3: 3.0})
    healthy, healthy_us = make_documents(order, {})
    run, origin = read(tmp_path / "slow", slow)
    assert origin.replayable
    assert "gloo does not record process groups" in " ".join(origin.notes)
    assert members(run) == {group for family, _ in order for group in family}
    analysis = analyze_run(run)
    assert {f.rank for f in analysis.stragglers} == {3}
    true = (slow_us - healthy_us) / slow_us
    assert analysis.lost_s / analysis.makespan_s == pytest.approx(true, abs=0.02)
    assert analyze_run(read(tmp_path / "twin", healthy)[0]).findings == ()


def test_ranks_with_different_collectives_are_told_and_not_priced(tmp_path: Path) -> None:
    documents, _ = make_documents(ORDER, {})
    own = documents[3]["traceEvents"]
    own.remove(next(each for each in own if each["name"] == "gloo:all_reduce"))
    run, origin = read(tmp_path / "traces", documents)
    assert not origin.replayable
    assert members(run) == set()


def test_groups_whose_ranks_are_absent_are_told_and_not_priced(tmp_path: Path) -> None:
    documents, _ = make_documents(ORDER, {})
    _, origin = read(tmp_path / "traces", [documents[0], documents[3]])
    assert not origin.replayable
