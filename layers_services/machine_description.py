"""Description, by `laggard plan`, of the machines that a remote testbed would give a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.core.run_schema import Record


class MachineDescription(Record):
    """Machines of a planned run, as values and as lines; every testbed has a subclass."""

    def format_lines(self) -> Iterator[str]:
        """Yield the description, line by line, for people."""
        raise NotImplementedError


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield one indented line per row, with columns as wide as their widest cell.

    Args:
        rows: cells; every row has as many as the first.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        yield f"  {'  '.join(cells)}".rstrip()
