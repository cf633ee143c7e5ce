"""Reading a run folder: round trip, killed runs, folders that are not what they say."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.tables.columns import Columns
from laggard.analysis.tables.load_run import load_run
from laggard.analysis.tables.write_run import write_run
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Phase


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(generate_run(TraceSpec(steps=40)), tmp_path_factory.mktemp("runs") / "one")


def same(one: Columns, other: Columns) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def test_what_was_written_is_read(folder: Path) -> None:
    written, read = generate_run(TraceSpec(steps=40)), load_run(folder)
    assert same(written.spans, read.spans)
    assert same(written.steps, read.steps)
    assert same(written.links, read.links)
    assert (written.hosts, written.record, written.fidelity) == (
        read.hosts,
        read.record,
        read.fidelity,
    )


def test_frames_have_the_columns(folder: Path) -> None:
    run = load_run(folder)
    assert list(run.spans.to_frame().columns) == [f.name for f in fields(run.spans)]
    assert len(run.links.to_frame()) == len(run.links)


@pytest.mark.parametrize(
    "name", ["run.json", "hosts.parquet", "steps.parquet", "links.parquet", "fidelity.json"]
)
def test_a_killed_run_reads_as_far_as_it_got(tmp_path: Path, name: str) -> None:
    folder = write_run(generate_run(TraceSpec(steps=5)), tmp_path / "run")
    (folder / name).unlink()
    assert load_run(folder).world_size == 8


def test_the_injected_truth_is_never_opened(tmp_path: Path) -> None:
    folder = write_run(generate_run(TraceSpec(steps=5)), tmp_path / "run")
    (folder / "events.parquet").write_bytes(b"not parquet at all")
    assert len(load_run(folder).spans)


def test_rows_are_sorted_and_phases_mapped_by_name(tmp_path: Path) -> None:
    folder = write_run(generate_run(TraceSpec(steps=5)), tmp_path / "run")
    table = pq.read_table(folder / "spans.parquet")
    names = table.column("phase").cast(pa.string())
    shuffled = table.set_column(3, "phase", names.dictionary_encode()).take(
        list(range(len(table)))[::-1]
    )
    pq.write_table(shuffled, folder / "spans.parquet")
    assert same(load_run(folder).spans, generate_run(TraceSpec(steps=5)).spans)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("spans.parquet", b"junk", "spans.parquet"),
        ("run.json", b"{}", "run.json"),
        ("run.json", b"\xff\xfe", "run.json"),
        ("fidelity.json", b'{"kind": 1}', "fidelity.json"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    folder = write_run(generate_run(TraceSpec(steps=5)), tmp_path / "run")
    (folder / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=says):
        load_run(folder)


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    folder = write_run(generate_run(TraceSpec(steps=5)), tmp_path / "run")
    pq.write_table(
        pq.read_table(folder / "spans.parquet").drop_columns(["group"]), folder / "spans.parquet"
    )
    with pytest.raises(RunFolderError, match="group"):
        load_run(folder)


def test_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    folder = write_run(generate_run(TraceSpec(steps=5)), tmp_path / "run")
    table = pq.read_table(folder / "spans.parquet")
    phase = pa.array(["dreaming"] * len(table)).dictionary_encode()
    pq.write_table(table.set_column(3, "phase", phase), folder / "spans.parquet")
    with pytest.raises(RunFolderError, match=r"dreaming.*" + Phase.FETCH.value):
        load_run(folder)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="neither"):
        load_run(tmp_path)
    with pytest.raises(RunFolderError, match="folder"):
        load_run(tmp_path / "absent")
