"""Absences of the workers of a scenario, as the simulation of very many workers takes them.

Lives that are drawn from observed ones are drawn for each of the many workers. Written times, and
those of a file of availability, are those of all workers that are like the named ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from laggard.core.hosts import select_hosts
from laggard.core.revocation.lifetimes_file import parse_lifetimes
from laggard.core.simulation.crowd.absences import Absences, DrawnAbsences, WrittenAbsences
from laggard.scenario.load import Scenario
from laggard.workloads.specification.churn import DrawnChurn, turns
from laggard.workloads.workload import Workload


def plan_absences(scenario: Scenario) -> Mapping[int, Absences]:
    """Return the absences of the ranks of a scenario that have any, by rank."""
    drawn = Workload.model_validate(scenario.sources.workload.value).churn
    if isinstance(drawn, DrawnChurn):
        lives = parse_lifetimes(scenario.files()[drawn.lifetimes], drawn.lifetimes)
        source = DrawnAbsences(lives, drawn.back_after_s, drawn.faster)
        revocable = {host.name for host in select_hosts(drawn.hosts, scenario.hosts)}
        return {rank: source for rank, host in enumerate(scenario.ranks) if host.name in revocable}
    times_s: dict[str, list[float]] = {}
    for turn in turns(scenario.workload.churn_entries, scenario.hosts, scenario.ranks):
        # A host whose first turn is to join is absent from the beginning on.
        times_s.setdefault(turn.host, [0.0] if turn.joins else []).append(turn.at_s)
    written = {host: _pair(times) for host, times in times_s.items()}
    return {
        rank: written[host.name] for rank, host in enumerate(scenario.ranks) if host.name in written
    }


def _pair(times_s: list[float]) -> WrittenAbsences:
    ends = [*times_s[1::2], math.inf][: len(times_s[::2])]
    return WrittenAbsences(tuple(zip(times_s[::2], ends, strict=True)))
