"""The truth of a real run, from `events.parquet`: read to judge the findings, never to make
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from laggard.analysis.causes import FAMILY_CODES
from laggard.analysis.columns import FloatArray
from laggard.analysis.evaluate.oracle import detectable
from laggard.analysis.evaluate.truth import WHOLE_RUN, Event
from laggard.analysis.intervals import noise_sigma
from laggard.analysis.load import Run
from laggard.analysis.replay.arrange import build_timeline
from laggard.analysis.replay.timeline import Timeline
from laggard.analysis.step_clock import StepClock, step_clock
from laggard.analysis.transfers import measure_transfers
from laggard.run_schema import Family

FAMILIES: Mapping[str, Family] = {
    "cpu": "compute",
    "read_mb_per_s": "storage",
    "rate_mbps": "network",
}
"""Which family slows when a quantity falls."""


@dataclass(frozen=True)
class Fall:
    """One quantity of one host or link that fell for a while: by what ratio, and when, in seconds
    after the first step.
    """

    quantity: str
    src: str
    dst: str | None
    ratio: float
    begin_s: float
    end_s: float


def injected_events(run: Run, folder: Path) -> tuple[Event, ...]:
    """What was done to a run, as events.

    Args:
        run: the run.
        folder: its folder.

    Returns:
        An event for each host, and for all links that changed at one time. Its steps are those of
        which the greater part lies within. Whether it is detectable is told by the run's own noise
        from step to step.
    """
    import pyarrow.parquet as pq

    timeline, clock = build_timeline(run), step_clock(run)
    falls = read_falls(pq.read_table(folder / "events.parquet").to_pylist(), float(clock.end_s[-1]))
    local = [each for each in falls if FAMILIES[each.quantity] != "network"]
    links = sorted((each for each in falls if FAMILIES[each.quantity] == "network"), key=_moment)
    groups = [[each] for each in local] + [list(same) for _, same in groupby(links, key=_moment)]
    events = (_event(run, timeline, clock, group) for group in groups)
    return tuple(event for event in events if event is not None)


def read_falls(rows: list[dict[str, object]], over_s: float) -> tuple[Fall, ...]:
    """Pairs the beginnings and ends in rows of `events.parquet`; what never ended did so with the
    run, at `over_s`.
    """
    falls, begun = [], {}
    for row in rows:
        key = (
            str(row["quantity"]),
            str(row["src"]),
            None if row["dst"] is None else str(row["dst"]),
        )
        value, at_s = float(str(row["value"])), float(str(row["effective_s"]))
        if row["kind"] == "begin":
            begun[key] = (value, at_s)
        elif row["kind"] == "end" and key in begun:
            low, begin_s = begun.pop(key)
            falls.append(Fall(*key, value / low, begin_s, at_s))
    # What a quantity was before is told at its end alone; without one the ratio is unknown, and
    # taken as plain to see.
    falls += [Fall(*key, float("inf"), begin_s, over_s) for key, (_, begin_s) in begun.items()]
    return tuple(each for each in falls if each.quantity in FAMILIES and each.ratio > 1.0)


def _moment(fall: Fall) -> tuple[float, float]:
    return (fall.begin_s, fall.end_s)


def _event(run: Run, timeline: Timeline, clock: StepClock, falls: list[Fall]) -> Event | None:
    middle = (clock.start_s + clock.end_s) / 2
    within = np.flatnonzero((middle >= falls[0].begin_s) & (middle < falls[0].end_s))
    if not len(within):
        return None
    family = FAMILIES[falls[0].quantity]
    rank = None if family == "network" else [host.host for host in run.hosts].index(falls[0].src)
    sigma = noise_sigma(_logs(timeline, family, rank))
    return Event(
        family=family,
        kind="deterministic" if len(within) >= WHOLE_RUN * len(clock.steps) else "dynamic",
        rank=rank,
        links=frozenset((each.src, each.dst) for each in falls if each.dst is not None),
        first=int(clock.steps[within[0]]),
        last=int(clock.steps[within[-1]]),
        detectable=detectable(len(within), falls[0].ratio, sigma),
    )


def _logs(timeline: Timeline, family: Family, rank: int | None) -> FloatArray:
    """The log durations in which the slowness shows, after warm-up."""
    usual = ~timeline.warm_up
    if rank is None:
        logs: FloatArray = measure_transfers(timeline).step_logs[usual]
        return logs
    seconds = timeline.work.of_rank(rank, FAMILY_CODES[family])[usual].sum(axis=1)
    own: FloatArray = np.log(np.maximum(seconds, 1e-9))
    return own
