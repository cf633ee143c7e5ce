"""Jobs executed in rounds on the hosts of a continuum, emulated or real.

A turn is a run of its own: a job trains on its hosts until the round ends, and goes on in its next
turn, on whatever hosts. It goes on from a checkpoint if its strategy has one with the whole state.
Otherwise it begins with the weights of the turn before, a new optimizer and another seed.

Turns of one round are executed one after another. In virtual time they are side by side: they have
no host in common, so none would slow another one down, unless their links share a bottleneck.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from laggard.campaign.run_subprocess import SubprocessRun, run_in_subprocess
from laggard.core.errors import DeploymentError, InputError
from laggard.core.files.output_files import write_json
from laggard.jobs.cluster_file import SharedCluster
from laggard.jobs.predicted_jobs import copy_with_workload, list_layer_hosts
from laggard.scenario.load import load_scenario
from laggard.workloads.scheduling.cluster_run import RoundTurn, TurnResult
from laggard.workloads.validate import find_resume_obstacle

log = logging.getLogger(__name__)

MOST_FAILURES = 3
"""Turns of a job that may fail one after another."""

OVERRUN_STEPS = 2
"""Steps of a turn beyond those that fit into its round: the first step that begins after the end of
the round is the last one, so that all workers know of it in time."""

_NEVER = 100_000_000
"""Steps between two checkpoints, of which only that at the end of the turn is meant."""

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

CHECKPOINT_FILE = "checkpoint.pt"
WEIGHTS_FILE = "weights.pt"
TURNS_FILE = "turns.json"


@dataclass(frozen=True)
class ExecutedTurn:
    """Turn of a job that was executed.

    Attributes:
        job: name of the job.
        hosts: hosts on which it trained.
        steps: number of steps; 0 for a turn that failed.
        took_s: virtual seconds that they took.
        run: run folder; empty if the run did not get so far.
        problem: what went wrong; empty if nothing did.
    """

    job: str
    hosts: tuple[str, ...]
    steps: int
    took_s: float
    run: str
    problem: str = ""


@dataclass
class RoundExecutor:
    """Executor of the rounds of a cluster.

    Attributes:
        cluster: cluster with layers and workloads.
        folder: folder for the scenarios of the jobs.
        runs: folder of the run folders.
        report: function that is told about every turn.
        target: options of `laggard run` that select a testbed; this machine if there are none.
        turns: turns so far.
        notes: sentences about jobs that do not go on from checkpoints.
    """

    cluster: SharedCluster
    folder: Path
    runs: Path
    report: Callable[[str], None]
    target: Sequence[str] = ()
    turns: list[ExecutedTurn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _hosts: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _states: dict[int, Path] = field(default_factory=dict)
    _seeds: dict[int, int] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    _layers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write the scenario of every job, and find out how it can go on in its next turn.

        Raises:
            InputError: a job has no workload.
            ScenarioError: a workload cannot run on the layers.
        """
        layers = self.cluster.layers
        if layers is None:
            raise InputError(
                f"{self.cluster.name}: has no `layers`, so there are no hosts to run on — name a"
                " scenario folder, and the `workload` of each job"
            )
        self._layers = list_layer_hosts(layers)
        pairs = zip(self.cluster.jobs, self.cluster.workloads, strict=True)
        for number, (job, workload) in enumerate(pairs):
            if workload is None:
                raise InputError(f"{job.name}: has no `workload` to run — add it")
            copy_with_workload(layers, workload, self._get_scenario(number))
            loaded = load_scenario(self._get_scenario(number)).workload
            obstacle = find_resume_obstacle(loaded.strategy)
            if obstacle is not None:
                self._seeds[number] = loaded.seed
                self.notes.append(
                    f"each turn of {job.name} begins with the weights of the one before and a new"
                    f" optimizer: {obstacle[0]}"
                )

    def measure(self) -> None:
        """Measure the steps per second of every job: one turn on each type that can run it.

        Speeds on other numbers of devices keep their ratios to the one that is measured.

        Raises:
            DeploymentError: a turn failed.
        """
        jobs = []
        for number, job in enumerate(self.cluster.jobs):
            measured = {
                kind: self._measure(number, hosts[: job.scale])
                for kind, hosts in self._layers.items()
                if job.throughput.get(kind, 0.0) > 0 and job.scale <= len(hosts)
            }
            curves = {
                kind: {
                    devices: speed * measured[kind] / job.throughput[kind]
                    for devices, speed in job.get_curve(kind).items()
                }
                for kind in measured
            }
            jobs.append(replace(job, throughput=measured, curves=curves))
        self.cluster = replace(self.cluster, jobs=tuple(jobs))

    def _measure(self, number: int, hosts: Sequence[str]) -> float:
        job, round_s = self.cluster.jobs[number], self.cluster.options.round_s
        words = [
            f"workload.placement.workers={json.dumps([*hosts])}",
            f"workload.stop={{steps: {job.steps}, time: {round_s:g}s}}",
        ]
        done = _read_turn(job.name, tuple(hosts), self._run(number, words))
        if done.problem:
            raise DeploymentError(
                f"{job.name}: could not be measured on {', '.join(hosts)}: {done.problem} — look at"
                f" {done.run or self.runs}"
            )
        speed = done.steps / done.took_s
        self.report(f"{job.name}: {speed:.4g} steps/s on {', '.join(hosts)}")
        return speed

    def execute(self, turns: Sequence[RoundTurn]) -> list[TurnResult]:
        """Execute the turns of one round.

        Raises:
            DeploymentError: a job failed three times, one after another.
        """
        self._hosts = assign_hosts(turns, self._hosts, [*self._layers.values()])
        return [self._execute(turn) for turn in turns]

    def _get_scenario(self, number: int) -> Path:
        """Return the scenario folder of a job, with its name if that can be one of a folder.

        No such name begins with an underscore, so no two jobs have the same folder.
        """
        name = self.cluster.jobs[number].name
        return self.folder / (name if _FOLDER_NAME.fullmatch(name) else f"_job-{number + 1}")

    def _execute(self, turn: RoundTurn) -> TurnResult:
        job, hosts = self.cluster.jobs[turn.job], self._hosts[turn.job]
        run = self._run(turn.job, [*self._list_overrides(turn, hosts)])
        state = WEIGHTS_FILE if turn.job in self._seeds else CHECKPOINT_FILE
        done = _read_turn(job.name, hosts, run, state)
        self.turns.append(done)
        # Whoever interrupts the schedule keeps what was done so far.
        write_json(self.folder / TURNS_FILE, [asdict(each) for each in self.turns])
        if done.problem:
            return self._note_failure(turn, done)
        self._failures[turn.job] = 0
        self._states[turn.job] = (Path(done.run) / state).absolute()
        self.report(f"{job.name}: {done.steps} steps in {done.took_s:.2f} s on {', '.join(hosts)}")
        return TurnResult(float(done.steps), done.took_s)

    def _run(self, number: int, overrides: Sequence[str]) -> SubprocessRun:
        return run_in_subprocess(
            self._get_scenario(number),
            overrides,
            self.runs,
            command=("run", *self.target),
            capture_errors=True,
        )

    def _note_failure(self, turn: RoundTurn, done: ExecutedTurn) -> TurnResult:
        self._failures[turn.job] = failures = self._failures.get(turn.job, 0) + 1
        self.report(f"{done.job}: failed on {', '.join(done.hosts)}: {done.problem}")
        if failures >= MOST_FAILURES:
            raise DeploymentError(
                f"{done.job}: failed {failures} times, one after another: {done.problem} — look at"
                f" {done.run or self.runs}"
            )
        # Its hosts are lost for this round; the job goes on from the end of its last turn.
        return TurnResult(0.0, turn.round_s)

    def _list_overrides(self, turn: RoundTurn, hosts: Sequence[str]) -> Iterable[str]:
        yield f"workload.placement.workers={json.dumps([*hosts])}"
        seed, before = self._seeds.get(turn.job), self._states.get(turn.job)
        # A checkpoint counts all steps, and weights none.
        steps = self.cluster.jobs[turn.job].steps if seed is None else math.ceil(turn.steps_left)
        yield f"workload.stop={{steps: {steps}, time: {turn.round_s:g}s}}"
        if seed is None:
            yield f"workload.checkpoint_every={_NEVER}"
        else:
            yield "workload.save_weights=true"
            # Another order of the samples than in the turns before.
            name = self.cluster.jobs[turn.job].name
            yield f"workload.seed={seed + sum(each.job == name for each in self.turns)}"
        if before is not None:
            key = "resume" if seed is None else "initial_weights"
            # Quoted, since a path may mean something else in YAML.
            yield f"workload.{key}={json.dumps(str(before))}"


