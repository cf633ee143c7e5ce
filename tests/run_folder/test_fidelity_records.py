"""What failed fidelity checks and violations do to a run: its files, its status and its error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.cli.result_output import get_exit_status
from laggard.core.errors import FidelityError
from laggard.core.run_schema import FidelityCheck, RunRecord
from laggard.network_emulation.fidelity.monitor import FidelityViolation
from laggard.run_folder.display import SilentDisplay
from laggard.run_folder.fidelity_checks import record_fidelity, require_recorded_fidelity
from laggard.run_folder.fidelity_violations import TimedViolation, require_no_violations
from laggard.run_folder.journal import Journal
from laggard.run_folder.record import record_failure
from laggard.run_folder.store import RunFolder

UNFAITHFUL = 3
S = 1_000_000_000


def check(*, ok: bool) -> FidelityCheck:
    measured = 10.0 if ok else 17.0
    return FidelityCheck(
        kind="rtt", src="edge", dst="cloud", unit="ms", requested=10.0, measured=measured,
        tolerance=1.0, ok=ok,
    )  # fmt: skip


def starved(number: int) -> TimedViolation:
    slip = FidelityViolation("cpu starved", f"edge.{number}", 5 * S, 9 * S, 0.3)
    return TimedViolation(slip, 1.0, 5.0)


def new_journal(runs: Path) -> Journal:
    draft = RunRecord(
        id="", scenario="small", status="running", command=("laggard", "run"), seed=1,
        versions={"laggard": "0"}, git=None, testbed="local", started="2026-11-21T05:00:00+00:00",
    )  # fmt: skip
    folder, record = RunFolder.create(runs, draft)
    return Journal(record, folder, SilentDisplay())


def test_a_failed_check_ends_a_run_before_training(tmp_path: Path) -> None:
    with pytest.raises(FidelityError, match="1 of 2 fidelity checks failed"):
        record_fidelity(tmp_path, [check(ok=True), check(ok=False)], "require")
    written = json.loads((tmp_path / "fidelity.json").read_text())
    assert [each["ok"] for each in written] == [True, False]


def test_a_failed_check_is_recorded_and_ends_a_run_after_training(tmp_path: Path) -> None:
    record_fidelity(tmp_path, [check(ok=True), check(ok=False)], "record")
    with pytest.raises(FidelityError, match="rtt edge -> cloud: requested 10 ms, measured 17"):
        require_recorded_fidelity(tmp_path)


def test_checks_that_passed_end_no_run(tmp_path: Path) -> None:
    record_fidelity(tmp_path, [check(ok=True)], "require")
    require_recorded_fidelity(tmp_path)
    require_no_violations(tmp_path, ())
    assert json.loads((tmp_path / "fidelity_violations.json").read_text()) == []


def test_violations_make_a_run_unfaithful_and_say_where_and_when(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    with pytest.raises(FidelityError) as raised:
        require_no_violations(journal.folder.path, [starved(number) for number in range(14)])
    assert record_failure(journal, raised.value) == UNFAITHFUL
    assert journal.record.status == "unfaithful"
    assert get_exit_status(journal.record) == UNFAITHFUL
    lines = str(journal.record.error).splitlines()
    assert "or with a higher --dilation" in lines[0]
    assert lines[1].startswith("  1.0 to 5.0 s: ")
    assert "edge.0" in lines[1]
    assert lines[-1] == "  and 10 more, in fidelity_violations.json"
    rows = json.loads((journal.folder.path / "fidelity_violations.json").read_text())
    assert [(row["kind"], row["where"]) for row in rows] == [
        ("cpu starved", f"edge.{number}") for number in range(14)
    ]
    assert all((row["first_s"], row["last_s"]) == (1.0, 5.0) for row in rows)


def test_what_is_tolerated_is_a_warning(tmp_path: Path) -> None:
    tolerated = starved(1)
    tolerated = replace(tolerated, violation=replace(tolerated.violation, is_tolerated=True))
    (warning,) = require_no_violations(tmp_path, [tolerated])
    assert "its core" in warning
    assert "within the tolerance" in warning
    assert json.loads((tmp_path / "fidelity_violations.json").read_text()) == []
    with pytest.raises(FidelityError) as error:
        require_no_violations(tmp_path, [tolerated, starved(2)])
    assert len(str(error.value).splitlines()) == 2


def test_a_higher_dilation_is_no_advice_for_what_it_does_not_mend(tmp_path: Path) -> None:
    stepped = starved(1)
    stepped = replace(stepped, violation=replace(stepped.violation, kind="clock stepped"))
    with pytest.raises(FidelityError) as error:
        require_no_violations(tmp_path, [stepped])
    assert "--dilation" not in str(error.value)
