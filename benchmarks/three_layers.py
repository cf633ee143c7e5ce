"""Scenario that several benchmarks share: cloud, fog and edge, at any size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HOSTS = (4, 12, 32)
"""Measured numbers of hosts."""

_LAYERS = """\
environment:
  job_name: benchmark
  g5k: {{cluster: paravance}}
layers:
  - name: cloud
    services: [{{name: trainer, quantity: {cloud}}}]
  - name: fog
    services: [{{name: trainer, quantity: {fog}}}]
  - name: edge
    services: [{{name: trainer, quantity: {edge}}}]
"""
_NETWORK = """\
networks:
  - {src: "edge.*", dst: "fog.*", delay: 5ms, rate: 100mbit, symmetric: true}
  - {src: "edge.*", dst: "cloud.*", delay: 15ms, rate: 50mbit, symmetric: true}
  - {src: "fog.*", dst: "cloud.*", delay: 10ms, rate: 200mbit, symmetric: true}
"""


def write_scenario(folder: Path, hosts: int, further: Mapping[str, str]) -> Path:
    """Write a scenario folder of so many hosts: a quarter cloud, a quarter fog, the rest edge.

    Args:
        folder: folder to create.
        hosts: number of hosts.
        further: texts of the other files, by name without `.yaml`.
    """
    quarter = hosts // 4
    layers = _LAYERS.format(cloud=quarter, fog=quarter, edge=hosts - 2 * quarter)
    folder.mkdir()
    for name, text in {"layers_services": layers, "network": _NETWORK, **further}.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder
