"""Measure by which the setups of a campaign are compared: makespan, or samples per second.

Trainings that all end after the same time have the same makespan, whatever they did in it. Their
speed is the number of samples per second then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.campaign.result_table import ResultRow
from laggard.analysis.campaign.setups import CampaignSetup
from laggard.analysis.estimates.estimate import Key, to_logarithms


@dataclass(frozen=True)
class SpeedMeasure:
    """Column that says how fast a setup is.

    Attributes:
        column: column of the table.
        name: name of the quantity in texts.
        unit: its unit.
        is_rate: whether larger values are faster.
    """

    column: str
    name: str
    unit: str
    is_rate: bool

    def collect_logarithms(self, setup: CampaignSetup) -> dict[Key, float]:
        """Return the logarithms of the measured values by seed and repeat."""
        return to_logarithms(setup.collect(self.column))

    def collect_slowness(self, setup: CampaignSetup) -> dict[Key, float]:
        """Return logarithms by seed and repeat; the larger one is the slower run."""
        sign = -1.0 if self.is_rate else 1.0
        return {key: sign * value for key, value in self.collect_logarithms(setup).items()}


MAKESPAN = SpeedMeasure("makespan_s", "makespan", "s", is_rate=False)
THROUGHPUT = SpeedMeasure("samples_per_s", "speed", "samples/s", is_rate=True)


def choose_measure(rows: Sequence[ResultRow]) -> SpeedMeasure:
    """Return samples per second if the time limit ended every run, else the makespan."""
    timed = all(row.timed_out and THROUGHPUT.column in row.metrics for row in rows)
    return THROUGHPUT if timed else MAKESPAN


def describe_time_limits(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Return a sentence if the time limit ended a part of the runs that makespans compare."""
    count = sum(row.timed_out for row in rows)
    if not count or choose_measure(rows) is THROUGHPUT:
        return ()
    ended = f"{count} of {len(rows)} runs were ended by their time limit"
    return (f"{ended}, so their makespans are lower bounds",)
