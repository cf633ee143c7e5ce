"""Trace files: values of a link over time, as CSV.

The columns are seconds, delay_ms, rate_mbps and loss_percent.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import Problem, ScenarioError
from laggard.network_emulation.dynamics.changes import Quantity, Values
from laggard.network_emulation.model import Heterogeneity, TraceEvent

COLUMNS: tuple[Quantity, ...] = ("delay_ms", "rate_mbps", "loss_percent")
MAX_ROWS = 1_000_000
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class TracePoint:
    """Values of a link from one moment until the next point.

    Attributes:
        seconds: virtual seconds after the first-step barrier.
        values: quantities of the link from then on.
    """

    seconds: float
    values: Values


def read_traces(heterogeneity: Heterogeneity, folder: Path) -> Mapping[str, tuple[TracePoint, ...]]:
    """Read every trace that the dynamic entries name.

    Args:
        heterogeneity: the entries of the scenario.
        folder: the scenario folder; names are relative to it.

    Returns:
        Points of every trace, by its name in the scenario.

    Raises:
        ScenarioError: if a file cannot be read or is not a valid trace; with its line.
    """
    names = {event.trace for event in heterogeneity.events if isinstance(event, TraceEvent)}
    return {
        name: parse_trace(_read_trace_text(folder / name, name), name) for name in sorted(names)
    }


def parse_trace(text: str, path: str) -> tuple[TracePoint, ...]:
    """Return the points of a trace; an empty cell keeps the quantity unchanged.

    Args:
        text: content of the file.
        path: path that messages show.

    Raises:
        ScenarioError: if the text is not a valid trace; with line, value, rule and fix.
    """
    reader = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(reader, [])]
    unknown = [name for name in header if name != "seconds" and name not in COLUMNS]
    if "seconds" not in header or len(header) < 2 or unknown or len(set(header)) != len(header):
        raise _build_refusal(
            path,
            1,
            ",".join(header),
            "the first line must name the columns",
            f"write seconds,{','.join(COLUMNS)}",
        )
    points: list[TracePoint] = []
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        point = _parse_point(header, row, path, reader.line_num)
        if points and point.seconds <= points[-1].seconds:
            raise _build_refusal(
                path,
                reader.line_num,
                f"{point.seconds:g}",
                "seconds must increase from row to row",
                "sort the file",
            )
        points.append(point)
        if len(points) > MAX_ROWS:
            raise _build_refusal(
                path, reader.line_num, "", f"a trace has at most {MAX_ROWS} rows", "remove rows"
            )
    if not points:
        raise _build_refusal(
            path, 1, "", "a trace must have at least one row under its header", "add a row"
        )
    return tuple(points)


def _parse_point(header: list[str], row: list[str], path: str, line: int) -> TracePoint:
    if len(row) != len(header):
        raise _build_refusal(
            path,
            line,
            ",".join(row),
            f"a row must have {len(header)} cells, like the header",
            "complete the row",
        )
    cells = dict(zip(header, row, strict=True))
    seconds = _parse_number(cells["seconds"], path, line, "seconds", math.inf)
    values: list[tuple[Quantity, float]] = []
    for name in COLUMNS:
        text = cells.get(name, "").strip()
        if text:
            most = 100.0 if name == "loss_percent" else math.inf
            number = _parse_number(text, path, line, name, most)
            if name == "rate_mbps" and number == 0:
                raise _build_refusal(
                    path,
                    line,
                    text,
                    "rate_mbps must be greater than 0",
                    "write a small rate, or loss_percent 100",
                )
            values.append((name, number))
    return TracePoint(seconds, tuple(values))


def _parse_number(text: str, path: str, line: int, name: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most or math.isinf(number):
        top = "" if math.isinf(most) else f" to {most:g}"
        raise _build_refusal(
            path,
            line,
            text.strip(),
            f"{name} must be a number from 0{top}",
            "write a number without a unit, such as 12.5",
        )
    return number


def _build_refusal(path: str, line: int, value: str, rule: str, fix: str) -> ScenarioError:
    return ScenarioError((Problem(path, line, 1, value[:60], rule, fix),))


def _read_trace_text(file: Path, name: str) -> str:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _build_refusal(
                name, 0, "", f"a trace has at most {MAX_BYTES >> 20} MiB", "remove rows"
            )
        # Spreadsheets may write a byte order mark, which this encoding skips.
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _build_refusal(
            name,
            0,
            "",
            f"the trace cannot be read: {error.strerror}",
            "put the trace into the scenario folder",
        ) from error
    except UnicodeDecodeError as error:
        raise _build_refusal(
            name, 0, f"byte {error.start}", "a trace must be UTF-8 text", "save it as UTF-8"
        ) from error
