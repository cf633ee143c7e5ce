"""Tables of campaigns are read as data of a stranger."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laggard.analysis.campaign import result_table
from laggard.analysis.campaign.result_table import is_result_table, load_results
from laggard.core.errors import InputError
from tests.analysis.campaign_tables import (
    Cell,
    TableSpec,
    generate_rows,
    make_cell,
    write_results,
)


def test_both_files_have_the_same_rows(tmp_path: Path) -> None:
    folder = write_results(tmp_path, generate_rows(TableSpec()))
    parquet, csv = load_results(folder / "results.parquet"), load_results(folder / "results.csv")
    assert (parquet.rows, parquet.axes) == (csv.rows, csv.axes)
    assert parquet.axes == ("scenario", "workload.strategy", "network.networks.0.rate")
    assert len(parquet.rows) == 20
    assert load_results(folder) == parquet


def test_the_last_attempt_of_a_cell_counts_if_it_is_done(tmp_path: Path) -> None:
    rows = [
        make_cell(1, attempt=2, makespan_s=7.0),
        make_cell(1, attempt=1, status="failed", makespan_s=None, reason="a worker died"),
        make_cell(2, attempt=1, makespan_s=5.0),
        make_cell(2, attempt=2, status="unfaithful", makespan_s=6.0),
        make_cell(3, status="interrupted", makespan_s=None),
        make_cell(4, status="unfaithful"),
        make_cell(5, makespan_s=None),
    ]
    table = load_results(write_results(tmp_path, rows))
    assert [row.metrics["makespan_s"] for row in table.rows] == [7.0]
    assert table.left_out == (
        "1 cell is skipped: no makespan",
        "1 cell is skipped: status interrupted, not done",
        "2 cells are skipped: status unfaithful, not done",
    )


def test_seeds_are_no_axis_and_variants_are_one_if_named(tmp_path: Path) -> None:
    rows = [make_cell(n, variant="slow", **{"workload.seed": n}) for n in range(2)]
    assert load_results(write_results(tmp_path / "a", rows)).axes == ("scenario", "variant")
    plain = [make_cell(n, **{"workload.seed": n}) for n in range(2)]
    assert load_results(write_results(tmp_path / "b", plain)).axes == ("scenario",)


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    row = make_cell(1, accuracy=None, cost=float("nan"))
    (read,) = load_results(write_results(tmp_path, [row])).rows
    assert set(read.metrics) == {"makespan_s", "fairness", "lost_share"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"cell": "1", "status": "done"}], "lacks scenario"),
        ([make_cell(1, makespan_s=0.0)], r"column makespan_s: 0\.0 is not above 0"),
        ([make_cell(1, makespan_s=float("inf"))], "column makespan_s: .* is not a number"),
        ([make_cell(1, accuracy="good")], "column accuracy: 'good' is not a number"),
        ([make_cell(1, seed="one")], "column seed: 'one' is not a whole number"),
        ([make_cell(1, **{"a.b": "x" * 5000})], "5000 characters, and 4096 is the most"),
        ([make_cell(1, **{f"k{n}": 1 for n in range(70)})], "it varies 70 keys"),
        ([make_cell(1, status="failed")], "none of its 1 cells has the status done and a makespan"),
    ],
)
@pytest.mark.parametrize("name", ["results.parquet", "results.csv"])
def test_other_tables_are_refused_with_the_reason(
    rows: list[Cell], message: str, name: str, tmp_path: Path
) -> None:
    folder = write_results(tmp_path, rows)
    with pytest.raises(InputError, match=message) as error:
        load_results(folder / name)
    assert name in str(error.value)
    assert " — " in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"\xff\xfe", b'cell,"x\n', b"a,b\n1\n", b"\0" * 100]
)
@pytest.mark.parametrize("name", ["results.parquet", "results.csv"])
def test_damaged_files_are_refused(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="not the table of a campaign"):
        load_results(tmp_path)


def test_texts_that_are_no_scalars_are_refused(tmp_path: Path) -> None:
    rows = [make_cell(1, **{"a.b": {"deep": 1}})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "results.parquet")
    with pytest.raises(InputError, match=r"column a\.b: a dict, and only texts"):
        load_results(tmp_path)


def test_a_small_file_that_expands_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long text in a dictionary stands for every row."""
    monkeypatch.setattr(result_table, "_MOST_BYTES", 1 << 18)
    rows = [make_cell(n, answer="x" * 50_000) for n in range(200)]
    folder = write_results(tmp_path, rows)
    assert (folder / "results.parquet").stat().st_size < 1 << 18
    with pytest.raises(InputError, match="it has more than"):
        load_results(folder / "results.parquet")
    monkeypatch.setattr(result_table, "_MOST_ROWS", 100)
    (folder / "results.parquet").unlink()
    with pytest.raises(InputError):
        load_results(folder)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.csv")
    with pytest.raises(InputError, match="only regular files are read"):
        load_results(tmp_path)


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    assert not is_result_table(tmp_path)
    with pytest.raises(InputError, match="has neither"):
        load_results(tmp_path)
