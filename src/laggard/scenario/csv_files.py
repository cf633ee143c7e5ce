"""CSV files that scenario files name: matrices, traces, lives of machines, maps of clients."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from laggard.core.errors import Problem, ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.network_emulation.dynamics.traces import TracePoint, parse_trace
from laggard.network_emulation.links.link_matrix import MatrixCell, parse_matrix
from laggard.network_emulation.model import Heterogeneity, TraceEvent
from laggard.scenario.cross_checks import ScenarioSources
from laggard.scenario.files import read_bounded
from laggard.scenario.named_files.client_map import list_client_maps
from laggard.scenario.named_files.planned_blocks import list_plans
from laggard.workloads.specification.churn import DrawnChurn, RecordedChurn
from laggard.workloads.workload import Workload

MAX_CSV_BYTES = 16 << 20

Parsed = TypeVar("Parsed")


def read_csv_files(
    heterogeneity: Heterogeneity | None,
    workload: Workload | None,
    folder: Path,
    sources: ScenarioSources,
) -> tuple[Mapping[str, bytes], Sequence[Problem]]:
    """Read every CSV file, by its name in the scenario.

    A file that cannot be read is a problem at the place that names it.

    Args:
        heterogeneity: the file `heterogeneity.yaml`; None if it is wrong.
        workload: the file `workload.yaml`; None if it is wrong.
        folder: folder of the scenario.
        sources: places of keys.
    """
    found: dict[str, bytes] = {}
    problems: list[Problem] = []
    for name, key, source in _list_csv_files(heterogeneity, workload, sources):
        if name in found:
            continue
        try:
            found[name] = read_bounded(folder / name, name, MAX_CSV_BYTES)
        except ScenarioError as error:
            rules = [problem.rule for problem in error.problems]
            fix = f"put the {key[-1]} file into the scenario's folder"
            problems += [source.locate_problem(key, rule, fix) for rule in rules]
    return found, problems


def parse_points(data: bytes, path: str) -> tuple[TracePoint, ...]:
    """Parse a trace.

    Raises:
        ScenarioError: the file is no trace.
    """
    return _parse_csv(data, path, lambda text: parse_trace(text, path))


def parse_cells(data: bytes, path: str, hosts: Sequence[Host]) -> tuple[MatrixCell, ...]:
    """Parse a matrix of links.

    Raises:
        ScenarioError: the file is no matrix.
    """
    return _parse_csv(data, path, lambda text: parse_matrix(text, path, hosts))


def _list_csv_files(
    heterogeneity: Heterogeneity | None, workload: Workload | None, sources: ScenarioSources
) -> Iterator[tuple[str, KeyPath, YamlSource]]:
    """Yield the name of every file, and the place that names it."""
    if heterogeneity is not None:
        for name, i in heterogeneity.matrices.items():
            yield name, ("deterministic", i, "matrix"), sources.heterogeneity
        for i, event in enumerate(heterogeneity.events):
            if isinstance(event, TraceEvent):
                yield event.trace, ("dynamic", i, "trace"), sources.heterogeneity
    if workload is not None and isinstance(workload.churn, DrawnChurn):
        yield workload.churn.lifetimes, ("churn", "lifetimes"), sources.workload
    if workload is not None and isinstance(workload.churn, RecordedChurn):
        yield workload.churn.availability, ("churn", "availability"), sources.workload
    for name, key in (
        ()
        if workload is None
        else (
            *list_client_maps(workload),
            *list_plans(workload),
        )
    ):
        yield name, key, sources.workload


def _parse_csv(data: bytes, path: str, parse: Callable[[str], Parsed]) -> Parsed:
    try:
        return parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        problem = Problem(
            path, 0, 0, f"byte {error.start}", "a CSV file must be UTF-8 text", "save it as UTF-8"
        )
        raise ScenarioError((problem,)) from error
    except csv.Error as error:
        raise ScenarioError(
            (Problem(path, 0, 0, "", f"not a CSV file: {error}", "save it as plain CSV"),)
        ) from error
