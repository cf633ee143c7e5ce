"""`laggard run` with the strategy that decides by what it measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.tables.load_run import load_run
from tests.command_line import Laggard, needs_tun

pytestmark = needs_tun

FAR = """
networks:
  - {src: "edge.*", dst: "cloud.*", delay: 60ms, rate: 10mbit, symmetric: true}
"""


def test_far_links_make_averages_of_all_rare_and_slow_hosts_learn_less(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    """An average takes two ways of 60 ms, many times a step's own work; the cloud computes twice as
    fast as the edge, and takes twice the steps."""
    settings = ("strategy=adaptive", "stop={steps: 400}", "evaluate_every=1000000")
    scenario = make_scenario(network=FAR)
    answer = laggard.run(
        scenario, *(part for each in settings for part in ("--set", f"workload.{each}"))
    )
    folder = Path(str(answer["folder"]))
    decisions = json.loads((folder / "decisions.json").read_text())
    first = decisions[0]
    assert first["description"].startswith(
        "average models two by two, nobody waiting, and time an average of all every "
    )
    assert "models of two are on their way to each other" in first["description"], (
        "told before an average of all is made"
    )
    assert (
        any("adaptive took up" in each for each in answer["answer"])
        if isinstance(answer["answer"], list)
        else False
    )
    told = json.loads((folder / "stragglers.json").read_text())
    again = analyze_run(load_run(folder)).findings
    assert told == [finding.model_dump(mode="json") for finding in again], (
        "of the same run the same is found"
    )
    page = (folder / "report.html").read_text()
    assert "What the strategy decided" in page
    assert first["description"].partition(":")[0] in page
    steps = pd.read_parquet(folder / "steps.parquet")
    learnt = steps.groupby("rank").samples.sum()
    assert learnt[0] > 1.3 * learnt[[1, 2]].max(), "the cloud does not wait for the edge"
    spans = pd.read_parquet(folder / "spans.parquet")
    main = spans[(spans.lane == 0) & (spans["rank"] == 0)]
    assert main[main.phase == "comm"].dur_ns.sum() < 0.05 * main.dur_ns.sum(), "and for no link"
