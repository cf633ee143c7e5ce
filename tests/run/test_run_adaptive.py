"""`laggard run` with the strategy that decides by what it measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.tables.load_run import load_run
from tests.command_line import Laggard, needs_tun

pytestmark = [needs_tun, pytest.mark.long]

FAR = """
networks:
  - {src: "edge.*", dst: "cloud.*", delay: 60ms, rate: 10mbit, symmetric: true}
"""


def test_decisions_are_recorded_told_and_shown(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    """An average takes two ways of 60 ms, many times a step's own work."""
    settings = ("strategy=adaptive", "stop={steps: 400}", "evaluate_every=1000000")
    scenario = make_scenario(network=FAR)
    answer = laggard.run(
        scenario,
        *(part for each in settings for part in ("--set", f"workload.{each}")),
        report=True,
    )
    folder = Path(str(answer["folder"]))
    decisions = json.loads((folder / "decisions.json").read_text())
    first = decisions[0]
    assert first["description"].startswith(
        "average models in pairs without waiting, and time an average of all every "
    )
    assert "the slowest round trip of a pairwise exchange takes" in first["description"], (
        "told before an average of all is made"
    )
    assert (
        any("adaptive used this policy" in each for each in answer["answer"])
        if isinstance(answer["answer"], list)
        else False
    )
    told = json.loads((folder / "stragglers.json").read_text())
    again = analyze_run(load_run(folder)).findings
    assert told == [finding.model_dump(mode="json") for finding in again], (
        "of the same run the same is found"
    )
    page = (folder / "report.html").read_text()
    assert "Decisions of the strategy" in page
    assert first["description"].partition(":")[0] in page
