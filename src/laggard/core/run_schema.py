"""The JSON documents of a run folder, as immutable values.

`run.json` is a `RunRecord`, `fidelity.json` is a list of `FidelityCheck`, `stragglers.json` is a
list of `Finding`, `stream.json` is a list of `StreamTask`, `federated.json` is a
`FederatedTraining`, and `alarms.jsonl` has one `Alarm` per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

SCHEMA_VERSION = 2
"""Version of all documents of a run folder; documents of version 1 are still read."""

ALARMS_FILE = "alarms.jsonl"

RunStatus = Literal["running", "done", "failed", "unfaithful", "interrupted"]
StragglerFamily = Literal["compute", "network", "storage", "host"]
StragglerKind = Literal["deterministic", "dynamic"]
SyncMode = Literal["lockstep", "asynchronous"]
StopReason = Literal["accuracy", "steps", "time", "walltime"]


class Record(BaseModel):
    """Base of every document: unknown keys are refused, and values never change.

    Attributes:
        RENAMED: map from a field's name in schema 1 to its present name, for renamed fields.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {}
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _accept_schema_1(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {cls.RENAMED.get(key, key): each for key, each in value.items()}


class StageDuration(Record):
    """Stage of a run and its duration in real seconds."""

    name: str
    seconds: float


class RunOutcome(Record):
    """Results of a finished run, in virtual time.

    Attributes:
        makespan_s: seconds from the first-step barrier to the stopping rule, without evaluations.
        steps: number of steps.
        accuracy: last accuracy; None if the model was not evaluated.
        samples_per_s: samples of all ranks per second.
        bytes_sent: bytes that all links carried.
        bytes_across_tiers: those of links between hosts of different tiers; None in older files.
        cost: cost in the unit of the scenario's prices; None if the scenario has no prices.
        fairness: Jain's index over applied samples against capacity.
        stopped_by: stopping rule that ended the training.
    """

    makespan_s: float
    steps: int
    accuracy: float | None
    samples_per_s: float
    bytes_sent: int
    cost: float | None
    fairness: float
    stopped_by: StopReason
    bytes_across_tiers: int | None = None


def _rename_own_pace(value: object) -> object:
    """Translate the synchronization mode `own` of schema 1 to `asynchronous`."""
    return "asynchronous" if value == "own" else value


class StrategyRecord(Record):
    """Strategy that trained the model.

    Attributes:
        name: name of the strategy.
        sync_mode: `lockstep` if all ranks take the same steps and synchronize in some of them,
            `asynchronous` if each rank takes steps of its own.
        description: text for people.
        parameters: values for the analysis.
        server_tier: tier of the parameter server; None if there was no server.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"pace": "sync_mode", "told": "description"}

    name: str
    sync_mode: Annotated[SyncMode, BeforeValidator(_rename_own_pace)]
    description: str
    parameters: dict[str, JsonValue] = {}
    server_tier: str | None = None


VIRTUAL_TESTBED = "virtual"
"""Testbed of a run that nothing emulated: its times were computed."""

NO_TRAINING = StrategyRecord(name="none", sync_mode="lockstep", description="no training")
"""Strategy of a run that trains nothing."""


class ReservedJob(Record):
    """Reservation that a run made on a remote testbed.

    Attributes:
        testbed: name of the testbed.
        site: site of the testbed.
        job_id: number of the job on the testbed; 0 if only the name is known, because the run died
            before it learned the number.
        name: name of the job.
        nodes: number of nodes.
        released: whether the testbed has confirmed the end of the reservation.
    """

    testbed: str
    site: str
    job_id: int
    name: str
    nodes: int
    released: bool = False


class HostEnergy(Record):
    """Energy of a host between the first and the last step, including evaluations.

    Attributes:
        host: name of the host.
        joules: energy that the host's power meter counted.
        metric: name of the meter's metric.
    """

    host: str
    joules: float
    metric: str


class ChurnEvent(Record):
    """Worker that left or joined while the others trained; times in virtual seconds.

    Times count from the first step.

    Attributes:
        rank: rank of the worker.
        host: host of the worker.
        kind: `left` or `joined`.
        requested_s: time that the scenario gives.
        effective_s: time at which the worker had been killed, or had been brought up to date and
            began to train.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"asked_s": "requested_s"}

    rank: int
    host: str
    kind: Literal["left", "joined"]
    requested_s: float
    effective_s: float


class TraceOrigin(Record):
    """Source of a run that was converted from a trace of another tool.

    Attributes:
        format: format of the trace.
        path: path of the trace.
        notes: descriptions of everything that could not be converted.
        replayable: whether the replay supports the dependencies of the trace; if not, no cost of
            causes is reported.
        stages: pipeline stage of each rank; empty if the model is not split into stages.
    """

    format: Literal["bytedance", "flight_recorder", "horovod", "kineto"]
    path: str
    notes: tuple[str, ...] = ()
    replayable: bool = True
    stages: tuple[int, ...] = ()


