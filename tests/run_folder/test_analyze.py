"""`laggard analyze` and `laggard export`: any trace to a run folder and a report, any run to what
other tools read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.formats.bytedance.parquet_file import write_operations
from laggard.analysis.formats.registry import open_run
from laggard.analysis.report.figures import drawing
from laggard.analysis.tables.load_run import load_run
from laggard.analysis.tables.write_run import write_run
from laggard.cli.main import main
from laggard.core.run_schema import RunSettings
from laggard.core.span_schema import host_schema, link_schema, span_schema, step_schema
from laggard.run_folder.analyze import analyze_if_trained, write_analysis
from laggard.run_folder.results import format_run_result
from laggard.run_folder.store import load_record
from tests.analysis.bytedance_traces import data_parallel, pipeline
from tests.analysis.kineto_traces import host_document, write

REPOSITORY = Path(__file__).resolve().parents[2]
WRITTEN = (
    "run.json",
    "spans.parquet",
    "steps.parquet",
    "hosts.parquet",
    "stragglers.json",
    "report.html",
)


def laggard(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def answered(*arguments: str | Path) -> Any:
    result = laggard(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        generate_run(TraceSpec(steps=30)),
        tmp_path_factory.mktemp("runs") / "generated" / "generated-0",
    )


@pytest.mark.long
def test_a_bytedance_trace_becomes_a_run_folder(tmp_path: Path) -> None:
    trace = tmp_path / "job.parquet"
    write_operations(data_parallel([3.0, 1.0, 1.0, 1.0]), trace)
    told = answered("analyze", trace, "--runs", tmp_path / "runs", "--reference", "bytedance")
    folder = tmp_path / "runs" / "job" / "job-bytedance"
    assert told["folder"] == str(folder)
    assert all((folder / name).is_file() for name in WRITTEN)
    assert told["origin"]["format"] == "bytedance"
    took, ideal = 3.0 * 0.063 + 0.010, 1.5 * 0.063 + 0.010
    assert told["reference_bytedance"]["s"] == pytest.approx(took / ideal, rel=1e-6)
    assert max(told["reference_bytedance"]["s_w"], key=lambda worker: worker["s_w"])["dp_rank"] == 0
    again = laggard("report", "job-bytedance", "--runs", tmp_path / "runs")
    assert again.exit_code == 0, again.output


@pytest.mark.long
def test_a_pipeline_s_report_is_priced(tmp_path: Path) -> None:
    trace = tmp_path / "piped.parquet"
    write_operations(pipeline(3, 4, lambda s: 2.0 if s == 2 else 1.0), trace)
    result = laggard("analyze", trace, "--out", tmp_path / "out", "--reference", "bytedance")
    assert result.exit_code == 0, result.output
    assert "bytedance reference: S 1." in result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The model is split into 3 pipeline stages." in page
    assert "can be replayed only in part" not in page
    assert "Lost to stragglers" in page
    assert json.loads((tmp_path / "out" / "stragglers.json").read_text()) == []


@pytest.mark.long
def test_profiler_traces_become_a_run_folder(tmp_path: Path) -> None:
    """What an earlier analysis of a trace left there is replaced."""
    traces = write(tmp_path / "profiled", [host_document(0), host_document(1, late=100)])
    write_run(open_run(traces), tmp_path / "out")
    told = answered("analyze", traces, "--out", tmp_path / "out")
    assert told["origin"] == {
        "format": "kineto",
        "path": "profiled",
        "notes": told["origin"]["notes"],
        "replayable": True,
        "stages": [],
    }
    assert load_run(tmp_path / "out").world_size == 2
    assert "Nothing was emulated" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.long
def test_findings_without_a_report_leave_no_file(tmp_path: Path, run_folder: Path) -> None:
    traces = write(tmp_path / "profiled", [host_document(0), host_document(1, late=100)])
    before = sorted(tmp_path.rglob("*"))
    told = answered("analyze", traces, "--no-report", "--runs", tmp_path / "runs")
    assert told["report"] is None
    assert told["origin"]["format"] == "kineto"
    text = laggard("analyze", traces, "--no-report", "--runs", tmp_path / "runs").output
    assert all(sentence in text for sentence in [*told["answer"], *told["origin"]["notes"]])
    assert sorted(tmp_path.rglob("*")) == before
    kept = sorted(run_folder.rglob("*"))
    found = answered("analyze", run_folder, "--no-report")["stragglers"]
    assert sorted(run_folder.rglob("*")) == kept
    written = answered("analyze", run_folder, "--out", tmp_path / "out")["stragglers"]
    assert found == written
    for option in (("--out", tmp_path / "x"), ("--strategy", "ddp"), ("--reference", "bytedance")):
        result = laggard("analyze", traces, "--no-report", *option)
        assert result.exit_code == 2
        assert f"{option[0]} needs a run folder" in result.output


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take seconds to draw."""
    monkeypatch.setattr(drawing, "save_figures", lambda *_: ())


