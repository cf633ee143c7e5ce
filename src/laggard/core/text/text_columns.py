"""Rows of cells as lines with aligned columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield one indented line per row, with every column as wide as its widest cell.

    Args:
        rows: cells; every row has as many cells as the first.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        yield f"  {'  '.join(cells)}".rstrip()
