"""`laggard run` with the strategy that decides by what it measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tests.experiments.conftest import Laggard, needs_tun

pytestmark = needs_tun

FAR = """
networks:
  - {src: "edge.*", dst: "cloud.*", delay: 60ms, rate: 10mbit, symmetric: true}
"""


def test_far_links_make_averages_rare_and_slow_hosts_batches_uneven(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    """A ring of three over links of 60 ms takes ten times a step's own work; the cloud computes twice as fast as the edge."""
    settings = ("strategy=adaptive", "stop={steps: 60}", "evaluate_every=1000000")
    scenario = make_scenario(network=FAR)
    answer = laggard.run(scenario, *(part for each in settings for part in ("--set", f"workload.{each}")))
    folder = Path(str(answer["folder"]))
    decisions = json.loads((folder / "decisions.json").read_text())
    first = decisions[0]
    assert first["step"] == 1, "two steps are enough to see it"
    assert first["told"].startswith("average all models every")
    assert any("adaptive took up" in each for each in answer["answer"]) if isinstance(answer["answer"], list) else False
    page = (folder / "report.html").read_text()
    assert "What the strategy decided" in page
    assert first["told"].partition(":")[0] in page
    steps = pd.read_parquet(folder / "steps.parquet")
    late = steps[(steps.step >= 45) & (steps.batch_size == 96)].groupby("rank").samples.mean()
    assert late[0] > 1.3 * late[[1, 2]].max(), "the cloud takes more of each batch"
    spans = pd.read_parquet(folder / "spans.parquet")
    exchanged = spans[(spans.phase == "comm") & (spans.bytes > 10_000)]
    assert exchanged.step.nunique() <= 12, "most steps send no model"
    assert json.loads((folder / "run.json").read_text())["outcome"]["fairness"] > 0.8
