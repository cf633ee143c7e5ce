"""A run that is over, told to the detector as it went: step by step, with the links' samples of
that time and nothing later.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laggard.analysis.load import Run
from laggard.analysis.online.detector import Detector
from laggard.analysis.online.steps import StepRows, lockstep_rows, own_pace_rows
from laggard.run_schema import Alarm, settled

_LINKS_EVERY = 10
_SECOND_NS = 1_000_000_000


def alarms_of(run: Run) -> tuple[Alarm, ...]:
    """The alarms of a run, as they were told of last.

    Args:
        run: as loaded; findings and truth are not looked at.
    """
    detector = Detector(run.hosts, run.lockstep)
    rows = lockstep_rows(run.spans, run.world_size) if run.lockstep else _second_by_second(run)
    told: list[Alarm] = []
    taken = 0
    for count, step in enumerate(rows):
        if count % _LINKS_EVERY == 0:
            upto = int(np.searchsorted(run.links.time_ns, _now_ns(step), side="right"))
            detector.take_links(run.links.where(np.arange(taken, upto)))
            taken = upto
        told += detector.take(step)
    return settled(told)


def _second_by_second(run: Run) -> Iterator[StepRows]:
    """Steps of ranks of their own pace, by the second in which they ended: as who looks each second
    is told of them.
    """
    spans = run.spans
    keys, step = np.unique(np.column_stack([spans.rank, spans.step]), axis=0, return_inverse=True)
    end_ns = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(end_ns, step.reshape(-1), spans.end_ns)
    second = (end_ns // _SECOND_NS)[step.reshape(-1)]
    for each in np.unique(second):
        yield from own_pace_rows(spans.where(np.flatnonzero(second == each)), run.world_size)


def _now_ns(step: StepRows) -> int:
    return int(step.when[:, 2].max())
