"""Dumps of torch's flight recorder, in which a rank may be late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000
MS = 1_000_000
STEP_MS, TRANSFER_MS = 100, 2
Document = dict[str, Any]


def entry(sequence: int, created_ms: float, duration_ms: float | None, **fields: Any) -> Document:
    created_ns = BASE_NS + round(created_ms * MS)
    made: Document = {
        "record_id": sequence, "pg_id": 0, "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence, "is_p2p": False,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[25]], "state": "completed",
        "time_created_ns": created_ns, "time_discovered_started_ns": created_ns + 1,
        "time_discovered_completed_ns": created_ns + 90 * MS, "retired": True, "timeout_ms": 6e5,
    }  # fmt: skip
    if duration_ms is not None:
        made["duration_ms"] = duration_ms
    return {**made, **fields}


def dump(
    rank: int, late: Sequence[float], *, timed: bool, skew_ms: float = 0, steps: int = 6
) -> Document:
    """Two collectives a step: an all-gather that all reach together, and a late all-reduce."""
    entries = []
    for step in range(steps):
        at = step * STEP_MS
        early = {"profiling_name": "nccl:_all_gather_base", "input_sizes": [[7]]}
        end = at + 50 + max(late) + TRANSFER_MS
        arrival = at + 50 + late[rank]
        over = {"time_discovered_completed_ns": BASE_NS + round(end * MS)}
        first = {"time_discovered_completed_ns": BASE_NS + (at + 1) * MS}
        entries += [
            entry(2 * step + 1, at + skew_ms, 1 if timed else None, **early, **first),
            entry(2 * step + 2, arrival + skew_ms, end - arrival if timed else None, **over),
        ]
    return {
        "version": "2.7",
        "pg_config": {"0": {"ranks": "[0, 1]"}},
        "entries": entries,
        "rank": rank,
    }


def write(folder: Path, documents: Sequence[Document]) -> Path:
    folder.mkdir()
    for number, made in enumerate(documents):
        (folder / f"dump{number}.json").write_text(json.dumps(made))
    return folder
