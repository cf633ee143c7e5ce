"""Run folders and traces of strangers: commands do no harm, and end with a message."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from laggard.analysis.report.figures import drawing
from laggard.analysis.tables.load_run import load_run
from laggard.cli.main import main
from laggard.core.errors import RunFolderError
from tests.faults import Fault, holds
from tests.run_folder.damaged_inputs import (
    READ,
    RUN,
    UNCOLLECTED,
    damage_folder,
    damage_trace,
    list_broken_promises,
    list_files,
    make_folders,
    make_traces,
)

WRITTEN = ("report.html", "stragglers.json", "answer.json", "trace.perfetto.json.gz")
Prepare = Callable[[Path], object]


def laggard(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_message(result: Result) -> None:
    """It is no traceback, and its text is harmless to a terminal."""
    assert list_broken_promises(result) == [], result.output


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run and the traces."""
    root = tmp_path_factory.mktemp("original")
    make_folders(root)
    make_traces(root)
    return root


@pytest.fixture
def place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, in an empty working folder, without the figures, which take seconds."""
    monkeypatch.setattr(drawing, "save_figures", lambda *_: ())
    shutil.copytree(original, tmp_path / "place")
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(tmp_path / "outside")
    return tmp_path / "place"


def list_outside(place: Path) -> dict[str, bytes]:
    """Every file that no command may touch."""
    return list_files(place.parent, [place])


SPECIAL_FILES: Mapping[str, Prepare] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "large": lambda path: os.truncate(path.write_bytes(b"") or path, 1 << 40),
}


@holds(Fault.STRANGE_FOLDER)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("name", READ)
def test_special_files_are_refused_by_name(name: str, kind: str, place: Path) -> None:
    folder = place / RUN
    (folder / name).unlink()
    SPECIAL_FILES[kind](folder / name)
    for command in (("report", folder), ("export", folder, "--format", "csv"), ("compare", folder)):
        result = laggard(*command)
        assert_message(result)
        assert result.exit_code == 2
        assert name in result.output
    assert_message(laggard("runs", "--runs", place / "runs"))


STREAMS = (
    "run.json", "counters.json", "scenario/workload.yaml", "workers/zero", "workers/done.json",
    "workers/evaluations.jsonl", "workers/rank-0.spans.arrow", "workers/rank-0.spans.arrow.pending",
)  # fmt: skip
"""Files of a run that was killed."""


@holds(Fault.STRANGE_FOLDER)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("name", STREAMS)
def test_special_files_of_a_killed_run_are_not_read(name: str, kind: str, place: Path) -> None:
    folder = place / UNCOLLECTED
    (folder / name).unlink()
    SPECIAL_FILES[kind](folder / name)
    before = list_outside(place)
    assert_message(laggard("report", folder))
    assert list_outside(place) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("workers/done.json", '{"steps": "many"}'),
        ("workers/done.json", "[]"),
        ("counters.json", "{}"),
        ("counters.json", '{"links": [{"src": "x", "dst": [], "bytes": -1}]}'),
    ],
)
def test_statements_of_a_killed_run_are_checked(name: str, content: str, place: Path) -> None:
    (place / UNCOLLECTED / name).write_text(content)
    assert_message(laggard("report", place / UNCOLLECTED))


@holds(Fault.STRANGE_FOLDER)
@pytest.mark.parametrize("name", [*WRITTEN, "csv"])
def test_links_in_a_run_folder_are_not_followed(name: str, place: Path) -> None:
    """Neither one to a file nor one to a folder."""
    folder, outside = place / RUN, place.parent / "outside"
    (outside / "precious").write_text("mine")
    is_folder = name == "csv"
    (folder / name).symlink_to(outside if is_folder else outside / "precious")
    before = list_outside(place)
    for command in (
        ("report", folder),
        ("export", folder, "--format", "csv"),
        ("export", folder, "--format", "perfetto"),
    ):
        assert_message(laggard(*command))
    assert list_outside(place) == before
    assert (folder / name).is_symlink()


def _set(folder: Path, table: str, column: str, value: object, rows: int | None = 1) -> None:
    """Change a column of a table, in the first rows or all."""
    content = pq.read_table(folder / table)
    at = content.column_names.index(column)
    values = content.column(column).to_pylist()
    count = len(values) if rows is None else rows
    values[:count] = [value] * count
    changed = pa.array(values, content.schema.field(column).type)
    pq.write_table(content.set_column(at, content.schema.field(column), changed), folder / table)


def _spread(folder: Path) -> None:
    """As many steps as spans, and a rank that makes the table of both mostly empty."""
    spans = pq.read_table(folder / "spans.parquet")
    spans = pa.concat_tables([spans] * 40)
    steps = pa.array(np.arange(len(spans)), pa.int32())
    ranks = pa.array([4095, *range(len(spans) - 1)], pa.int32()).cast(pa.int64())
    ranks = pa.array(np.minimum(np.asarray(ranks), 4095), pa.int32())
    spans = spans.set_column(0, "step", steps).set_column(1, "rank", ranks)
    pq.write_table(spans, folder / "spans.parquet")


def _bomb(folder: Path, name: str) -> None:
    """Half a billion equal rows in few bytes."""
    content = pq.read_table(folder / name).slice(0, 1)
    million = pa.concat_tables([content] * 1000).combine_chunks()
    million = pa.concat_tables([million] * 1000)
    with pq.ParquetWriter(folder / name, content.schema, compression="zstd") as file:
        for _ in range(5):
            file.write_table(million, row_group_size=1 << 20)


TABLE_ATTACKS: Mapping[str, tuple[Prepare, str]] = {
    "huge rank": (lambda f: _set(f, "spans.parquet", "rank", 2**31 - 1), "column rank"),
    "large rank": (lambda f: _set(f, "spans.parquet", "rank", 5000), "column rank"),
    "negative rank": (lambda f: _set(f, "spans.parquet", "rank", -1), "column rank"),
    "rank of a step": (lambda f: _set(f, "steps.parquet", "rank", 2**31 - 1), "column rank"),
    "rank of a host": (lambda f: _set(f, "hosts.parquet", "rank", 2**31 - 1), "column rank"),
    "no rank": (lambda f: _set(f, "hosts.parquet", "rank", None), "a value is missing"),
    "share": (lambda f: _set(f, "hosts.parquet", "cpu_share", float("inf")), "cpu_share"),
    "long time": (lambda f: _set(f, "spans.parquet", "start_ns", 2**62), "column start_ns"),
    "negative time": (lambda f: _set(f, "spans.parquet", "dur_ns", -5), "column dur_ns"),
    "lane": (lambda f: _set(f, "spans.parquet", "lane", 100), "column lane"),
    "long name": (lambda f: _set(f, "links.parquet", "src", "x" * 10_000), "column src"),
    "long host": (lambda f: _set(f, "hosts.parquet", "host", "x" * 10_000), "column host"),
    "sparse": (_spread, "most ranks have no span in most steps"),
    "bomb": (lambda f: _bomb(f, "spans.parquet"), "claims to have 5000000 rows"),
    "bomb of links": (lambda f: _bomb(f, "links.parquet"), "claims to have 5000000 rows"),
}


@pytest.fixture
def limited_memory() -> Iterator[None]:
    """At most 4 GiB more than now, so that an attack cannot take the machine's memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@holds(Fault.STRANGE_FOLDER)
