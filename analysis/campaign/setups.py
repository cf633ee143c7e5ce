"""Setups of a campaign: rows that differ in their repeat and seed only, in comparable groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.campaign.axis_values import rank_values
from laggard.analysis.campaign.result_table import ResultRow, ResultTable
from laggard.analysis.estimates.estimate import Key
from laggard.core.errors import InputError
from laggard.core.files.input_files import parse_json

_LONGEST_VALUE = 40
_NAMING_AXES = ("scenario", "variant")


@dataclass(frozen=True)
class CampaignSetup:
    """Repeats of one combination of values.

    Attributes:
        name: values that distinguish it from the other setups of its group.
        values: text of every axis, by its name.
        rows: its repeats.
    """

    name: str
    values: Mapping[str, str]
    rows: tuple[ResultRow, ...]

    def collect(self, metric: str) -> dict[Key, float]:
        """Return the measured values of a metric by seed and repeat."""
        return {
            (row.seed, row.repeat): row.metrics[metric]
            for row in self.rows
            if metric in row.metrics
        }


@dataclass(frozen=True)
class SetupGroup:
    """Setups that are compared with each other.

    Attributes:
        name: values that they share; empty if all setups of the table are in one group.
        setups: the setups; the others are compared with the first one.
    """

    name: str
    setups: tuple[CampaignSetup, ...]


@dataclass(frozen=True)
class GroupedSetups:
    """All setups of a table.

    Attributes:
        groups: the groups that are compared.
        left_out: a sentence for each group without the baseline.
    """

    groups: tuple[SetupGroup, ...]
    left_out: tuple[str, ...] = ()


def group_setups(
    table: ResultTable, per: Sequence[str] = (), baseline: Mapping[str, str] | None = None
) -> GroupedSetups:
    """Group the rows of a table into setups, and the setups into groups.

    Args:
        table: table of results.
        per: axes whose values a group shares. By default this is the scenario, or none if no
            scenario has two setups.
        baseline: values of axes; the first setup of a group that has them becomes its first. A
            group without such a setup, because none of its runs counts, is left out.

    Returns:
        The groups and their setups in the order of the axes' values (`rank_values`).

    Raises:
        InputError: an axis is not in the table, or no group has the baseline.
    """
    for axis in (*per, *(baseline or ())):
        _require_axis(table, axis)
    setups: dict[tuple[str, ...], list[ResultRow]] = {}
    for row in table.rows:
        setups.setdefault(tuple(row.values[axis] for axis in table.axes), []).append(row)
    if not per:
        scenarios = {values[table.axes.index("scenario")] for values in setups}
        per = ("scenario",) if len(scenarios) < len(setups) else ()
    # A shuffled campaign has the setups in an order of chance.
    ranks = [rank_values(axis, [row.values[axis] for row in table.rows]) for axis in table.axes]
    groups: dict[tuple[str, ...], list[list[ResultRow]]] = {}
    for _, rows in sorted(
        setups.items(),
        key=lambda item: [rank[value] for rank, value in zip(ranks, item[0], strict=True)],
    ):
        groups.setdefault(tuple(rows[0].values[axis] for axis in per), []).append(rows)
    inner = [axis for axis in list_varied_axes(table.rows, table.axes) if axis not in per]
    named = {
        format_values(dict(zip(per, shared, strict=True))): [
            _make_setup(rows, inner) for rows in group
        ]
        for shared, group in groups.items()
    }
    return _put_baseline_first(named, baseline or {}, table)


def list_varied_axes(rows: Sequence[ResultRow], axes: Sequence[str]) -> tuple[str, ...]:
    """Return the axes with at least two values.

    A key whose value follows from the scenario or the variant is no axis of its own.
    """
    varied = [axis for axis in axes if len({row.values[axis] for row in rows}) > 1]
    naming = [axis for axis in varied if axis in _NAMING_AXES]
    return tuple(
        axis
        for axis in varied
        if axis in naming or not any(_determines(rows, name, axis) for name in naming)
    )


def _determines(rows: Sequence[ResultRow], name: str, axis: str) -> bool:
    pairs = {(row.values[name], row.values[axis]) for row in rows}
    return len(pairs) == len({row.values[name] for row in rows})


def _require_axis(table: ResultTable, axis: str) -> None:
    if axis not in table.axes:
        raise InputError(
            f"{axis}: not an axis of {table.path} — give one of these: {', '.join(table.axes)}"
        )


def _make_setup(rows: Sequence[ResultRow], inner: Sequence[str]) -> CampaignSetup:
    values = rows[0].values
    name = format_values({axis: values[axis] for axis in inner}) or "base setup"
    return CampaignSetup(name, values, tuple(rows))


def _put_baseline_first(
    named: Mapping[str, Sequence[CampaignSetup]], baseline: Mapping[str, str], table: ResultTable
) -> GroupedSetups:
    groups, left_out = [], []
    for name, setups in named.items():
        first = _find_baseline(setups, baseline)
        if first is None:
            left_out.append(
                f"{name}: left out, because no run with {format_values(baseline)} counts"
            )
            continue
        others = (setup for number, setup in enumerate(setups) if number != first)
        groups.append(SetupGroup(name, (setups[first], *others)))
    if groups:
        return GroupedSetups(tuple(groups), tuple(left_out))
    known = {
        axis: sorted({setup.values[axis] for setups in named.values() for setup in setups})
        for axis in baseline
    }
    told = "; ".join(f"{axis}: {', '.join(values)}" for axis, values in known.items())
    raise InputError(
        f"{format_values(baseline)}: no setup of {table.path} has these values — give some of"
        f" {told}"
    )


def _find_baseline(setups: Sequence[CampaignSetup], baseline: Mapping[str, str]) -> int | None:
    """Return the number of the first setup that has the values of the baseline."""
    for number, setup in enumerate(setups):
        if all(_is_value(setup.values[axis], value) for axis, value in baseline.items()):
            return number
    return None


def _is_value(text: str, wanted: str) -> bool:
    return wanted in (text, format_value(text))


def format_values(values: Mapping[str, str]) -> str:
    """Format the values of axes with the last parts of their keys: `strategy=hop, rate=1gbit`."""
    names = name_axes(tuple(values))
    return ", ".join(
        shown if axis in _NAMING_AXES else f"{names[axis]}={shown}"
        for axis, shown in ((axis, format_value(value)) for axis, value in values.items())
        if shown or axis not in _NAMING_AXES
    )


def name_axes(axes: Sequence[str]) -> dict[str, str]:
    """Return the last part of every key, or the whole key if two have the same."""
    short = {axis: axis.rpartition(".")[2] for axis in axes}
    return {
        axis: name if list(short.values()).count(name) == 1 and not name.isdecimal() else axis
        for axis, name in short.items()
    }


def format_value(text: str) -> str:
    """Format a value of an axis; a structured one begins with its name: `local_sgd steps=8`."""
    shown = text
    if text.startswith("{"):
        try:
            value = parse_json(text.encode())
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            name = value.get("name")
            rest = [f"{key}={part}" for key, part in value.items() if key != "name"]
            shown = " ".join([str(name), *rest] if isinstance(name, str) else rest)
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[: _LONGEST_VALUE - 1]}…"
