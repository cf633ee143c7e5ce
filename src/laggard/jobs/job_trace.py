"""Jobs from files: traces of Gavel's simulations, and CSV.

A line of Gavel's traces (https://github.com/stanford-futuredata/gavel) has, separated by tabs:
type of the job, command, folder, option for the steps, whether it needs data, number of steps,
devices, priority, deadline, arrival in seconds. Commands are not run. The steps per second stand in
a JSON document: `{"v100": {"('ResNet-18 (batch size 16)', 1)": {"null": 32.4}}}`, by type of
device, type of job with its devices, and `null` for a job that shares its devices with no other.
Beside `null` stand the jobs with which it may share a device, with the speeds of both.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded, read_json
from laggard.workloads.scheduling.cluster_jobs import ClusterJob, PairSpeeds

MAX_BYTES = 256 << 20
MAX_JOBS = 1_000_000

_GAVEL_COLUMNS = 10
_CSV_COLUMNS = ("name", "steps")


@dataclass(frozen=True)
class JobTrace:
    """Jobs of a trace.

    Attributes:
        jobs: jobs in the order of the file.
        pairs: speeds of jobs that share a device.
    """

    jobs: tuple[ClusterJob, ...]
    pairs: PairSpeeds = field(default_factory=dict)


def read_jobs(path: Path, throughputs: Path | None, types: Sequence[str]) -> JobTrace:
    """Read the jobs of a trace.

    Args:
        path: CSV, if its name ends so, or else a trace in Gavel's format.
        throughputs: steps per second by type of job, for Gavel's format.
        types: names of the types of devices.

    Raises:
        InputError: the trace or its throughputs are missing or wrong.
    """
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 — give a trace of jobs") from error
    if path.suffix.lower() == ".csv":
        if throughputs is not None:
            raise InputError(
                f"{throughputs}: a CSV has the steps per second in its own columns — leave"
                " `throughputs` out"
            )
        return JobTrace(_read_csv(path, text, types))
    if throughputs is None:
        raise InputError(
            f"{path}: a trace in Gavel's format has no steps per second — give `throughputs`"
        )
    document = _read_throughputs(throughputs, types)
    speeds = _parse_speeds(throughputs, document)
    return JobTrace(_read_gavel(path, text, speeds), _parse_pairs(throughputs, document))


def _read_csv(path: Path, text: str, types: Sequence[str]) -> tuple[ClusterJob, ...]:
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames or ()
    missing = [each for each in _CSV_COLUMNS if each not in columns]
    if missing or not set(types) & set(columns):
        raise InputError(
            f"{path}:1: needs the columns name, steps and one of {', '.join(types)} with steps per"
            " second; arrival_s, scale and priority may be there — name them in the first line"
        )
    jobs = []
    for number, row in enumerate(reader, start=2):
        try:
            jobs.append(
                ClusterJob(
                    name=row["name"] or str(number),
                    steps=int(row["steps"]),
                    throughput={each: float(row.get(each) or 0) for each in types},
                    scale=int(row.get("scale") or 1),
                    arrival_s=float(row.get("arrival_s") or 0),
                    priority=float(row.get("priority") or 1),
                )
            )
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}:{number}: {error} — give numbers") from error
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from error
        _require_few(path, len(jobs))
    return tuple(jobs)


Throughputs = Mapping[tuple[str, int], Mapping[str, float]]


def _read_gavel(path: Path, text: str, throughputs: Throughputs) -> tuple[ClusterJob, ...]:
    jobs: list[ClusterJob] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != _GAVEL_COLUMNS:
            raise InputError(
                f"{path}:{number}: has {len(cells)} cells between tabs, and a line of Gavel's"
                f" format has {_GAVEL_COLUMNS} — give such a trace, or a CSV"
            )
        try:
            jobs.append(_parse_gavel_job(len(jobs) + 1, cells, throughputs))
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error} — give numbers") from error
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from error
        _require_few(path, len(jobs))
    if not jobs:
        raise InputError(f"{path}: has no jobs — give a trace of jobs")
    return tuple(jobs)


def _parse_gavel_job(number: int, cells: Sequence[str], throughputs: Throughputs) -> ClusterJob:
    kind, steps, scale, priority, arrival = (cells[each] for each in (0, 5, 6, 7, 9))
    speeds = throughputs.get((kind, int(scale)))
    if speeds is None:
        raise InputError(f"no throughput is given for {kind} on {scale} devices — add it")
    curves: dict[str, dict[int, float]] = {}
    for devices in {each for label, each in throughputs if label == kind}:
        for name, speed in throughputs[kind, devices].items():
            curves.setdefault(name, {})[devices] = speed
    return ClusterJob(
        f"{number} {kind}",
        int(steps),
        speeds,
        int(scale),
        float(arrival),
        float(priority),
        curves,
        kind,
    )


_Rows = Mapping[str, object]


def _read_throughputs(path: Path, types: Sequence[str]) -> Mapping[str, _Rows]:
    """Return the rows of each type of device by their labels."""
    document = read_json(path, MAX_BYTES)
    found: dict[str, _Rows] = {}
    for name in types:
        rows = document.get(name) if isinstance(document, dict) else None
        if not isinstance(rows, dict):
            raise InputError(f"{path}: has no throughputs on {name} — add them, or remove the type")
        found[name] = rows
    return found


def _parse_speeds(path: Path, document: Mapping[str, _Rows]) -> Throughputs:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, rows in document.items():
        for label, row in rows.items():
            speed = row.get("null") if isinstance(row, dict) else None
            key = _parse_label(label)
            if key is None or not isinstance(speed, (int, float)):
                raise InputError(
                    f"{path}: {name}: {label}: is not a type of job with its devices and a number"
                    " of steps per second under null — write them like"
                    ' "(\'ResNet-18 (batch size 16)\', 1)": {"null": 32.4}'
                )
            found.setdefault(key, {})[name] = float(speed)
    return found


def _parse_pairs(path: Path, document: Mapping[str, _Rows]) -> PairSpeeds:
    found: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for name, rows in document.items():
        for label, other, both in _list_pairs(rows):
            first, second = _parse_label(label), _parse_label(other)
            if first is None or second is None:
                raise InputError(f"{path}: {name}: {other}: is not a type of job with its devices")
            if (first[1], second[1]) != (1, 1):
                continue
            if not (
                isinstance(both, list)
                and len(both) == 2
                and all(isinstance(each, (int, float)) and 0 <= each < 1e12 for each in both)
            ):
                raise InputError(
                    f"{path}: {name}: {label} with {other}: are not two numbers of steps per second"
                    " — give a speed of at least 0 for each job"
                )
            found.setdefault((first[0], second[0]), {})[name] = (float(both[0]), float(both[1]))
    return found


def _list_pairs(rows: _Rows) -> Iterator[tuple[str, str, object]]:
    for label, row in rows.items():
        if isinstance(row, dict):
            yield from ((label, other, both) for other, both in row.items() if other != "null")


def _parse_label(label: str) -> tuple[str, int] | None:
    """Return the type of job and the devices of a label such as `('A (batch size 16)', 1)`."""
    kind, _, scale = label.rpartition("', ")
    scale = scale.removesuffix(")")
    if not kind.startswith("('") or not (scale.isascii() and scale.isdigit()):
        return None
    return kind.removeprefix("('"), int(scale)


def _require_few(path: Path, count: int) -> None:
    if count > MAX_JOBS:
        raise InputError(f"{path}: has more than {MAX_JOBS:,} jobs — give fewer")
