"""A training whose reservation ends goes on in the next one, on the stand-in Grid'5000, behind a
bottleneck that several senders and several receivers share."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from laggard.workloads.models.model_state import load_state
from tests.command_line import UNFAITHFUL
from tests.remote.remote_scenario import BOTTLENECK, measured_rates, run_script
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
    pytest.mark.timeout(600),
]

MORE_STEPS = 40

SCRIPT = """
    def play():
        from laggard.workloads.models.model_state import load_state
        from tests.testbed.faults import Fault
        from tests.testbed.stand_in import stand_in
        with stand_in(here / "n", {"gemini": 2, "parasilo": 3}, environment=install_once(wheels)) as grid:
            enter_account(grid)
            on = ("--on", "g5k", "--fidelity", "record", "--no-report", "--runs", str(here / "runs"))

            def start(*words):
                return subprocess.Popen([sys.executable, "-c", CLI, *words, *on, "--json"], cwd=here,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

            def laggard(*words):
                said, errors = (process := start(*words)).communicate(timeout=200)
                return {"status": process.returncode, "said": said, "error": errors}

            def until(condition, seconds):
                ends = time.monotonic() + seconds
                while not condition():
                    assert time.monotonic() < ends
                    time.sleep(0.02)

            every = ("--set", "workload.checkpoint_every=10", "--set", "workload.strategy=ring_allreduce")
            long = ("--set", "workload.stop={steps: 100000}", *every)
            first = start("run", str(scenario_folder), *long)
            kept = lambda: list((here / "runs" / "small").glob("2*/checkpoint.pt"))
            until(kept, 200)
            grid.inject(Fault.KILLED_BY_WALLTIME, times=2)
            said, errors = first.communicate(timeout=200)
            found = {"first": {"status": first.returncode, "said": said, "error": errors}}
            (checkpoint,) = kept()
            done = load_state(checkpoint)["step"] + 1
            found["done"] = done
            ended = ("--set", f"workload.stop={{steps: {done + MORE}}}")
            resumed = ("run", "--resume", checkpoint.parent.name, *ended)
            found["elsewhere"] = subprocess.run(
                [sys.executable, "-c", CLI, *resumed, "--runs", str(here / "runs")],
                capture_output=True, text=True, cwd=here).stderr
            found["resumed"] = laggard(*resumed)
            found["again"] = laggard("run", "--resume", "small", *ended)
            found["whole"] = laggard("run", str(scenario_folder), *ended, *every)
            found["left"] = [[held.site, held.uid] for held in grid.held_jobs()]
            return found

    inside(play)
"""


def test_a_training_goes_on_in_the_next_reservation(own_runner: Runner) -> None:
    """Its model is, bit for bit, that of a training that nothing ended."""
    script = SCRIPT.replace("MORE", str(MORE_STEPS))
    found = run_script(own_runner, script, timeout_s=550, changed=BOTTLENECK)
    assert found["left"] == []
    first = json.loads(found["first"]["said"])
    assert (found["first"]["status"], first["status"]) == (1, "failed"), found["first"]
    assert "made on the testbed g5k" in found["elsewhere"]
    assert found["resumed"]["status"] in {0, UNFAITHFUL}, found["resumed"]
    resumed, whole = (json.loads(found[key]["said"]) for key in ("resumed", "whole"))
    assert resumed["settings"]["resume"] == first["id"]
    assert resumed["scenario"] == first["scenario"]
    assert "send files" in {stage["name"] for stage in resumed["stages"]}
    assert not list(Path(resumed["folder"]).rglob("resumed.pt"))
    for record in (resumed, whole):
        assert {rate for rate, _ in measured_rates(Path(record["folder"]))} == {40.0}
    steps = pd.read_parquet(Path(resumed["folder"]) / "steps.parquet")
    assert steps.groupby("rank").step.nunique().tolist() == [MORE_STEPS] * 4
    assert "reached its stopping rule (steps)" in found["again"]["said"]
    states = [load_state(Path(record["folder"]) / "checkpoint.pt") for record in (resumed, whole)]
    assert [state["step"] for state in states] == [found["done"] + MORE_STEPS - 1] * 2
    models = [state["model"] for state in states]
    assert isinstance(models[0], dict)
    assert isinstance(models[1], dict)
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]), name
