"""Tokens of clients, as they are reported."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.token_result import (
    accumulate_balances,
    build_token_document,
    format_tokens,
    summarize_ledger,
)
from laggard.analysis.report.figures.drawing import draw_figure
from laggard.analysis.report.figures.registry import select_figure_kinds
from laggard.analysis.report.figures.tokens import FIGURE
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.write_run import write_run
from laggard.core.contribution.ledger import LedgerEntry, append_entry
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import LEDGER_FILE
from tests.analysis.report.test_figures import (
    WIDTHS,
    assert_all_is_inside,
    assert_labels_do_not_overlap,
    assert_text_is_legible,
)


def write_ledger(rounds: int) -> tuple[LedgerEntry, ...]:
    """Each round selects the first three clients for ten tokens, and the first one gets most."""
    entries: list[LedgerEntry] = []
    for number in range(rounds):
        for rank, paid in ((0, 20), (1, 10), (2, 0)):
            last = entries[-1] if entries else None
            entries.append(append_entry(last, number, rank, "fee", 10))
            remark = "" if paid else "claimed -1 of 30 tokens"
            entries.append(append_entry(entries[-1], number, rank, "payment", paid, remark))
    return tuple(entries)


def test_balances_are_told(quickstart_run: RunData) -> None:
    ledger = write_ledger(3)
    result = summarize_ledger(ledger, 8)
    assert result is not None
    assert result.balances == (30, 0, -30, 0, 0, 0, 0, 0)
    assert (result.cut, result.pool) == ((0, 0, 3, 0, 0, 0, 0, 0), 0)
    rounds, balances = accumulate_balances(ledger, 8)
    assert rounds.tolist() == [0, 1, 2]
    assert balances[:, 2].tolist() == [-10, -20, -30]
    first, last = quickstart_run.hosts[0].host, quickstart_run.hosts[2].host
    assert format_tokens(result, quickstart_run.hosts) == (
        f"Of the tokens, {first} (rank 0) gained most (+30) and {last} (rank 2) lost most (-30).",
        f"Three payments to {last} were cut because of their claims.",
    )
    assert json.dumps(build_token_document(result))


def test_without_tokens_nothing_is_told(quickstart_run: RunData) -> None:
    assert summarize_ledger((), 8) is None
    assert build_token_document(None) is None
    assert format_tokens(None, quickstart_run.hosts) == ()


def test_a_folder_keeps_the_ledger_and_refuses_a_changed_one(
    quickstart_run: RunData, tmp_path: Path
) -> None:
    run = dataclasses.replace(quickstart_run, ledger=write_ledger(2))
    folder = write_run(run, tmp_path / "run")
    assert load_run(folder).ledger == run.ledger
    path = folder / LEDGER_FILE
    text = path.read_text()
    for old, new, message in (
        ('"tokens":20', '"tokens":21', "does not have its digest"),
        ('"rank":2', '"rank":9', "rank 9 has tokens"),
        ('"tokens":20', '"tokens":-1', "not a valid entry of a ledger"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(RunFolderError, match=message):
            load_run(folder)
    path.write_text("".join(text.splitlines(keepends=True)[1:]))
    with pytest.raises(RunFolderError, match="entries were removed, added or moved"):
        load_run(folder)


@pytest.mark.parametrize("width_in", WIDTHS)
@pytest.mark.parametrize("rounds", [1, 100])
def test_the_figure_is_legible(
    rounds: int, width_in: float, quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    assert FIGURE not in select_figure_kinds(quickstart_run, quickstart_analysis)
    run = dataclasses.replace(quickstart_run, ledger=write_ledger(rounds))
    assert FIGURE in select_figure_kinds(run, quickstart_analysis)
    figure = draw_figure(FIGURE, run, quickstart_analysis, width_in)
    assert_all_is_inside(figure)
    assert_text_is_legible(figure)
    assert_labels_do_not_overlap(figure)
    assert FIGURE.caption(run, quickstart_analysis).endswith(".")
