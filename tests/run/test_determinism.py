"""The same scenario and seed give the same losses bit for bit, whatever the timing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.tables.load_run import load_run
from tests.command_line import Laggard, needs_tun

SLOW = (
    'heterogeneity.dynamic=[{at: 1s, for: 6s, hosts: "edge.*", cpu: 8%},'
    ' {random: {every: 3s, for: 1s, seed: 5}, src: "edge.*", dst: "cloud.*", delay: 30ms}]'
)


@needs_tun
@pytest.mark.long
@pytest.mark.parametrize("model", ["cnn", "wide_mlp"])
def test_losses_do_not_depend_on_time(
    laggard: Laggard, make_scenario: Callable[..., Path], model: str
) -> None:
    """`wide_mlp` has several buckets of gradients, whose collectives overlap with the backward
    pass."""
    scenario = make_scenario()
    options = ["--set", f"workload.model={model}", "--set", "workload.stop={steps: 10}"]
    losses = []
    for changes in ([], ["--set", SLOW, "--set", "network.networks.0.delay=20ms"]):
        answer = laggard.run(scenario, *options, *changes)
        steps = load_run(Path(str(answer["folder"]))).steps
        order = np.lexsort((steps.rank, steps.step))
        losses.append(steps.loss[order])
    assert len(losses[0]) == 30
    assert losses[0].tobytes() == losses[1].tobytes()
