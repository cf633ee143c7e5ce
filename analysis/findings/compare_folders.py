"""Comparison of run folders: grouping into setups, names of setups, and output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from laggard.analysis.estimates.estimate import Estimate, scale_estimate
from laggard.analysis.estimates.estimate_text import format_estimate, format_percent_estimate
from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.findings.compare_runs import (
    MeasuredRun,
    Setup,
    compare_runs,
    measure_run,
)
from laggard.analysis.tables.load_run import load_run
from laggard.core.errors import InputError
from laggard.core.run_schema import RunRecord

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

_MAX_CAUSES = 6
# Parts of the time split below this share of the total are not printed.
_MIN_PART = 0.01


def compare_folders(folders: Sequence[Path]) -> tuple[tuple[Setup, ...], tuple[str, ...]]:
    """Analyze runs and compare their setups.

    Args:
        folders: run folders; the others are compared with the setup of the first one.

    Returns:
        The setups in the order of their first runs, and a line for each run that is skipped
        because its status is not `done`.

    Raises:
        InputError: no run has the status `done`.
        RunFolderError: a folder is not a run folder.

    Examples:
        >>> folders = [Path("runs/quickstart/latest"), Path("runs/quickstart/earlier")]
        >>> setups, left_out = compare_folders(folders)
        >>> len(setups), setups[0].seeds
        (1, (1, 2))
    """
    kept: list[tuple[Path, RunRecord]] = []
    left_out: list[str] = []
    # A folder that is given twice counts once; as a repeat, it would narrow the intervals.
    for folder in dict.fromkeys(folders):
        record = load_run(folder).record
        if record is None or record.status != "done":
            status = (
                "it has no run.json"
                if record is None
                else f"{record.scenario} {record.id} has the status {record.status}, not done"
            )
            left_out.append(f"{folder} is skipped: {status}")
        else:
            kept.append((folder, record))
    if not kept:
        raise InputError(
            "none of these runs has the status done, so there is nothing to compare — give at least"
            " one that has:\n" + "\n".join(left_out)
        )
    names = name_setups([record for _, record in kept])
    measured = [
        _measure_folder(folder, name) for (folder, _), name in zip(kept, names, strict=True)
    ]
    return compare_runs(measured), tuple(left_out)


def _measure_folder(folder: Path, setup: str) -> MeasuredRun:
    run = load_run(folder)
    return measure_run(run, analyze_run(run), setup)


def name_setups(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the setup name of every run: the settings that distinguish it from other setups.

    A name consists of scenario, strategy, testbed and settings of the command line, without seeds.
    Settings that all runs share are omitted, unless there is only one setup.
    """
    told = [
        (
            record.scenario,
            record.strategy.description,
            record.testbed,
            *(f"{k}={v}" for k, v in _iterate_settings(record)),
        )
        for record in records
    ]
    shared = set.intersection(*map(set, told)) if told else set()
    everything = shared if len({*told}) == 1 else set()
    return tuple(
        ", ".join(part for part in parts if part not in shared - everything) or "base setup"
        for parts in told
    )


def _iterate_settings(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield key and value of every `--set` option, except for the strategy and seeds.

    The strategy is described by its record instead.
    """
    arguments = iter(record.command)
    for argument in arguments:
        setting = next(arguments, "") if argument == "--set" else argument.removeprefix("--set=")
        if argument != "--set" and not argument.startswith("--set="):
            continue
        key, _, value = setting.partition("=")
        if not (key.endswith("seed") or key.startswith("workload.strategy")):
            yield key, value


def to_comparison_document(
    setups: Sequence[Setup], left_out: Sequence[str]
) -> dict[str, JsonValue]:
    """Return the comparison as a JSON document."""
    return {"setups": [asdict(setup) for setup in setups], "left_out": list(left_out)}


def format_comparison(setups: Sequence[Setup], left_out: Sequence[str]) -> str:
    """Return the comparison as text.

    Examples:
        >>> from laggard.analysis.findings.compare_folders import compare_folders
        >>> folders = [Path("runs/quickstart/latest"), Path("runs/quickstart/earlier")]
        >>> print(format_comparison(*compare_folders(folders)))
        generated, allreduce, generated (2 runs)
          makespan ... s
        ...
    """
    lines: list[str] = []
    for setup in setups:
        lines += [*_format_setup(setup, setups[0]), ""]
    return "\n".join([*lines, *left_out]).rstrip()


def _format_setup(setup: Setup, first: Setup) -> Iterator[str]:
    count = len(setup.seeds)
    yield f"{setup.name} ({count} run{'s' if count > 1 else ''})"
    speedup = (
        ""
        if setup.speedup is None
        else f"; {format_estimate(setup.speedup, '{:.2f}')} times as fast as {first.name}"
    )
    yield f"  makespan {format_estimate(setup.makespan_s, '{:.1f}')} s{speedup}"
    if setup.accuracy is not None:
        gain = _format_difference(setup.accuracy_gain, first)
        yield f"  accuracy {format_percent_estimate(setup.accuracy)}{gain}"
    if setup.bytes_sent is not None:
        yield (
            f"  sent {format_estimate(_to_megabytes(setup.bytes_sent), '{:,.0f}')}"
            f" MB{_format_ratio(setup.bytes_ratio, first)}"
        )
    if setup.cost is not None:
        yield f"  price {format_estimate(setup.cost, '{:.3g}')}"
    if setup.fairness is not None:
        yield f"  fairness {format_estimate(setup.fairness, '{:.2f}')}"
    total = sum(part.mean for part in setup.parts_s.values())
    parts = [
        f"{name} {format_estimate(part, '{:.1f}')}"
        for name, part in setup.parts_s.items()
        if part.mean >= _MIN_PART * total
    ]
    yield f"  mean seconds per worker: {', '.join(parts)}"
    if setup.lost_share is None:
        yield "  the cost of slow workers was not computed"
        return
    yield f"  lost to all causes found: {format_percent_estimate(setup.lost_share)}"
    for cause in setup.causes[:_MAX_CAUSES]:
        yield f"    {100 * cause.share:.1f} %  {cause.subject} (in {cause.runs} of {count} runs)"


def _format_difference(points: Estimate | None, first: Setup) -> str:
    if points is None:
        return ""
    return (
        f"; {format_estimate(scale_estimate(points, 100), '{:+.1f}')} points"
        f" compared with {first.name}"
    )


def _format_ratio(bytes_ratio: Estimate | None, first: Setup) -> str:
    return (
        ""
        if bytes_ratio is None
        else f"; {format_estimate(bytes_ratio, '{:.2g}')} times as much as {first.name}"
    )


def _to_megabytes(sent: Estimate) -> Estimate:
    return scale_estimate(sent, 1e-6)
