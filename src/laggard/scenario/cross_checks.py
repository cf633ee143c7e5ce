"""Checks across several files of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from laggard.core.errors import Problem
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.model import (
    Heterogeneity,
    TimedHostEvent,
    TimedLinkEvent,
)
from laggard.workloads.validate import has_written_entries
from laggard.workloads.workload import Workload


@dataclass(frozen=True)
class ScenarioSources:
    """Parsed files of a scenario, in which problems are located."""

    layers_services: YamlSource
    network: YamlSource
    workflow: YamlSource
    heterogeneity: YamlSource
    workload: YamlSource


def find_late_entries(
    workload: Workload, heterogeneity: Heterogeneity, sources: ScenarioSources
) -> Iterator[Problem]:
    """Yield a warning for each event or churn entry that begins after training stops."""
    stop_time_s = workload.stop.time_s
    if stop_time_s is None:
        return
    rule, fix = (
        f"training stops after {stop_time_s:g} s, before this entry begins, so it has no effect",
        "use an earlier `at`, or a larger stop.time",
    )
    written = workload.churn_entries if has_written_entries(sources.workload) else ()
    for i, entry in enumerate(written):
        if entry.at_s >= stop_time_s:
            yield sources.workload.locate_problem(("churn", i, "at"), rule, fix)
    for i, event in enumerate(heterogeneity.events):
        if isinstance(event, TimedHostEvent | TimedLinkEvent) and event.at_s >= stop_time_s:
            yield sources.heterogeneity.locate_problem(("dynamic", i, "at"), rule, fix)