@pytest.mark.usefixtures("limited_memory")
@pytest.mark.parametrize("attack", TABLE_ATTACKS)
def test_values_in_tables_are_bounded(attack: str, place: Path) -> None:
    folder = place / RUN
    prepare, says = TABLE_ATTACKS[attack]
    prepare(folder)
    result = laggard("report", folder)
    assert_message(result)
    assert result.exit_code == 2, result.output
    assert says in result.output


def test_latest_does_not_lead_to_the_run_of_somebody_else(place: Path) -> None:
    other = place.parent / "outside" / "run"
    shutil.copytree(place / RUN, other)
    (place / "runs/generated/latest").symlink_to(other)
    before = list_outside(place)
    result = laggard("report", "generated", "--runs", place / "runs")
    assert result.exit_code == 2
    assert "outside of its folder" in result.output
    assert list_outside(place) == before


def test_an_infinite_loss_is_unknown(place: Path) -> None:
    """A training may diverge."""
    folder = place / RUN
    _set(folder, "steps.parquet", "loss", float("inf"), None)
    assert np.isnan(load_run(folder).steps.loss).all()
    assert laggard("report", folder).exit_code == 0


def test_control_characters_do_not_reach_the_terminal(place: Path) -> None:
    folder = place / RUN
    record = load_run(folder).record
    assert record is not None
    hostile = record.model_copy(update={"warnings": ("\x1b]0;x\x07\u202e",), "scenario": "\x1b[2J"})
    (folder / "run.json").write_text(hostile.model_dump_json())
    for command in (("report", folder), ("runs", "--runs", place / "runs"), ("compare", folder)):
        result = laggard(*command)
        assert_message(result)
        assert "\\x1b" in result.output


def test_an_overlong_number_is_refused(place: Path) -> None:
    folder = place / RUN
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"seed":', f'"seed": {"9" * 5000}, "x":', 1))
    with pytest.raises(RunFolderError, match="5000 digits"):
        load_run(folder)


def _damage(seed: int, place: Path) -> None:
    damage = (damage_folder if seed % 2 else damage_trace)(place, seed)
    before = list_files(place.parent, damage.written)
    for command in damage.commands:
        result = laggard(*command)
        assert list_broken_promises(result) == [], (seed, damage.what, command)
    assert list_files(place.parent, damage.written) == before, (seed, damage.what)


@holds(Fault.STRANGE_FOLDER)
@pytest.mark.parametrize("seed", range(8))
def test_damaged_input_does_no_harm(seed: int, place: Path) -> None:
    _damage(seed, place)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(1000, 1200, 50))
def test_much_damaged_input_does_no_harm(first: int, place: Path, original: Path) -> None:
    for seed in range(first, first + 50):
        shutil.rmtree(place)
        shutil.copytree(original, place)
        _damage(seed, place)
