"""The tables' schemas: stable codes, and what the design promises of each column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from laggard.core import span_schema
from laggard.core.span_schema import Flag, Lane, Phase


def test_phases_have_stable_codes() -> None:
    order = [
        "fetch",
        "prep",
        "h2d",
        "forward",
        "backward",
        "comm",
        "optimizer",
        "checkpoint",
        "evaluate",
        "other",
        "rehearse",
    ]
    assert [str(phase) for phase in Phase] == order
    assert [phase.code for phase in Phase] == list(range(11))


def test_flags_fit_their_column_and_are_single_bits() -> None:
    bits = [flag.value for flag in Flag if flag]
    assert bits == [1, 2, 4, 8]
    assert Lane.MAIN != Lane.BUCKETS


def test_compute_is_what_the_design_counts_as_compute() -> None:
    assert {str(phase) for phase in span_schema.COMPUTE_PHASES} == {
        "prep",
        "h2d",
        "forward",
        "backward",
        "optimizer",
    }


def test_span_columns_and_types() -> None:
    expected = {
        "step": pa.int32(), "rank": pa.int32(), "lane": pa.int8(), "phase": pa.dictionary(pa.int8(), pa.string()),
        "seq": pa.int16(), "start_ns": pa.int64(), "dur_ns": pa.int64(), "group": pa.int32(), "peer": pa.int32(),
        "bytes": pa.int64(), "work": pa.int32(), "flags": pa.uint8(),
    }  # fmt: skip
    schema = span_schema.span_schema()
    assert {field.name: field.type for field in schema} == expected


@pytest.mark.parametrize(
    "schema",
    [
        span_schema.span_schema(),
        span_schema.step_schema(),
        span_schema.host_schema(),
        span_schema.link_schema(),
        span_schema.event_schema(),
    ],
)
def test_empty_tables_can_be_made_and_read_back(schema: pa.Schema, tmp_path: object) -> None:
    table = schema.empty_table()
    assert table.num_rows == 0
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().schema == schema