class RepositoryRecord(Record):
    """Git repository from which something of a run came.

    Attributes:
        holds: what of the run it holds: `laggard`, `scenario` or both.
        commit: hash of the commit, with `-dirty` if tracked files had changes.
        diff: file of the run folder with these changes; None if there were none.
        diff_is_complete: whether that file has all changes; it has at most 1 MiB.
    """

    holds: tuple[Literal["laggard", "scenario"], ...]
    commit: str
    diff: str | None = None
    diff_is_complete: bool = True


class RunSettings(Record):
    """Options of the command that change a run, apart from `--set`.

    Attributes:
        links: requested backend of the links.
        dilation: requested dilation; None for the least possible.
        fidelity: reaction to a failed fidelity check.
        artifacts: folder with the files of the plays, if it is not the scenario's.
        app_conf: set of variables for the plays.
        for_s: seconds between launch and finalize, if nothing is trained.
        report: whether the run ends with a report and its figures.
        resume: id of the run whose training this one goes on with.
    """

    links: str = "auto"
    dilation: float | None = None
    fidelity: Literal["require", "record"] = "require"
    artifacts: str | None = None
    app_conf: str | None = None
    for_s: float = 0.0
    report: bool = True
    resume: str | None = None


def _upgrade_version(value: object) -> object:
    """Replace version 1 by the current one: what has been read is written with current fields."""
    return SCHEMA_VERSION if value == 1 else value


class RunRecord(Record):
    """Record of a run: the content of `run.json`.

    `first_step_s` and the durations of stages are real seconds; `first_step_s` counts from the
    start of the command. `lost_ranks` are the ranks that were killed while the others continued
    without them. `overrides` are the values of `--set`; the files in `scenario/` contain them.
    `seeds` are all seeds by their key. `settings`, `ended` and what else has a default is missing
    in records of older versions.
    """

    schema_version: Annotated[int, BeforeValidator(_upgrade_version)] = SCHEMA_VERSION
    id: str
    scenario: str
    status: RunStatus
    command: tuple[str, ...]
    settings: RunSettings | None = None
    overrides: tuple[str, ...] = ()
    seed: int
    seeds: dict[str, int] = {}
    strategy: StrategyRecord = StrategyRecord(
        name="allreduce", sync_mode="lockstep", description="allreduce"
    )
    versions: dict[str, str]
    git: str | None
    repositories: tuple[RepositoryRecord, ...] = ()
    testbed: str
    backend: str | None = None
    dilation: float = 1.0
    hosts: tuple[dict[str, str | float | int | None], ...] = ()
    started: str
    ended: str | None = None
    first_step_s: float | None = None
    stages: tuple[StageDuration, ...] = ()
    outcome: RunOutcome | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()
    lost_ranks: tuple[int, ...] = ()
    churn: tuple[ChurnEvent, ...] = ()
    jobs: tuple[ReservedJob, ...] = ()
    energy: tuple[HostEnergy, ...] = ()
    origin: TraceOrigin | None = None

    @property
    def trains(self) -> bool:
        """Return whether the run trains a model; one without `workload.yaml` does not."""
        return self.strategy != NO_TRAINING


class FidelityCheck(Record):
    """Requested and measured value of one quantity of the emulation, in virtual units.

    `tolerance` is absolute, in `unit`. For the kind `cpu` the quantity is the slowdown of a phase,
    and `src` is the host.
    """

    kind: Literal["rtt", "rate", "loss", "cpu", "storage"]
    src: str
    dst: str | None
    requested: float
    measured: float
    unit: str
    tolerance: float
    ok: bool
    detail: str = ""


