"""The JSON documents of a run folder, as immutable values.

`run.json` is a `RunRecord`, `fidelity.json` a list of `FidelityCheck`, `stragglers.json` a list of
`Finding`; `alarms.jsonl` has an `Alarm` per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, model_validator

SCHEMA_VERSION = 2
"""Version of all documents of a run folder; documents of version 1 are still read."""

ALARMS_FILE = "alarms.jsonl"

RunStatus = Literal["running", "done", "failed", "unfaithful", "interrupted"]
StragglerFamily = Literal["compute", "network", "storage"]
StragglerKind = Literal["deterministic", "dynamic"]
SyncMode = Literal["lockstep", "asynchronous"]


class Record(BaseModel):
    """Base of every document: unknown keys are refused, values never change.

    Attributes:
        RENAMED: today's name of each field that schema 1 called otherwise.
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
    """One stage of a run and the real seconds it took."""

    name: str
    seconds: float


class RunOutcome(Record):
    """What a finished run achieved, in virtual time.

    `makespan_s` runs from the first-step barrier to the stopping rule, without evaluation;
    `fairness` is Jain's index over applied samples against capacity; `cost` is in the unit of the
    scenario's prices.
    """

    makespan_s: float
    steps: int
    accuracy: float | None
    samples_per_s: float
    bytes_sent: int
    cost: float | None
    fairness: float
    stopped_by: Literal["accuracy", "steps", "time", "walltime"]


def _rename_own_pace(value: object) -> object:
    """Schema 1 called `asynchronous` ranks of their `own` pace."""
    return "asynchronous" if value == "own" else value


class StrategyRecord(Record):
    """How the ranks trained: in `lockstep`, all taking the same steps and synchronizing in some,
    or `asynchronous`, each taking steps of its own.

    `description` is what people read, `parameters` what the analysis computes with; `server_tier`
    is where the server was, if there was one.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"pace": "sync_mode", "told": "description"}

    name: str
    sync_mode: Annotated[SyncMode, BeforeValidator(_rename_own_pace)]
    description: str
    parameters: dict[str, JsonValue] = {}
    server_tier: str | None = None


class ReservedJob(Record):
    """A reservation that a run made on a remote testbed; `released` once the testbed said that it
    is over.

    `job_id` is the testbed's own number; where only the name is known yet, because the run died in
    between, it is 0.
    """

    testbed: str
    site: str
    job_id: int
    name: str
    nodes: int
    released: bool = False


class HostEnergy(Record):
    """What a host's power meter counted between the first step and the last, evaluations
    included.
    """

    host: str
    joules: float
    metric: str


class ChurnEvent(Record):
    """A worker that left, or joined, while the others trained; virtual seconds since the first
    step.

    `requested_s` is when it was to, `effective_s` when it had been killed, or was brought up to
    date and began to train.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"asked_s": "requested_s"}

    rank: int
    host: str
    kind: Literal["left", "joined"]
    requested_s: float
    effective_s: float


class TraceOrigin(Record):
    """Whose trace a run was read from, where Laggard did not trace it itself.

    `notes` say what of it could not be taken over. `replayable` is whether its dependencies are
    those that the replay knows; without that, nothing is said of what causes cost.
    """

    format: Literal["bytedance", "kineto"]
    path: str
    notes: tuple[str, ...] = ()
    replayable: bool = True


def _upgrade_version(value: object) -> object:
    """A document that was read has today's fields, so it is written with today's version."""
    return SCHEMA_VERSION if value == 1 else value


class RunRecord(Record):
    """`run.json`. `first_step_s` and the stages are real seconds; `first_step_s` counts from the
    start of the command.

    `lost_ranks` were killed while the others went on without them.
    """

    schema_version: Annotated[int, BeforeValidator(_upgrade_version)] = SCHEMA_VERSION
    id: str
    scenario: str
    status: RunStatus
    command: tuple[str, ...]
    seed: int
    strategy: StrategyRecord = StrategyRecord(
        name="allreduce", sync_mode="lockstep", description="allreduce"
    )
    versions: dict[str, str]
    git: str | None
    testbed: str
    backend: str | None = None
    dilation: float = 1.0
    hosts: tuple[dict[str, str | float | int | None], ...] = ()
    started: str
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


class FidelityCheck(Record):
    """One quantity that the emulation was asked for and gave, in virtual units.

    `tolerance` is absolute, in `unit`; for `cpu` the quantity is the slowdown of a phase and `src`
    the host.
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
    """What a strategy decided while it trained, in which step, how many seconds after the first
    began.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"told": "description"}

    step: int
    at_s: float
    description: str


class Finding(Record):
    """One straggler.

    `rank` and `host` are null for a collective; `link` names both ends where `links.parquet` does.
    Steps are inclusive. `cost_s` is the Shapley share of the makespan lost; `masked` means slow but
    under 1 % of the makespan.
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


class Alarm(Record):
    """A straggler as the detector told of it while the run went on: a line of `alarms.jsonl`, where
    later lines of a number replace earlier ones.

    `rank` and `host` are null for a collective. Times are virtual seconds since the first step:
    `since_s` is when it became slow, `raised_s` the end of the step that showed it, `reported_s`
    when it was said (null where nobody was there to be told). `last_step` and `ended_s`, its last
    slow step and that one's end, are null while it goes on. `slowdown` is against its own usual
    where `kind` is dynamic, and against the fastest device class where it is deterministic.
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

    Example:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> select_latest_alarms(run.alarms)
        ()
    """
    return tuple({alarm.number: alarm for alarm in alarms}.values())
