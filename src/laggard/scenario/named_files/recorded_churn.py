"""Entries of `churn` from a CSV file with the times at which devices were available."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from laggard.core.corrections.names import suggest_name
from laggard.core.errors import InputError, ScenarioError
from laggard.core.files.csv_rows import read_csv_rows
from laggard.core.hosts import Host
from laggard.core.yaml_source import YamlSource
from laggard.workloads.plan import place
from laggard.workloads.specification.churn import ChurnEntry, RecordedChurn
from laggard.workloads.validate import DEFAULT_HORIZON_S
from laggard.workloads.workload import Workload

MAX_ENTRIES = 100_000
_COLUMNS = (
    "write host,from,until in the first line, and for example edge.trainer.1.1,0,3600 in the others"
)

Interval = tuple[float, float]


def resolve_availability(
    workload: Workload, hosts: Sequence[Host], csv_files: Mapping[str, bytes], source: YamlSource
) -> Workload:
    """Return the workload with entries instead of a file of available times.

    Without the file, which is a problem of its own, there are no entries.

    Args:
        workload: workload whose placement is valid.
        hosts: all hosts of the continuum.
        csv_files: content of the scenario's CSV files by name.
        source: places of keys of `workload.yaml`.

    Raises:
        ScenarioError: the file has no times of availability.
    """
    recorded = workload.churn
    if not isinstance(recorded, RecordedChurn):
        return workload
    if recorded.availability not in csv_files:
        return workload.model_copy(update={"churn": ()})
    data, name = csv_files[recorded.availability], recorded.availability
    workers = [*dict.fromkeys(host.name for host in place(workload.placement, hosts))]
    try:
        entries = list_entries(
            parse_availability(data, name, workers), workload.stop.time_s or DEFAULT_HORIZON_S
        )
    except InputError as error:
        rule, _, fix = str(error).partition(" — ")
        key = ("churn", "availability")
        raise ScenarioError((source.locate_problem(key, rule, fix),)) from error
    return workload.model_copy(update={"churn": entries})


def parse_availability(
    data: bytes, name: str, workers: Sequence[str]
) -> Mapping[str, Sequence[Interval]]:
    """Return the intervals in which each listed host is available, in order.

    Args:
        data: content of the file.
        name: name of the file in messages.
        workers: hosts that train.

    Raises:
        InputError: the content is no such file; with the line.
    """
    found: dict[str, list[Interval]] = {}
    known = {*workers}
    for line, row in read_csv_rows(data, name, ("host", "from", "until"), _COLUMNS):
        place_ = f"{name}:{line}"
        if row["host"] not in known:
            advice = suggest_name(row["host"], workers)
            raise InputError(f"{place_}: no worker is on a host {row['host']!r} — {advice}")
        begin_s, end_s = _parse_s(row["from"], place_), _parse_s(row["until"], place_)
        if not begin_s < end_s:
            raise InputError(
                f"{place_}: until {row['until']} is not after from {row['from']} — exchange them"
            )
        found.setdefault(row["host"], []).append((begin_s, end_s))
    for host, intervals in found.items():
        intervals.sort()
        for (_, end_s), (begin_s, _) in itertools.pairwise(intervals):
            if begin_s < end_s:
                raise InputError(
                    f"{name}: two intervals of {host} overlap at {begin_s:g} s — join them"
                )
    return found


def list_entries(
    available: Mapping[str, Sequence[Interval]], horizon_s: float
) -> tuple[ChurnEntry, ...]:
    """Return arrivals and departures in the order of time.

    A host that is not available before the horizon has an entry beyond it, so that it is absent.

    Args:
        available: intervals of each host, in order.
        horizon_s: seconds after which nothing is listed.

    Raises:
        InputError: there are too many.
    """
    within = sorted(
        turn
        for host in available
        for number, turn in enumerate(_list_turns(host, available[host]))
        if turn[0] < horizon_s or (number == 0 and turn[1])
    )
    if len(within) > MAX_ENTRIES:
        raise InputError(
            f"{len(within)} arrivals and departures within {horizon_s:g} s, and {MAX_ENTRIES} are"
            " allowed — give a shorter stop.time"
        )
    return tuple(
        ChurnEntry.model_validate({"at": at_s, "joins" if joins else "leaves": host})
        for at_s, joins, host in within
    )


def _list_turns(host: str, intervals: Sequence[Interval]) -> Iterator[tuple[float, bool, str]]:
    """Yield when a host joins and leaves; it is there from the beginning if that is available.

    Intervals that touch are one. A host that becomes available later joins then.
    """
    ends = [begin_s for begin_s, _ in intervals[1:]]
    begins = [end_s for _, end_s in intervals[:-1]]
    touching = {at_s for at_s, other_s in zip(ends, begins, strict=True) if at_s == other_s}
    for begin_s, end_s in intervals:
        if begin_s > 0 and begin_s not in touching:
            yield begin_s, True, host
        if math.isfinite(end_s) and end_s not in touching:
            yield end_s, False, host


def _parse_s(text: str, place_: str) -> float:
    try:
        seconds = float(text) if text else math.inf
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise InputError(
            f"{place_}: {text!r} is no time — give seconds since the first step, or nothing for"
            " the end of training"
        )
    return seconds
