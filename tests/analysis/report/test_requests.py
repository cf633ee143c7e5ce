"""Tables and figure of an inference, from its files in a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laggard.analysis.report.figures.drawing import save_figures
from laggard.analysis.report.figures.registry import select_unanalyzed_figure_kinds
from laggard.analysis.report.requests import build_answer_tables, build_latency_table
from laggard.analysis.report.write import write_report
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.requests import read_requests
from laggard.core.errors import RunFolderError
from laggard.core.files.output_files import write_json
from laggard.core.serving.request_schema import request_schema
from laggard.core.serving.serving_record import REQUESTS_FILE, SERVING_FILE, ServingRecord
from laggard.core.span_schema import span_schema
from tests.analysis.findings.test_slow_devices import device


def write_requests(folder: Path, ranks: tuple[int, ...] = (0, 0, 1)) -> None:
    rows = [
        {
            "rank": rank,
            "request": number,
            "arrived_s": float(number),
            "answered_s": None if number == 1 else number + 0.1 * (rank + 1),
            "deadline_s": 0.15,
        }
        for number, rank in enumerate(ranks)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=request_schema()), folder / REQUESTS_FILE)


@pytest.fixture
def inference(quickstart_run: RunData, tmp_path: Path) -> RunData:
    write_requests(tmp_path)
    record = ServingRecord(devices=(device("edge.1", shed=1), device("edge.2", 0.2)))
    return replace(quickstart_run, folder=tmp_path, serving=record)


def test_every_device_has_a_row(inference: RunData) -> None:
    table = build_latency_table(inference)
    assert table is not None
    assert [row[0] for row in table.rows] == ["edge.1", "edge.2"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    (answers,) = build_answer_tables(inference)
    assert answers.rows[0][1] == "1"


def test_a_training_has_none(quickstart_run: RunData) -> None:
    assert build_latency_table(quickstart_run) is None
    assert build_answer_tables(quickstart_run) == ()
    assert select_unanalyzed_figure_kinds(quickstart_run) == ()


def test_the_figure_and_the_page_are_written(inference: RunData, tmp_path: Path) -> None:
    kinds = select_unanalyzed_figure_kinds(inference)
    (drawn,) = save_figures(inference, None, tmp_path / "figures", kinds)
    assert "deadline" in drawn.wide_svg
    assert "Half of all requests" in drawn.caption
    page = write_report(inference, None, tmp_path).read_text()
    assert "edge.2 takes" in page or "Requests" in page
    assert "Distribution of latencies" in page


def test_a_figure_needs_an_answer(quickstart_run: RunData, tmp_path: Path) -> None:
    pq.write_table(request_schema().empty_table(), tmp_path / REQUESTS_FILE)
    record = ServingRecord(devices=(device("edge.1"),))
    run = replace(quickstart_run, folder=tmp_path, serving=record)
    assert select_unanalyzed_figure_kinds(run) == ()


def test_damaged_files_are_refused(inference: RunData, tmp_path: Path) -> None:
    write_requests(tmp_path, (0, 1, 99))
    with pytest.raises(RunFolderError, match="none of the 8 devices"):
        read_requests(inference)
    (tmp_path / REQUESTS_FILE).write_bytes(b"PAR1 no table")
    with pytest.raises(RunFolderError):
        read_requests(inference)


def test_damaged_figures_of_an_inference_are_refused(tmp_path: Path) -> None:
    pq.write_table(span_schema().empty_table(), tmp_path / "spans.parquet")
    write_json(tmp_path / SERVING_FILE, {"devices": [{"host": 3}]})
    with pytest.raises(RunFolderError, match="not the valid figures of an inference"):
        load_run(tmp_path)
