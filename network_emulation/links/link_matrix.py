"""Matrices of link limits as CSV files: one row for each sender, one column for each receiver.

The first row and the first column name hosts, as names or patterns. A cell has a delay, a rate and
a loss, or some of them, each with its unit, separated by spaces: `10ms`, or `10ms 100mbit 1%`. An
empty cell is no rule. The cells from a host to itself are ignored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laggard.core.errors import Problem, ScenarioError
from laggard.core.hosts import Host, find_pattern_error, select_hosts
from laggard.core.units import (
    parse_delay_with_unit_ms,
    parse_loss_percent,
    parse_rate_with_unit_mbps,
)
from laggard.network_emulation.link_plan import Constraint

_CELL_EXAMPLE = "write for example 10ms, or 10ms 100mbit 1%"


@dataclass(frozen=True)
class MatrixCell:
    """Limits of the links between two groups of hosts.

    Attributes:
        src: names of the hosts that send.
        dst: names of the hosts that receive.
        delay_ms: delay in milliseconds; None keeps the current one.
        rate_mbps: rate in Mbit/s; None keeps the current one.
        loss_percent: packets lost, in percent; None keeps the current loss.
    """

    src: tuple[str, ...]
    dst: tuple[str, ...]
    delay_ms: float | None = None
    rate_mbps: float | None = None
    loss_percent: float | None = None

    def apply(self, constraint: Constraint) -> Constraint:
        """Return a constraint with the values of this cell."""
        given = (self.delay_ms, self.rate_mbps, self.loss_percent)
        known = (constraint.delay_ms, constraint.rate_mbps, constraint.loss_percent)
        delay_ms, rate_mbps, loss_percent = (
            old if new is None else new for new, old in zip(given, known, strict=True)
        )
        return replace(
            constraint,
            delay_ms=delay_ms or 0.0,
            rate_mbps=rate_mbps,
            loss_percent=loss_percent or 0.0,
        )


def parse_matrix(text: str, path: str, hosts: Sequence[Host]) -> tuple[MatrixCell, ...]:
    """Return the cells of a matrix that are not empty, row by row.

    Args:
        text: content of the file.
        path: path that messages show.
        hosts: every host.

    Raises:
        ScenarioError: every problem of the file, each with its line, column, value, rule and fix.
    """
    reader = _MatrixReader(text, path, hosts)
    try:
        cells = tuple(reader.read())
    except csv.Error as error:
        rule, fix = f"not a CSV file: {error}", "check the quotes, or save it as plain CSV"
        raise ScenarioError((Problem(path, reader.line, 1, "", rule, fix),)) from error
    if reader.problems:
        raise ScenarioError(tuple(reader.problems))
    return cells


class _MatrixReader:
    """Reader of one file, which collects its problems."""

    def __init__(self, text: str, path: str, hosts: Sequence[Host]) -> None:
        self.problems: list[Problem] = []
        self._lines = text.splitlines()
        self._rows = csv.reader(io.StringIO(text), strict=True)
        self._path = path
        self._hosts = hosts

    @property
    def line(self) -> int:
        """Return the number of the current line."""
        return max(1, self._rows.line_num)

    def read(self) -> Iterator[MatrixCell]:
        """Yield the cells; the result is meaningless if there are problems."""
        header = [cell.strip() for cell in next(self._rows, [])]
        if len(header) < 2:
            fix = "write an empty first cell, then the receivers, separated by commas"
            self._refuse(1, header, 0, "the first row must name the hosts that receive", fix)
            return
        receivers = self._find_columns(header)
        seen: set[str] = set()
        for raw in self._rows:
            row, line = [cell.strip() for cell in raw], self._rows.line_num
            if not any(row):
                continue
            if len(row) != len(header):
                rule = f"this row has {len(row)} cells and the first row has {len(header)}"
                self._refuse(line, row, 0, rule, "complete the row; an empty cell is no rule")
                continue
            senders = self._find_hosts(line, row, 0, seen)
            for at in range(1, len(row)):
                if row[at] and row[0].lower() != header[at].lower():
                    yield self._parse_cell(line, row, at, senders, receivers[at])
        if not seen:
            fix = "add a row with the name of a host that sends"
            self._refuse(1, header, 0, "there is no row under the first one", fix)

    def _find_columns(self, header: Sequence[str]) -> Sequence[tuple[str, ...]]:
        seen: set[str] = set()
        return [(), *(self._find_hosts(1, header, at, seen) for at in range(1, len(header)))]

    def _find_hosts(
        self, line: int, row: Sequence[str], at: int, seen: set[str]
    ) -> tuple[str, ...]:
        """Return the hosts that a row's or a column's name selects."""
        name = row[at].lower()
        chosen = tuple(host.name for host in select_hosts(name, self._hosts))
        fault = find_pattern_error(name)
        if fault is not None:
            self._refuse(line, row, at, fault, "write the name of a host, or a pattern")
        elif not chosen:
            shown = ", ".join(host.name for host in self._hosts[:3])
            fix = f"write the name of a host, such as {shown}"
            self._refuse(line, row, at, "this name matches no host", fix)
        elif name in seen:
            self._refuse(line, row, at, "this name is there twice", "merge the two")
        seen.add(name)
        return chosen

    def _parse_cell(
        self, line: int, row: Sequence[str], at: int, src: tuple[str, ...], dst: tuple[str, ...]
    ) -> MatrixCell:
        limits: dict[str, float] = {}
        for text in row[at].split():
            try:
                name, value = _parse_limit(text)
            except ValueError as error:
                rule, _, fix = str(error).partition(" — ")
                self._refuse(line, row, at, rule, fix or _suggest_unit(text))
                continue
            if name in limits:
                rule = "a cell has at most one delay, one rate and one loss"
                self._refuse(line, row, at, rule, _CELL_EXAMPLE)
            limits[name] = value
        return MatrixCell(
            src,
            dst,
            limits.get("delay_ms"),
            limits.get("rate_mbps"),
            limits.get("loss_percent"),
        )

    def _refuse(self, line: int, row: Sequence[str], at: int, rule: str, fix: str) -> None:
        value = row[at][:60] if row else ""
        column = self._find_column(line, at)
        self.problems.append(Problem(self._path, line, column, value, rule, fix))

    def _find_column(self, line: int, at: int) -> int:
        """Return the column of a cell in its line; 1 if quotes make it uncertain."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        if '"' in text:
            return 1
        before = text.split(",")[:at]
        rest = text[sum(len(cell) + 1 for cell in before) :]
        return len(text) - len(rest.lstrip()) + 1


def _parse_limit(text: str) -> tuple[str, float]:
    if text.endswith("%"):
        return "loss_percent", parse_loss_percent(text)
    if text.lower().endswith(("bit", "bps")):
        return "rate_mbps", parse_rate_with_unit_mbps(text)
    return "delay_ms", parse_delay_with_unit_ms(text)


def _suggest_unit(text: str) -> str:
    try:
        parse_delay_with_unit_ms(f"{text}ms")
    except ValueError:
        return _CELL_EXAMPLE
    return f"write {text}ms if it is a delay in milliseconds"
