"""A continuum with one server and some clients, as a folder."""

from __future__ import annotations

from pathlib import Path

import yaml

SHARES = (0.2, 0.1, 0.05, 0.02)


def write_federated(folder: Path, workload: dict[str, object] | None = None) -> Path:
    """Write a scenario with a server in the cloud and a client of each share on 10 Mbit/s links."""
    folder.mkdir(parents=True)
    clients = len(SHARES)
    files: dict[str, object] = {
        "layers_services.yaml": {
            "environment": {"job_name": "clients", "g5k": {"cluster": "paradoxe"}},
            "layers": [
                {"name": "cloud", "services": [{"name": "server", "quantity": 1}]},
                {"name": "edge", "services": [{"name": "client", "quantity": clients}]},
            ],
        },
        "network.yaml": {
            "networks": [
                {
                    "src": "edge.*",
                    "dst": "cloud.*",
                    "delay": "10ms",
                    "rate": "10mbit",
                    "symmetric": True,
                }
            ]
        },
        "workflow.yaml": [],
        "heterogeneity.yaml": {
            "deterministic": [
                {"hosts": f"edge.client.1.{number}", "cpu": f"{100 * share:g}%"}
                for number, share in enumerate(SHARES, 1)
            ]
        },
        "workload.yaml": {
            "model": "mlp",
            "dataset": "digits",
            "births": {"concentration": 0.5},
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5},
            "strategy": {"name": "federated", "clients": 2, "local_epochs": 2},
            "placement": {"workers": ["edge.*"], "server": "cloud.*"},
            "stop": {"steps": 4},
            "seed": 7,
            **(workload or {}),
        },
    }
    for name, content in files.items():
        (folder / name).write_text(yaml.safe_dump(content))
    return folder
