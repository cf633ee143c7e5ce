"""Ground truth of a real run, from `events.parquet`; it is read only to judge the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from laggard.analysis.detection.families import FAMILIES
from laggard.analysis.detection.intervals import estimate_noise_sigma
from laggard.analysis.detection.transfers import measure_transfers
from laggard.analysis.evaluate.detectability import is_detectable
from laggard.analysis.evaluate.ground_truth import WHOLE_RUN_SHARE, InjectedEvent
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.step_clock import StepClock, get_step_clock
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.run_schema import StragglerFamily

FAMILY_BY_QUANTITY: Mapping[str, StragglerFamily] = {
    "cpu": "compute",
    "read_mb_per_s": "storage",
    "rate_mbps": "network",
}
"""Family of work that slows down when a quantity falls."""


@dataclass(frozen=True)
class QuantityDrop:
    """Temporary drop of one quantity of one host or link.

    `ratio` is the normal value divided by the reduced one. `begin_s` and `end_s` are seconds after
    the first step.
    """

    quantity: str
    src: str
    dst: str | None
    ratio: float
    begin_s: float
    end_s: float


def read_injected_events(run: RunData, folder: Path) -> tuple[InjectedEvent, ...]:
    """Return the slowdowns that were injected into a run, as events.

    Args:
        run: the run
        folder: its run folder

    Returns:
        One event per host, and one for all links that changed in the same period. An event has the
        steps whose middle lies in the period. The run's own noise between steps decides whether it
        is detectable.
    """
    import pyarrow.parquet as pq

    timeline, clock = build_timeline(run), get_step_clock(run)
    drops = pair_drops(pq.read_table(folder / "events.parquet").to_pylist(), float(clock.end_s[-1]))
    local = [each for each in drops if not _is_of_links(each)]
    # Sorted by period, since `groupby` joins only neighbors.
    links = sorted((each for each in drops if _is_of_links(each)), key=_get_period)
    groups = [[each] for each in local] + [
        list(same) for _, same in groupby(links, key=_get_period)
    ]
    events = (_create_event(run, timeline, clock, group) for group in groups)
    return tuple(event for event in events if event is not None)


def pair_drops(rows: list[dict[str, object]], end_of_run_s: float) -> tuple[QuantityDrop, ...]:
    """Pair the begin and end rows of `events.parquet`.

    A drop without an end row lasts until the end of the run, `end_of_run_s`.
    """
    drops, open_drops = [], {}
    for row in rows:
        key = (
            str(row["quantity"]),
            str(row["src"]),
            None if row["dst"] is None else str(row["dst"]),
        )
        value, at_s = float(str(row["value"])), float(str(row["effective_s"]))
        if row["kind"] == "begin":
            open_drops[key] = (value, at_s)
        elif row["kind"] == "end" and key in open_drops:
            low, begin_s = open_drops.pop(key)
            drops.append(QuantityDrop(*key, value / low, begin_s, at_s))
    # Only an end row has the normal value. Without it the ratio is unknown, and infinity counts as
    # certainly detectable.
    drops += [
        QuantityDrop(*key, float("inf"), begin_s, end_of_run_s)
        for key, (_, begin_s) in open_drops.items()
    ]
    return tuple(each for each in drops if each.quantity in FAMILY_BY_QUANTITY and each.ratio > 1.0)


def _is_of_links(drop: QuantityDrop) -> bool:
    return FAMILIES[FAMILY_BY_QUANTITY[drop.quantity]].uses_links


def _get_period(drop: QuantityDrop) -> tuple[float, float]:
    return (drop.begin_s, drop.end_s)


def _create_event(
    run: RunData, timeline: Timeline, clock: StepClock, drops: list[QuantityDrop]
) -> InjectedEvent | None:
    middle = (clock.start_s + clock.end_s) / 2
    covered_steps = np.flatnonzero((middle >= drops[0].begin_s) & (middle < drops[0].end_s))
    if not len(covered_steps):
        return None
    family = FAMILY_BY_QUANTITY[drops[0].quantity]
    hosts = [host.host for host in run.hosts]
    rank = None if _is_of_links(drops[0]) else hosts.index(drops[0].src)
    sigma = estimate_noise_sigma(_select_log_durations(timeline, family, rank))
    return InjectedEvent(
        family=family,
        kind="deterministic"
        if len(covered_steps) >= WHOLE_RUN_SHARE * len(clock.steps)
        else "dynamic",
        rank=rank,
        links=frozenset((each.src, each.dst) for each in drops if each.dst is not None),
        first=int(clock.steps[covered_steps[0]]),
        last=int(clock.steps[covered_steps[-1]]),
        detectable=is_detectable(len(covered_steps), drops[0].ratio, sigma),
    )


def _select_log_durations(
    timeline: Timeline, family: StragglerFamily, rank: int | None
) -> FloatArray:
    """Return the log durations after warm-up in which the slowness appears."""
    usual = ~timeline.warm_up
    if rank is None:
        logs: FloatArray = measure_transfers(timeline).step_logs[usual]
        return logs
    seconds = timeline.work.of_rank(rank, FAMILIES[family].codes)[usual].sum(axis=1)
    # The lower limit avoids the logarithm of zero in steps without this work.
    own: FloatArray = np.log(np.maximum(seconds, 1e-9))
    return own
