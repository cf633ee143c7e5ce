"""Scenario folders to break: the template's files, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laggard.core.errors import Problem, ScenarioError
from laggard.scenario.load import load_scenario
from laggard.scenario.overrides import SCENARIO_FILES
from laggard.scenario.scaffold import read_template

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = (
    "experiments/quickstart",
    "experiments/homogeneous",
    "experiments/deterministic_compute",
    "experiments/deterministic_network",
    "experiments/dynamic_compute",
    "experiments/dynamic_network",
    "experiments/all_heterogeneity",
)


def template() -> dict[str, str]:
    """The template's files by name without `.yaml`."""
    return {name: read_template(name) for name in SCENARIO_FILES}


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """A scenario folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        (folder / f"{name}.yaml").write_bytes(data)
    return folder


def write_nodes(folder: Path, layers_services: str) -> Path:
    """A scenario folder with these layers, whose links and hosts are all alike."""
    files = {**template(), "layers_services": layers_services}
    files |= {"network": "networks: []\n", "heterogeneity": "deterministic: []\n"}
    lines = files["workload"].splitlines(keepends=True)
    files["workload"] = "".join(line for line in lines if "prices:" not in line)
    return write(folder, files)


def problems_of(folder: Path, *overrides: str) -> tuple[Problem, ...]:
    """What is wrong with a scenario; nothing when it loads."""
    try:
        load_scenario(folder, overrides)
    except ScenarioError as error:
        return error.problems
    return ()
