"""Continuation of a training that a walltime, a revocation, a kill or an error ended.

The training goes on with its last checkpoint, in a run of its own. Steps count through all runs of
the training, and so does the time of its stopping rule. Steps after the checkpoint are trained
again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.run_schema import RunRecord, RunSettings
from laggard.layers_services.e2clab.play_inputs import PlayInputs
from laggard.run_folder.resuming.last_checkpoint import (
    CHECKPOINT_FILE,
    LastCheckpoint,
    find_last_checkpoint,
)
from laggard.run_folder.store import find_run, load_record
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.specification.training import Stop
from laggard.workloads.validate import find_resume_obstacle

SCENARIO_FOLDER = "scenario"

_ENDED_BY_RULE = ("accuracy", "steps", "time")


@dataclass(frozen=True)
class ResumedRun:
    """Run whose training is to go on.

    Attributes:
        folder: run folder.
        record: its record.
        checkpoint: its last checkpoint.
    """

    folder: Path
    record: RunRecord
    checkpoint: LastCheckpoint

    @property
    def scenario(self) -> Path:
        """Return the folder of the scenario's files, as run."""
        return self.folder / SCENARIO_FOLDER

    def complete_inputs(self, given: PlayInputs, *, has_artifacts: bool) -> PlayInputs:
        """Return the inputs of the plays: the given ones, and else those of the run.

        Args:
            given: inputs from the command line.
            has_artifacts: whether a folder of artifacts is given.
        """
        settings = self.record.settings or RunSettings()
        own = self.scenario if settings.artifacts is None else Path(settings.artifacts)
        return PlayInputs(
            given.artifacts if has_artifacts else own, given.app_conf or settings.app_conf
        )


def find_resumed_run(text: str, runs: Path) -> ResumedRun:
    """Find the run whose training is to go on, and collect what a killed run left.

    Args:
        text: a path, a run id or the beginning of one, or the name of a scenario for its latest
            run.
        runs: folder of all runs.

    Raises:
        RunFolderError: no run or several runs match.
        InputError: the run goes on, has not trained, or has reached its stopping rule, or its
            checkpoint cannot be read.
    """
    folder = find_run(text, runs).resolve()
    checkpoint = find_last_checkpoint(folder)
    record = load_record(folder)
    if record.status == "running":
        raise InputError(f"--resume {text}: this run still goes on — wait for its end")
    if not record.trains or record.origin is not None:
        raise InputError(f"--resume {text}: this run trained nothing here — give another run")
    outcome = record.outcome
    if outcome is not None and outcome.stopped_by in _ENDED_BY_RULE:
        raise InputError(
            f"--resume {text}: this training reached its stopping rule ({outcome.stopped_by}), so"
            " nothing is left — run its scenario with another workload.stop, and its checkpoint as"
            " workload.resume"
        )
    return ResumedRun(folder, record, checkpoint)


def load_resumed_scenario(
    resumed: ResumedRun, overrides: Sequence[str], plays: PlayInputs
) -> Scenario:
    """Load the scenario of a run, so that its training goes on with the last checkpoint.

    Args:
        resumed: the run.
        overrides: texts `file.key=value`, as for `--set`.
        plays: inputs of the plays of `workflow.yaml`.

    Raises:
        InputError: the run has no checkpoint, or its strategy needs more than a checkpoint.
        ScenarioError: the scenario is invalid with these overrides.
    """
    scenario = load_scenario(resumed.scenario, overrides, plays=plays)
    obstacle = find_resume_obstacle(scenario.workload.strategy)
    if obstacle is not None:
        rule, fix = obstacle
        raise InputError(f"--resume {resumed.record.id}: {rule} — {fix}")
    if resumed.checkpoint.step is not None:
        added = _list_overrides(resumed, resumed.checkpoint.step, scenario.workload.stop)
    elif scenario.workload.resume is not None:
        # The run ended before its own first checkpoint, so all of it is trained again.
        added = ()
    else:
        raise InputError(
            f"--resume {resumed.record.id}: it ended before its first checkpoint — run the scenario"
            " again, with workload.checkpoint_every"
        )
    again = load_scenario(resumed.scenario, (*overrides, *added), plays=plays)
    return replace(again, name=resumed.record.scenario, resumed_run=resumed.record.id)


def _list_overrides(resumed: ResumedRun, step: int, stop: Stop) -> tuple[str, ...]:
    """Return the overrides with which a training goes on up to the end of its stopping rule."""
    run, elapsed_s = resumed.record.id, resumed.checkpoint.elapsed_s
    if stop.steps is not None and step + 1 >= stop.steps:
        raise InputError(
            f"--resume {run}: has {step + 1} of {stop.steps} steps, so nothing is left — set"
            " workload.stop.steps higher"
        )
    # Quoted, since a path may mean something else in YAML.
    added = [f"workload.resume={json.dumps(str(resumed.folder / CHECKPOINT_FILE))}"]
    if stop.time_s is not None:
        if elapsed_s is None:
            raise InputError(
                f"--resume {run}: its checkpoint does not say how much of {stop.time_s:g} s is left"
                " — run its scenario with this checkpoint as workload.resume, and the time that is"
                " left as workload.stop.time"
            )
        left_s = stop.time_s - elapsed_s
        if left_s <= 0:
            raise InputError(
                f"--resume {run}: its steps took {elapsed_s:.1f} s of {stop.time_s:g} s, so"
                " nothing is left — set workload.stop.time higher"
            )
        added.append(f"workload.stop.time={left_s:.3f}s")
    return tuple(added)
