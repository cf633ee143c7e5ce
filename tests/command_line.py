"""Small scenarios that really run, and the command line as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SMALL: Mapping[str, str] = {
    "layers_services.yaml": """
environment:
  job_name: small
  g5k: {cluster: paradoxe}
layers:
  - name: cloud
    services: [{name: trainer, quantity: 1}]
  - name: edge
    services: [{name: trainer, quantity: 2}]
""",
    "network.yaml": """
networks:
  - {src: "edge.*", dst: "cloud.*", delay: 5ms, rate: 50mbit, symmetric: true}
""",
    "workflow.yaml": "[]\n",
    "heterogeneity.yaml": """
deterministic:
  - {hosts: "cloud.*", cpu: 40%}
  - {hosts: "edge.*", cpu: 20%}
""",
    "workload.yaml": """
model: cnn
dataset: digits
batch_size: 96
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
placement: {workers: ["cloud.*", "edge.*"]}
stop: {steps: 60}
seed: 3
""",
}

COMMAND = """
    import sys
    from laggard.cli.main import main
    sys.argv[0] = "laggard"
    main()
"""
"""Script that is the command line, for a `Runner`."""

UNFAITHFUL = 3


@dataclass(frozen=True)
class Laggard:
    """The command line, with its runs in a folder of their own."""

    runs: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "laggard", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [*self.command(*arguments), "--runs", str(self.runs)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(
        self,
        scenario: Path,
        *arguments: str,
        status: int = 0,
        timeout_s: float = 480,
        report: bool = False,
    ) -> dict[str, object]:
        """Run a scenario, and return its result.

        Where the machine is busy its fidelity checks fail; it trains all the same, and its record
        says `unfaithful` instead of `done`.
        """
        command = [
            *self.command("run", str(scenario), "--json", "--fidelity", "record", *arguments),
            "--report" if report else "--no-report",
            "--runs",
            str(self.runs),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        accepted = {status, UNFAITHFUL} if status == 0 else {status}
        assert done.returncode in accepted, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        answer: dict[str, object] = json.loads(done.stdout)
        return answer


@pytest.fixture
def laggard(tmp_path: Path) -> Laggard:
    """The command line."""
    return Laggard(tmp_path / "runs")


@pytest.fixture
def make_scenario(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small scenario, some of its files replaced."""

    def write(name: str = "small", **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {
            **SMALL,
            **{f"{key}.yaml": value for key, value in files.items()},
        }.items():
            (folder / file).write_text(text)
        return folder

    return write


needs_tun = pytest.mark.skipif(
    not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="no access to /dev/net/tun"
)
