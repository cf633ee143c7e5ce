"""Rows of CSV files with known columns, as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from laggard.core.errors import InputError


def read_csv_rows(
    data: bytes, name: str, columns: Sequence[str], advice: str
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the line and the values of each row; other columns are left out.

    Args:
        data: content of the file.
        name: name of the file in messages.
        columns: columns that the file must have.
        advice: how to write such a file, for messages.

    Raises:
        InputError: the content is no such file; with the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: is not text in UTF-8 ({error.reason}) — {advice}") from error
    try:
        yield from _read_rows(text, name, columns, advice)
    except csv.Error as error:
        raise InputError(f"{name}: is no CSV file ({error}) — {advice}") from error


def _read_rows(
    text: str, name: str, columns: Sequence[str], advice: str
) -> Iterator[tuple[int, Mapping[str, str]]]:
    rows = csv.DictReader(io.StringIO(text), strict=True)
    names = [each.strip() for each in rows.fieldnames or []]
    if not {*columns} <= {*names}:
        raise InputError(
            f"{name}:1: the columns are {', '.join(names) or 'missing'}, and"
            f" {', '.join(columns)} must be among them — {advice}"
        )
    rows.fieldnames = names
    for row in rows:
        values = {column: row[column] for column in columns}
        if any(not isinstance(value, str) for value in values.values()):
            raise InputError(
                f"{name}:{rows.line_num}: the line has not the columns of the first one — {advice}"
            )
        yield rows.line_num, {column: value.strip() for column, value in values.items()}
