"""`laggard trace`: a training that knows nothing of Laggard, started by torch's own launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.analysis.formats.kineto.recording.laggard_record_steps import (
    FOLDER_VARIABLE,
    STEPS_VARIABLE,
)
from laggard.analysis.formats.kineto.recording.run_traced import TracedSteps, build_environment
from laggard.cli.main import main

TRAINING = """
import time, torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset


def train():
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    data = TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(0, 4, (STEPS * 8,)))
    for samples, labels in DataLoader(data, batch_size=8):
        if distributed.get_rank() == 1:
            time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()
        other.step()

distributed.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
train()
distributed.destroy_process_group()
"""


def trace(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program of two ranks under `laggard trace`."""
    (folder / "train.py").write_text(code)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [
            *(sys.executable, "-m", "laggard", "trace", "--out", str(folder / "traces"), *options),
            *(sys.executable, *launcher, str(folder / "train.py")),
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def has_trained(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether all ranks trained to the end.

    Afterwards torch 2.13 aborts one rank of twenty in its exit, also without `laggard trace`: a
    thread of the process group still runs.
    """
    return done.returncode == 0 or "terminate called without an active exception" in done.stderr


def analyze(folder: Path) -> dict[str, object]:
    command = ["analyze", str(folder / "traces"), "--no-report", "--json"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


@pytest.mark.long
def test_a_slow_rank_of_an_unchanged_training_is_found(tmp_path: Path) -> None:
    done = trace(tmp_path, TRAINING.replace("STEPS", "30"), "--skip", "3", "--steps", "20")
    assert has_trained(done), done.stderr
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == ["rank0.json.gz", "rank1.json.gz"]
    findings = analyze(tmp_path)["stragglers"]
    assert isinstance(findings, list)
    slow = [each for each in findings if each["kind"] == "deterministic" and each["rank"] == 1]
    # Only the first optimizer ends steps.
    assert {(each["first_step"], each["last_step"]) for each in slow} == {(1, 20)}
    assert sum(each["cost_s"] for each in slow) > 0.5 * 20 * 0.02


@pytest.mark.long
def test_a_program_that_ends_early_has_its_steps_so_far(tmp_path: Path) -> None:
    done = trace(tmp_path, TRAINING.replace("STEPS", "12"), "--skip", "2", "--steps", "500")
    assert has_trained(done), done.stderr
    findings = analyze(tmp_path)["stragglers"]
    assert isinstance(findings, list)
    assert max(each["last_step"] for each in findings) <= 10


def test_other_programs_run_as_ever(tmp_path: Path) -> None:
    """A program without optimizers writes nothing; the hook of its installation still runs."""
    (tmp_path / "sitecustomize.py").write_text("print('own hook')\n")
    own = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    environment = build_environment(TracedSteps(tmp_path / "traces", 1, 2), own)
    assert environment[FOLDER_VARIABLE] == str(tmp_path / "traces")
    assert environment[STEPS_VARIABLE] == "2"
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.argv[1])", "an argument"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["own hook", "an argument"]
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["no-such-program"], "no-such-program: cannot be started: No such file or directory"),
        (["--out", "file/traces", "python"], "--out file/traces: cannot be created"),
        ([], "Missing argument 'COMMAND...'"),
        (["--steps", "0", "python"], "0 is not in the range x>=1"),
    ],
)
def test_what_cannot_be_traced_is_refused(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["trace", *options])
    assert result.exit_code == 2
    assert message in result.output