@pytest.mark.usefixtures("no_figures")
def test_a_report_that_was_left_out_is_drawn_later(tmp_path: Path) -> None:
    folder = write_run(generate_run(TraceSpec(steps=12)), tmp_path / "runs" / "s" / "s-0")
    record = load_record(folder).model_copy(update={"settings": RunSettings(report=False)})
    (folder / "run.json").write_text(record.model_dump_json())
    run = load_run(folder)
    write_analysis(run, analyze_if_trained(run), folder, report=False)
    assert (folder / "answer.json").is_file()
    assert not (folder / "report.html").exists()
    assert not (folder / "figures").exists()
    assert f"`laggard report {folder}` draws" in format_run_result(record, folder)
    assert laggard("report", folder).exit_code == 0
    assert (folder / "report.html").is_file()
    assert "draws the report" not in format_run_result(record, folder)


@pytest.mark.usefixtures("no_figures")
def test_a_run_folder_is_analysed_in_its_place_or_beside(tmp_path: Path, run_folder: Path) -> None:
    copy = tmp_path / "copy"
    assert laggard("analyze", run_folder, "--out", copy).exit_code == 0
    assert not (run_folder / "report.html").exists()
    (copy / "report.html").unlink()
    assert laggard("analyze", copy).exit_code == 0
    assert (copy / "report.html").is_file()


@pytest.mark.long
def test_a_killed_run_without_a_record_is_analysed(tmp_path: Path) -> None:
    folder = write_run(generate_run(TraceSpec(steps=30)), tmp_path / "killed")
    (folder / "run.json").unlink()
    told = answered("analyze", folder)
    assert told["report"] == str(folder / "report.html")
    assert "did not end" in told["answer"][0]


def test_what_is_something_else_is_not_replaced(tmp_path: Path, run_folder: Path) -> None:
    trace = tmp_path / "job.parquet"
    write_operations(data_parallel([1.0, 2.0]), trace)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for taken in (tmp_path / "mine", run_folder, trace):
        result = laggard("analyze", trace, "--out", taken)
        assert result.exit_code == 2
        assert "is not overwritten" in result.output


def test_a_bad_trace_ends_with_status_2_and_its_place(tmp_path: Path) -> None:
    trace = tmp_path / "cut.parquet"
    trace.write_bytes(b"PAR1")
    result = laggard("analyze", trace, "--runs", tmp_path / "runs")
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {trace}: byte 4, its end: not a complete Parquet file")
    assert not (tmp_path / "runs").exists()
    told = laggard("analyze", trace, "--json")
    assert json.loads(told.stdout)["kind"] == "TraceFormatError"


@pytest.mark.long
def test_a_run_goes_to_bytedance_s_format_and_back(tmp_path: Path, run_folder: Path) -> None:
    told = answered("export", run_folder, "--format", "bytedance", "--out", tmp_path / "t.parquet")
    assert told["paths"] == [str(tmp_path / "t.parquet"), str(tmp_path / "meta-t.yaml")]
    assert "gaps" in told["notes"][0]
    assert "dp_size: 8\n" in (tmp_path / "meta-t.yaml").read_text()
    answered("analyze", tmp_path / "t.parquet", "--out", tmp_path / "out")
    assert len(set(load_run(tmp_path / "out").steps.step.tolist())) == 30


def test_a_run_as_csv_has_the_columns_that_are_documented(tmp_path: Path, run_folder: Path) -> None:
    answered("export", run_folder, "--format", "csv", "--out", tmp_path / "csv")
    documented = (REPOSITORY / "docs" / "how_to" / "analyze_other_traces.md").read_text()
    schemas = {
        "spans": span_schema(),
        "steps": step_schema(),
        "links": link_schema(),
        "hosts": host_schema(),
    }
    for name, schema in schemas.items():
        table = pd.read_csv(tmp_path / "csv" / f"{name}.csv")
        assert list(table.columns) == schema.names
        assert all(f"`{column}`" in documented for column in schema.names)
    run = load_run(run_folder)
    spans = pd.read_csv(tmp_path / "csv" / "spans.csv")
    assert spans.dur_ns.tolist() == run.spans.dur_ns.tolist()
    assert set(spans.phase) == {
        "fetch",
        "prep",
        "forward",
        "backward",
        "comm",
        "optimizer",
        "other",
    }
    assert pd.read_csv(tmp_path / "csv" / "steps.csv").accuracy.isna().any()


def test_a_run_as_perfetto(run_folder: Path) -> None:
    told = answered("export", run_folder, "--format", "perfetto")
    assert told["paths"] == [str(run_folder / "trace.perfetto.json.gz")]
    with gzip.open(told["paths"][0]) as trace:
        assert len(json.load(trace)["traceEvents"]) > 30 * 8


def test_an_export_that_cannot_be_is_refused(tmp_path: Path, run_folder: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = laggard("export", run_folder, "--format", "csv", "--out", tmp_path / "file" / "csv")
    assert result.exit_code == 2
    assert "choose another place with --out" in result.output
    assert laggard("export", tmp_path, "--format", "csv").exit_code == 2
