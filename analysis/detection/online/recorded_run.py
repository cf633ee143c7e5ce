"""Replay of a finished run through the live detector, step by step.

The detector receives the links' samples up to the current step and nothing later.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laggard.analysis.detection.online.detector import OnlineDetector
from laggard.analysis.detection.online.step_rows import (
    StepRows,
    iterate_async_rows,
    iterate_lockstep_rows,
)
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import Alarm, select_latest_alarms

# Steps between two deliveries of link samples.
_LINKS_EVERY = 10
_SECOND_NS = 1_000_000_000


def replay_alarms(run: RunData) -> tuple[Alarm, ...]:
    """Return the alarms that a run would have raised, each in its last state.

    Args:
        run: a loaded run; its findings and its injected truth are not read.
    """
    detector = OnlineDetector(run.hosts, run.is_lockstep, run.teams)
    rows = (
        iterate_lockstep_rows(run.spans, run.world_size)
        if run.is_lockstep
        else _iterate_seconds(run)
    )
    changed: list[Alarm] = []
    taken = 0
    for count, step in enumerate(rows):
        if count % _LINKS_EVERY == 0:
            upto = int(np.searchsorted(run.links.time_ns, _get_end_ns(step), side="right"))
            detector.update_links(run.links.where(np.arange(taken, upto)))
            taken = upto
        changed += detector.update(step)
    return select_latest_alarms(changed)


def _iterate_seconds(run: RunData) -> Iterator[StepRows]:
    """Yield the steps of asynchronous ranks, grouped by the second in which they ended.

    The live watcher reads the spans once a second, so this is the order in which it would see
    them.
    """
    spans = run.spans
    keys, step = np.unique(np.column_stack([spans.rank, spans.step]), axis=0, return_inverse=True)
    end_ns = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(end_ns, step.reshape(-1), spans.end_ns)
    second = (end_ns // _SECOND_NS)[step.reshape(-1)]
    for each in np.unique(second):
        yield from iterate_async_rows(spans.where(np.flatnonzero(second == each)), run.world_size)


def _get_end_ns(step: StepRows) -> int:
    return int(step.step_times[:, 2].max())