def assign_hosts(
    turns: Sequence[RoundTurn],
    before: Mapping[int, tuple[str, ...]],
    layers: Sequence[Sequence[str]],
) -> dict[int, tuple[str, ...]]:
    """Return the hosts of each job of a round; who keeps its type and number keeps its hosts.

    Args:
        turns: jobs that run, with their types and numbers of devices.
        before: hosts of jobs in the round before.
        layers: hosts of each type.

    Examples:
        >>> turn = RoundTurn(job=0, kind=0, devices=1, steps_left=9.0, round_s=5.0)
        >>> assign_hosts([turn], {0: ("b",)}, [("a", "b")])
        {0: ('b',)}
    """
    kept = {
        turn.job: before[turn.job]
        for turn in turns
        if len(before.get(turn.job, ())) == turn.devices
        and set(before[turn.job]) <= set(layers[turn.kind])
    }
    used = {host for hosts in kept.values() for host in hosts}
    for turn in turns:
        if turn.job not in kept:
            free = [host for host in layers[turn.kind] if host not in used]
            kept[turn.job] = tuple(free[: turn.devices])
            used.update(kept[turn.job])
    return kept


def _read_turn(
    job: str, hosts: tuple[str, ...], run: SubprocessRun, state: str | None = None
) -> ExecutedTurn:
    """Return what a run has done; it failed if it left no file of the name `state`."""
    result = run.result or {}
    folder = str(result.get("folder") or "")
    outcome = result.get("outcome")
    if not isinstance(outcome, dict):
        lines = [line for line in run.errors.splitlines() if line.strip()]
        problem = str(result.get("error") or (lines[-1] if lines else f"status {run.status}"))
        return ExecutedTurn(job, hosts, 0, 0.0, folder, problem)
    steps, took_s = outcome.get("steps"), outcome.get("makespan_s")
    if not isinstance(steps, int) or not isinstance(took_s, (int, float)):
        return ExecutedTurn(job, hosts, 0, 0.0, folder, "it has no number of steps")
    if state is not None and not (Path(folder) / state).is_file():
        return ExecutedTurn(job, hosts, 0, 0.0, folder, f"it left no {state}")
    if result.get("status") != "done":
        log.warning("%s: %s is %s", job, folder, result.get("status"))
    return ExecutedTurn(job, hosts, steps, float(took_s), folder)
