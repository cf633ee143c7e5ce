"""`laggard run --resume`: a killed training goes on with its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from laggard.run_folder.store import list_runs, load_record
from laggard.workloads.models.model_state import load_state
from tests.command_line import Laggard, needs_tun
from tests.run.test_faults import start_run
from tests.run.test_signals import wait_for_file

pytestmark = [needs_tun, pytest.mark.long]

MORE_STEPS = 30


def test_a_killed_training_goes_on(laggard: Laggard, make_scenario: Callable[..., Path]) -> None:
    """After two interruptions, its model is bit for bit that of a training without any."""
    scenario = make_scenario()
    every = ("--set", "workload.checkpoint_every=5", "--set", "workload.strategy=ring_allreduce")
    endless = ("--set", "workload.stop={steps: 100000, time: 1h}")
    process = start_run(laggard, scenario, *every, *endless)
    wait_for_file(laggard.runs, "workers/checkpoint.pt", process)
    process.kill()
    process.communicate()
    ((_, first),) = list_runs(laggard.runs)
    # This one ends before a checkpoint of its own.
    process = start_run(laggard, Path(first.name), "--resume", *endless)
    # The first run's streams become tables before the second one begins.
    wait_for_file(laggard.runs, "checkpoint.pt", process)
    wait_for_file(laggard.runs, "workers/progress.jsonl", process)
    process.kill()
    process.communicate()
    second = list_runs(laggard.runs)[-1][1]
    done = load_state(first / "checkpoint.pt")["step"]
    assert isinstance(done, int)
    ended = ("--set", f"workload.stop={{steps: {done + 1 + MORE_STEPS}, time: 1h}}")
    third = laggard.run(Path(second.name), "--resume", *ended)
    whole = laggard.run(scenario, *every, *ended)
    folders = [Path(str(result["folder"])) for result in (third, whole)]
    settings = load_record(folders[0]).settings
    assert settings is not None
    assert settings.resume == second.name
    states = [load_state(folder / "checkpoint.pt") for folder in folders]
    steps = [state["step"] for state in states]
    assert steps == [done + MORE_STEPS] * 2
    models = [state["model"] for state in states]
    assert isinstance(models[0], dict)
    assert isinstance(models[1], dict)
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
