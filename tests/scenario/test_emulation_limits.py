"""What a machine cannot emulate exactly is told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.scenario.emulation_limits import list_emulation_limits
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import write

LAYERS = """
environment: {job_name: many, g5k: {cluster: paradoxe}}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 2}]}
  - {name: edge, services: [{name: trainer, quantity: %d}]}
"""


@pytest.mark.parametrize(
    ("edge", "cores", "too_little"),
    [(90, 2, False), (400, 2, True), (400, 64, False), (490, 3, True)],
)
def test_hosts_with_too_little_of_a_core_are_named(
    edge: int, cores: int, too_little: bool, tmp_path: Path
) -> None:
    files = {
        "layers_services": LAYERS % edge,
        "network": "networks: []\n",
        "workflow": "[]\n",
        "workload": "model: mlp\ndataset: digits\nbatch_size: 1200\nstop: {steps: 1}\n",
    }
    scenario = load_scenario(write(tmp_path / "many", files))
    warnings = list_emulation_limits(scenario, cores)
    assert bool(warnings) == too_little
    for warning in warnings:
        assert f"{edge + 2} hosts (2 of cloud, {edge} of edge)" in warning
        assert "use fewer hosts" in warning


@pytest.mark.parametrize(
    ("delay", "rate", "said"),
    [
        ("5ms", "10mbit", []),
        ("5ms", "1kbit", ["to verify the links"]),
        ("5ms", "1gbit", []),
        ("200ms", "3gbit", ["--dilation 6"]),
    ],
)
def test_links_that_are_slow_to_verify_or_cannot_be_held_are_told(
    delay: str, rate: str, said: list[str], tmp_path: Path
) -> None:
    rule = f"{{src: cloud.*, dst: edge.*, delay: {delay}, rate: {rate}, symmetric: true}}"
    files = {
        "layers_services": LAYERS % 1,
        "network": f"networks: [{rule}]\n",
        "workflow": "[]\n",
        "workload": "model: mlp\ndataset: digits\nbatch_size: 12\nstop: {steps: 1}\n",
    }
    warnings = list_emulation_limits(load_scenario(write(tmp_path / "slow", files)), 2)
    assert len(warnings) == len(said)
    assert all(text in warning for text, warning in zip(said, warnings, strict=True))
