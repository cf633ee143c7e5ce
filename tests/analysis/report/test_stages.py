"""The table of the hosts of a planned training, on spans whose sums are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import Tier, TraceSpec, generate_run
from laggard.analysis.report.stages import build_stage_tables
from laggard.analysis.tables.columns import SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import RunRecord
from laggard.core.span_schema import Flag, Phase

MS = 1_000_000
ROWS = [
    # step, rank, phase, milliseconds, peer, flags
    (0, 0, Phase.FORWARD, 900, -1, int(Flag.WARM_UP)),
    *((step, 0, Phase.FORWARD, 30, -1, 0) for step in (1, 2)),
    *((step, 0, Phase.COMM, 60, 1, 0) for step in (1, 2)),
    *((step, 1, Phase.COMM, 10, 0, 0) for step in (1, 2)),
    *((step, 1, Phase.COMM, 30, 2, 0) for step in (1, 2)),
    *((step, 1, Phase.BACKWARD, 50, -1, 0) for step in (1, 2)),
    *((step, 2, Phase.COMM, 80, -1, 0) for step in (1, 2)),
]


def build_run(plan: object) -> RunData:
    generated = generate_run(TraceSpec(tiers=(Tier("edge", 3),), steps=3, seed=1))
    step, rank, phase, ms, peer, flags = (np.array(column) for column in zip(*ROWS, strict=True))
    zeros = np.zeros(len(ROWS), dtype=np.int64)
    spans = SpanColumns(
        step=step,
        rank=rank,
        lane=zeros,
        phase=np.array([Phase(each).code for each in phase]),
        seq=zeros,
        start_ns=zeros,
        dur_ns=ms * MS,
        group=zeros - 1,
        peer=peer,
        bytes=zeros,
        work=zeros,
        flags=flags,
    )
    record = generated.record
    assert isinstance(record, RunRecord)
    strategy = record.strategy.model_copy(update={"parameters": {"plan": plan}})
    return dataclasses.replace(
        generated, spans=spans, record=record.model_copy(update={"strategy": strategy})
    )


def test_hosts_have_their_blocks_their_times_and_whom_they_wait_for() -> None:
    names = [each.host for each in build_run(None).hosts]
    blocks = [
        {"devices": {names[0]: 8}},
        {"devices": {names[0]: 8}},
        {"devices": {names[1]: 5, names[2]: 3}},
        {"devices": {names[0]: 8}},
    ]
    (table,) = build_stage_tables(build_run({"blocks": blocks}))
    assert [row[2:4] for row in table.rows] == [("1 to 2, 4", "8"), ("3", "5"), ("3", "3")]
    assert [row[4:6] for row in table.rows] == [
        ("30 ms", "60 ms"),
        ("50 ms", "40 ms"),
        ("0 s", "80 ms"),
    ]
    assert table.rows[0][6] == f"{names[1]} (100 %)"
    assert table.rows[1][6] == f"{names[2]} (75 %), {names[0]} (25 %)"
    # An all-reduce has no single peer.
    assert table.rows[2][6] == "-"
    assert [row[7] for row in table.rows] == ["10 ms", "60 ms", "30 ms"]


@pytest.mark.parametrize("plan", [None, "plan.yaml", {}, {"blocks": [{"devices": 3}]}])
def test_without_a_plan_there_is_no_table(plan: object) -> None:
    assert build_stage_tables(build_run(plan)) == ()
