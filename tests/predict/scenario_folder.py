"""Small scenarios whose speed is known from theory."""

from __future__ import annotations

from pathlib import Path

import yaml

from laggard.scenario.load import Scenario, load_scenario


def write_scenario(
    folder: Path,
    *,
    edge: int = 4,
    rate: str = "80mbit",
    delay: str = "5ms",
    cpu: str = "50%",
    workload: dict[str, object] | None = None,
    heterogeneity: dict[str, object] | None = None,
) -> Path:
    """Write a scenario of one cloud host and some edge hosts, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, object] = {
        "layers_services": {
            "environment": {"job_name": "known", "g5k": {"cluster": "paradoxe", "job_type": []}},
            "layers": [
                {"name": "cloud", "services": [{"name": "server", "quantity": 1}]},
                {"name": "edge", "services": [{"name": "trainer", "quantity": edge}]},
            ],
        },
        "network": {
            "networks": [
                {"src": "edge.*", "dst": dst, "delay": delay, "rate": rate, "symmetric": True}
                for dst in (["cloud.*", "edge.*"] if edge > 1 else ["cloud.*"])
            ]
        },
        "workflow": [],
        "heterogeneity": heterogeneity
        or {"deterministic": [{"hosts": "edge.*", "cpu": cpu}, {"hosts": "cloud.*", "cpu": cpu}]},
        "workload": {
            "model": "mlp",
            "dataset": "digits",
            "batch_size": 64,
            "placement": {"workers": ["edge.*"], "server": "cloud.*"},
            "stop": {"steps": 40},
            **(workload or {}),
        },
    }
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder


def load(folder: Path, **options: object) -> Scenario:
    """Write a scenario and load it."""
    return load_scenario(write_scenario(folder, **options))  # type: ignore[arg-type]
