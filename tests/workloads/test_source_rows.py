"""Files of a node are used only if their rows can be: damaged ones, other ranks' ones, and any
bytes at all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laggard.core.clocks.clock_fit import ClockFit
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Phase
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.row_types import LINK_ROW, SPAN_ROW, STEP_ROW
from laggard.workloads.tracing.source_rows import Source, SourceRows, load_source
from laggard.workloads.tracing.stream import RowStream

RANK = 1
HOSTS = 3
WORLD = 3


def _write(path: Path, row: np.dtype[np.void], **values: int) -> None:
    stream = RowStream(path, row)
    known = {"rank": RANK, **values}
    stream.append(tuple(known.get(name, 0) for name in row.names or ()))
    stream.close()


def write_node(folder: Path) -> WorkerOutputDir:
    """What an honest node has."""
    output_dir = WorkerOutputDir(folder)
    _write(output_dir.spans(RANK), SPAN_ROW)
    _write(output_dir.steps(RANK), STEP_ROW)
    _write(output_dir.links, LINK_ROW)
    output_dir.zero.write_text('{"zero_ns": 5}')
    output_dir.evaluations.write_text('{"number": 0, "step": 1, "accuracy": 0.5}\n')
    output_dir.decisions.write_text('{"step": 1, "time_ns": 7, "description": "x"}\n')
    output_dir.rounds.write_text(
        '{"round": 0, "time_ns": 8, "rank": 2, "reason": "r", "outcome": "failed", "took_s": null, "clipped": false}\n'
    )
    output_dir.client_accuracies.write_text('{"mean": 0.5, "worst": 0.25, "worst_rank": 1}\n')
    traffic = {"node": RANK, "payload_bytes": None, "acked_bytes": 3}
    output_dir.traffic(RANK).write_text(json.dumps(traffic))
    output_dir.device_class(RANK).write_text("H100\x1b[2J")
    return output_dir


def _load(output_dir: WorkerOutputDir) -> SourceRows:
    return load_source(Source(output_dir, (RANK,), ClockFit.identity()), HOSTS, WORLD, (RANK,))


def test_an_honest_node_is_read(tmp_path: Path) -> None:
    rows = _load(write_node(tmp_path))
    assert [len(each) for each in (rows.spans, rows.steps, rows.links)] == [1, 1, 1]
    assert (rows.zero_ns, rows.evaluations[0].accuracy, rows.decisions[0].time_ns) == (5, 0.5, 7)
    assert (rows.rounds[0].time_ns, rows.rounds[0].result.list_clients("failed")) == (8, (2,))
    assert (rows.client_accuracies[0].step, rows.client_accuracies[0].worst_rank) == (1, 1)
    assert (rows.traffic[0].acked_bytes, rows.device_classes) == (3, {RANK: "H100\\x1b[2J"})


def test_all_times_are_in_the_reference_clock(tmp_path: Path) -> None:
    """That of the first step too, which need not be from the reference's machine."""
    clock = replace(ClockFit.identity(), offset_ns=100)
    rows = load_source(Source(write_node(tmp_path), (RANK,), clock), HOSTS, WORLD, (RANK,))
    assert (rows.zero_ns, rows.decisions[0].time_ns, rows.rounds[0].time_ns) == (105, 107, 108)
    assert [int(rows.spans["start_ns"][0]), int(rows.links["time_ns"][0])] == [100, 100]


def _write_texts(path: Path) -> None:
    table = pa.table({name: ["x"] for name in SPAN_ROW.names or ()})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _write_few_columns(path: Path) -> None:
    table = pa.table({"rank": [RANK]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


DAMAGES: dict[str, Callable[[WorkerOutputDir], object]] = {
    "spans of another rank": lambda d: _write(d.spans(RANK), SPAN_ROW, rank=0),
    "steps of another rank": lambda d: _write(d.steps(RANK), STEP_ROW, rank=2),
    "spans of no phase": lambda d: _write(d.spans(RANK), SPAN_ROW, phase=len(Phase)),
    "spans of a negative phase": lambda d: _write(d.spans(RANK), SPAN_ROW, phase=-1),
    "spans at the end of time": lambda d: _write(d.spans(RANK), SPAN_ROW, start_ns=2**63 - 1),
    "spans before time": lambda d: _write(d.spans(RANK), SPAN_ROW, start_ns=-(2**63)),
    "spans without end": lambda d: _write(d.spans(RANK), SPAN_ROW, dur_ns=2**63 - 1),
    "links to no host": lambda d: _write(d.links, LINK_ROW, dst=HOSTS),
    "links from a negative host": lambda d: _write(d.links, LINK_ROW, src=-1),
    "spans of texts": lambda d: _write_texts(d.spans(RANK)),
    "spans of few columns": lambda d: _write_few_columns(d.spans(RANK)),
    "steps where spans belong": lambda d: _write(d.spans(RANK), STEP_ROW),
    "a start that is text": lambda d: d.zero.write_text('{"zero_ns": "soon"}'),
    "a start beyond 64 bits": lambda d: d.zero.write_text('{"zero_ns": 1e400}'),
    "a start that is empty": lambda d: d.zero.write_text(""),
    "a start of brackets": lambda d: d.zero.write_text("[" * 100_000),
    "an accuracy that is none": lambda d: d.evaluations.write_text(
        '{"step": 1, "accuracy": NaN}\n'
    ),
    "an evaluation of nothing": lambda d: d.evaluations.write_text("{}\n"),
    "a decision that is a list": lambda d: d.decisions.write_text("[]\n"),
    "decisions that are no text": lambda d: d.decisions.write_bytes(b"\xff\n"),
    "a round with a client that is none": lambda d: d.rounds.write_text(
        d.rounds.read_text().replace('"rank": 2', f'"rank": {WORLD}')
    ),
    "a client's accuracy above one": lambda d: d.client_accuracies.write_text(
        '{"mean": 1.5, "worst": 0.25, "worst_rank": 1}\n'
    ),
    "another's traffic": lambda d: d.traffic(RANK).write_text(
        '{"node": 0, "payload_bytes": 1, "acked_bytes": 1}'
    ),
    "traffic beyond 64 bits": lambda d: d.traffic(RANK).write_text(
        '{"node": 1, "payload_bytes": 1, "acked_bytes": 1' + "0" * 100 + "}"
    ),
    "a device that is no text": lambda d: d.device_class(RANK).write_bytes(b"\xff"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_node_is_refused(damage: str, tmp_path: Path) -> None:
    output_dir = write_node(tmp_path)
    DAMAGES[damage](output_dir)
    with pytest.raises(RunFolderError, match="the files of a node are damaged") as error:
        _load(output_dir)
    assert str(error.value).isprintable()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        output_dir = write_node(Path(name))
        path = data.draw(st.sampled_from(sorted(Path(name).iterdir())))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            rows = _load(output_dir)
        except RunFolderError:
            return
        assert set(rows.spans["rank"].tolist()) <= {RANK}
        assert set(rows.links["dst"].tolist()) <= set(range(HOSTS))
