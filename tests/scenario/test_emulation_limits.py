"""What a machine cannot emulate exactly is told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.scenario.emulation_limits import LEAST_REAL_SHARE, list_emulation_limits
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import write

LAYERS = """
environment: {job_name: many, g5k: {cluster: paradoxe}}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 2}]}
  - {name: edge, services: [{name: trainer, quantity: %d}]}
"""


@pytest.mark.parametrize(("edge", "cores"), [(90, 2), (400, 2), (400, 64), (490, 4)])
def test_hosts_with_too_little_of_a_core_are_named(edge: int, cores: int, tmp_path: Path) -> None:
    files = {
        "layers_services": LAYERS % edge,
        "network": "networks: []\n",
        "workflow": "[]\n",
        "workload": "model: mlp\ndataset: digits\nbatch_size: 1200\nstop: {steps: 1}\n",
    }
    scenario = load_scenario(write(tmp_path / "many", files))
    warnings = list_emulation_limits(scenario, cores)
    # Hosts are alike here, so each gets at most its part of all cores.
    assert bool(warnings) == (cores / (edge + 2) < LEAST_REAL_SHARE * 1.3)
    for warning in warnings:
        assert f"{edge + 2} hosts (2 of cloud, {edge} of edge)" in warning
        assert "use fewer hosts" in warning
