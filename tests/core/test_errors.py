"""Messages: where, what, which rule, which fix; and exit statuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core import errors
from laggard.core.errors import Problem, ScenarioError


def test_a_problem_reads_place_value_rule_fix() -> None:
    problem = Problem(
        "a/network.yaml", 3, 7, "delay: 10 parsecs", "a delay is a number", "write 10ms"
    )
    assert str(problem) == "a/network.yaml:3:7: delay: 10 parsecs: a delay is a number — write 10ms"


def test_unknown_place_and_value_are_left_out() -> None:
    assert str(Problem("a", 0, 0, "", "the file is missing")) == "a: the file is missing"


@given(st.text())
def test_any_text_is_shown_on_one_printable_line(text: str) -> None:
    shown = str(Problem(text, 1, 1, text, text, text))
    assert shown.isprintable()
    shown.encode("utf-8")


def test_lone_surrogates_and_terminal_escapes_are_escaped() -> None:
    assert errors.escape_unprintable("a\x1b[31m\ud800\n") == r"a\x1b[31m\ud800\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ScenarioError((Problem("a", 1, 1, "", "wrong"),)), 2),
        (errors.RunFolderError("x"), 2),
        (errors.PrerequisiteError("no TUN", "sudo modprobe tun"), 1),
        (errors.DeploymentError("x"), 1),
        (errors.EmulationError("x"), 1),
        (errors.WorkerError("died", 3, "edge.a.1.1", "last words"), 1),
        (errors.FidelityError("x"), 3),
    ],
)
def test_exit_statuses(error: errors.LaggardError, status: int) -> None:
    assert error.exit_status == status


def test_every_problem_of_a_scenario_is_told() -> None:
    error = ScenarioError((Problem("a", 1, 1, "", "one"), Problem("b", 2, 2, "", "two")))
    assert str(error).splitlines() == ["a:1:1: one", "b:2:2: two"]


def test_a_dead_worker_is_named_with_its_log() -> None:
    text = str(errors.WorkerError("killed by signal 9", 3, "edge.a.1.1", "last words"))
    assert "rank 3 on edge.a.1.1" in text
    assert "last words" in text


def test_what_is_missing_comes_with_what_grants_it() -> None:
    assert "sudo modprobe tun" in str(errors.PrerequisiteError("no TUN", "sudo modprobe tun"))