class Decision(Record):
    """Decision that a strategy made during training.

    Attributes:
        step: step in which the decision was made.
        at_s: seconds since the first step began.
        description: text for people.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"told": "description"}

    step: int
    at_s: float
    description: str


STREAM_FILE = "stream.json"
"""File of a run folder with the tasks of its stream, if the training had one."""


class StreamTask(Record):
    """Task of a stream, and the accuracy on its test samples in all evaluations.

    Attributes:
        classes: classes that are tested.
        last_step: last step that trains on its samples.
        initial_accuracy: accuracy of the initial model.
        steps: steps of the evaluations, in ascending order.
        accuracies: accuracy of each evaluation.
        tiers: the same for each tier's own model, if the tiers had different ones at times.
    """

    classes: tuple[int, ...]
    last_step: int
    initial_accuracy: float = Field(ge=0, le=1)
    steps: tuple[int, ...]
    accuracies: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    tiers: dict[str, tuple[Annotated[float, Field(ge=0, le=1)], ...]] = {}


FEDERATED_FILE = "federated.json"
"""File of a run folder with the rounds of a federated training, if it was one."""

LEDGER_FILE = "ledger.jsonl"
"""File of a run folder with the ledger of its tokens, one `LedgerEntry` a line."""

AnswerOutcome = Literal["accepted", "failed", "unanswered"]
"""What became of a client by the end of a round: its answer is part of the model, it was lost or
answered with what cannot be used, or it had not answered."""


class RoundAnswer(Record):
    """Client that a round of a federated training selected, and what became of it.

    Attributes:
        rank: rank of the client.
        reason: why it was chosen.
        outcome: what became of its answer by the end of the round.
        took_s: seconds from the departure of the model to the arrival of an accepted answer; None
            for the others.
        clipped: whether its change of the model was too long and was shortened.
        energy_j: joules that its computing takes; None if they are not known.
    """

    rank: int = Field(ge=0)
    reason: str
    outcome: AnswerOutcome
    took_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    clipped: bool = False
    energy_j: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class RoundResult(Record):
    """Result of a round of a federated training.

    Attributes:
        round: number of the round, from 0; one without a usable answer is repeated, perhaps with
            other clients.
        answers: the selected clients, in the order in which they were chosen.
        ended_s: seconds from the first step to its end; 0 until a run folder has it.
    """

    round: int = Field(ge=0)
    answers: tuple[RoundAnswer, ...]
    ended_s: float = Field(default=0.0, allow_inf_nan=False)

    def list_clients(self, outcome: AnswerOutcome) -> tuple[int, ...]:
        """Return the clients with an outcome, in the order in which they were chosen."""
        return tuple(each.rank for each in self.answers if each.outcome == outcome)


class ClientAccuracies(Record):
    """Accuracy for the clients of a federated training in one evaluation.

    A client's accuracy is that on test samples with the labels of its own training samples: the
    accuracy on each class, weighted by the part of its samples that are of that class.

    Attributes:
        step: step of the evaluation.
        mean: mean over the clients that have samples.
        worst: accuracy of the client for which it is lowest.
        worst_rank: that client.
    """

    step: int
    mean: float = Field(ge=0, le=1)
    worst: float = Field(ge=0, le=1)
    worst_rank: int = Field(ge=0)


class FederatedTraining(Record):
    """Rounds and evaluations of a federated training.

    Attributes:
        rounds: results of its rounds.
        evaluations: accuracies for its clients; empty if the labels of their samples are unknown.
    """

    rounds: tuple[RoundResult, ...]
    evaluations: tuple[ClientAccuracies, ...] = ()


class Finding(Record):
    """One straggler.

    `rank` and `host` are None for a collective; `link` names both ends if `links.parquet` has
    them. `first_step` and `last_step` are inclusive; `slow_steps` is the number of slow steps
    between them, or None if all were slow. `cost_s` is the Shapley share of the lost makespan.
    `masked` means slow, but under 1 % of the makespan.
    """

    rank: int | None
    host: str | None
    link: tuple[str, str] | None
    family: StragglerFamily
    kind: StragglerKind
    first_step: int
    last_step: int
    slowdown: float
    cost_s: float
    confidence: float
    masked: bool
    slow_steps: int | None = None


class Alarm(Record):
    """Straggler that the detector reported during the run: one line of `alarms.jsonl`.

    A later line with the same `number` replaces the earlier ones. Times are virtual seconds since
    the first step.

    Attributes:
        number: number of the alarm, which identifies it.
        rank: rank of the straggler; None for a collective.
        host: host of the straggler; None for a collective.
        link: both ends of the slow link, if it is known.
        family: kind of the slow work.
        kind: `deterministic` for a permanent straggler, `dynamic` for a temporary slowdown.
        slowdown: ratio to the rank's own usual duration if `kind` is dynamic, to the fastest
            device class if it is deterministic.
        confidence: confidence of the detector.
        since_step: step in which the slowdown began.
        since_s: time at which the slowdown began.
        raised_step: step that revealed the slowdown.
        raised_s: end of that step.
        reported_s: time of the report; None if no process was there to receive it.
        last_step: last slow step; None while the slowdown continues.
        ended_s: end of the last slow step; None while the slowdown continues.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"told_s": "reported_s", "over_s": "ended_s"}

    number: int
    rank: int | None
    host: str | None
    link: tuple[str, str] | None
    family: StragglerFamily
    kind: StragglerKind
    slowdown: float
    confidence: float
    since_step: int
    since_s: float
    raised_step: int
    raised_s: float
    reported_s: float | None = None
    last_step: int | None = None
    ended_s: float | None = None


def select_latest_alarms(alarms: Sequence[Alarm]) -> tuple[Alarm, ...]:
    """Return the last line of each alarm, in the order in which the alarms were raised.

    Examples:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> select_latest_alarms(run.alarms)
        ()
    """
    return tuple({alarm.number: alarm for alarm in alarms}.values())
