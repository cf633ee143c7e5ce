"""Observed lives of revocable machines, as CSV.

The columns are `hours` or `seconds`, and `censored` if some machines were never revoked.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded
from laggard.core.revocation.lifetimes import Life, Lifetimes

MAX_BYTES = 4 << 20
_UNITS = {"hours": 3600.0, "seconds": 1.0}
_CENSORED = {
    "": False,
    "0": False,
    "false": False,
    "no": False,
    "1": True,
    "true": True,
    "yes": True,
}
_COLUMNS = "write hours,censored in the first line, and for example 3.5,0 in the others"


def read_lifetimes(path: Path) -> Lifetimes:
    """Read observed lives.

    Raises:
        InputError: the file cannot be read, or is no table of lives; with the line.
    """
    return parse_lifetimes(read_bounded(path, MAX_BYTES), str(path))


def parse_lifetimes(data: bytes, name: str) -> Lifetimes:
    """Parse observed lives.

    Args:
        data: content of the file.
        name: name of the file in messages.

    Raises:
        InputError: the content is no table of lives; with the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: is not text in UTF-8 ({error.reason}) — {_COLUMNS}") from error
    try:
        return Lifetimes(tuple(_parse_lives(text, name)))
    except csv.Error as error:
        raise InputError(f"{name}: is no CSV file ({error}) — {_COLUMNS}") from error


def _parse_lives(text: str, path: str) -> Iterator[Life]:
    rows = csv.DictReader(io.StringIO(text), strict=True)
    names = [name.strip() for name in rows.fieldnames or []]
    units = [name for name in names if name in _UNITS]
    if len(units) != 1 or set(names) - {"censored"} != {units[0]}:
        raise InputError(
            f"{path}:1: the columns are {', '.join(names) or 'missing'}, and must be hours or"
            f" seconds, and censored — {_COLUMNS}"
        )
    rows.fieldnames = names
    for row in rows:
        try:
            yield _parse_life(row, units[0])
        except InputError as error:
            raise InputError(f"{path}:{rows.line_num}: {error}") from error


def _parse_life(row: Mapping[str | None, str | list[str] | None], unit: str) -> Life:
    number, censored = row.get(unit), row.get("censored") or ""
    if None in row or not isinstance(number, str) or not isinstance(censored, str):
        raise InputError(f"the line has not the columns of the first one — {_COLUMNS}")
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"{number!r} is no number of {unit} — {_COLUMNS}") from None
    if censored.strip().lower() not in _CENSORED:
        raise InputError(f"censored is {censored!r} and must be 0 or 1 — {_COLUMNS}")
    return Life(value * _UNITS[unit], _CENSORED[censored.strip().lower()])
