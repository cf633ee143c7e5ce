"""Table of the hosts of a planned training: what each computes, and whom it waits for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laggard.analysis.report.run_setup import ReportTable
from laggard.analysis.tables.columns import IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.planned_blocks import RecordedBlock, find_planned_blocks
from laggard.core.cost_model.arrays import FloatArray
from laggard.core.span_schema import Flag, Lane, Phase
from laggard.core.text.text_format import format_percent, format_seconds

MOST_ROWS = 256
_MOST_PEERS = 3
_Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def build_stage_tables(run: RunData) -> tuple[ReportTable, ...]:
    """Return the table of the hosts of a planned training; none for another one."""
    blocks = find_planned_blocks(run.record)
    if not blocks:
        return ()
    rows = tuple(_list_rows(run, blocks))
    return (
        ReportTable(
            f"Hosts of the plan ({len(rows)})",
            (
                "Rank",
                "Host",
                "Blocks",
                "Samples",
                "Computes, in a step",
                "Waits, in a step",
                "Waits for",
                "Others wait for it",
            ),
            rows,
        ),
    )


def _list_rows(run: RunData, blocks: tuple[RecordedBlock, ...]) -> Iterator[tuple[str, ...]]:
    spans = run.spans
    usual = (spans.lane == Lane.MAIN) & (spans.flags & Flag.WARM_UP == 0)
    steps = len(np.unique(spans.step[usual])) or 1
    computes = usual & np.isin(spans.phase, (Phase.FORWARD.code, Phase.BACKWARD.code))
    waits = usual & (spans.phase == Phase.COMM.code)
    count = run.world_size

    def sum_s(rows: _Flags, of: IntArray) -> FloatArray:
        """Return the seconds of some spans in a step, by rank."""
        known = rows & (of >= 0) & (of < count)
        return np.bincount(of[known], spans.dur_ns[known], count) / 1e9 / steps

    computed_s, waited_s = sum_s(computes, spans.rank), sum_s(waits, spans.rank)
    caused_s = sum_s(waits, spans.peer)
    for rank, host in enumerate(run.hosts[:MOST_ROWS]):
        own = [number for number, each in enumerate(blocks, 1) if host.host in each.devices]
        yield (
            str(rank),
            host.host,
            _format_numbers(own),
            ", ".join(map(str, sorted({blocks[each - 1].devices[host.host] for each in own}))),
            format_seconds(float(computed_s[rank])),
            format_seconds(float(waited_s[rank])),
            _format_peers(run, sum_s(waits & (spans.rank == rank), spans.peer), waited_s[rank]),
            format_seconds(float(caused_s[rank])),
        )


def _format_peers(run: RunData, waits_s: FloatArray, total_s: float) -> str:
    """Format the ranks that are waited for longest, with their parts of the wait."""
    peers = sorted(range(len(waits_s)), key=lambda each: (-waits_s[each], each))[:_MOST_PEERS]
    named = [
        f"{run.hosts[peer].host} ({format_percent(float(waits_s[peer]) / total_s)})"
        for peer in peers
        if waits_s[peer] > 0
    ]
    return ", ".join(named) or "-"


def _format_numbers(numbers: list[int]) -> str:
    """Format ascending numbers with ranges.

    Examples:
        >>> _format_numbers([1, 2, 3, 5])
        '1 to 3, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{each[0]}" if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in runs]
    return ", ".join(parts) or "-"
