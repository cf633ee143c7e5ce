"""What the controller and the agent on every node say to each other: one JSON object per line.

The controller writes `AgentPlan`, then `AgentRequest`s, barrier and progress updates, and
`KeepAlive`; the agent answers every request by id, and tells the rest unasked. Times are those of
the reference clock (the head's CLOCK_MONOTONIC, ns) unless they are ages.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from laggard.core.emulated_drive import DriveLimits
from laggard.network_emulation.compute import Mechanism
from laggard.network_emulation.compute.host_counters import HostUse
from laggard.workloads.coordination.barrier_relay import BarrierUpdate
from laggard.workloads.coordination.progress_relay import ProgressUpdate
from laggard.workloads.plan import EvaluatorPlan, LinkSamplerPlan, ServerPlan, WorkerPlan

Scalar = int | float | str | None


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentPlan(_Message):
    """What a node's agent is told first.

    Attributes:
        host: the host that this node is.
        address: its address on the experiment network.
        folder: where the agent keeps the run's data on this node.
        workers: of this node, with their secret keys and nobody else's; their interface is found by
            the agent.
        evaluator: on one node only: the server's, or the head.
        server: on the server's node only, where the strategy has one.
        sampler: of this node's connections.
        share: fraction of one core to hold the workers to from the start; None where nothing ever
            limits them.
        core: which of the usable cores, counted round.
        drive: what the host's drive gives at the start; None where nothing ever limits it.
        memory_bytes: what the host's workers may hold together; None for any.
        reference_address: address of the head, whose clock all are compared with.
        lease_s: seconds of silence after which the controller counts as dead.
    """

    kind: Literal["plan"] = "plan"
    host: str
    address: str
    folder: str
    workers: tuple[WorkerPlan, ...]
    evaluator: EvaluatorPlan | None
    server: ServerPlan | None = None
    sampler: LinkSamplerPlan
    share: float | None
    core: int
    drive: DriveLimits | None = None
    memory_bytes: int | None = None
    reference_address: str
    lease_s: float = 60.0


class AgentRequest(_Message):
    """Something to do; answered by an `AgentReply` of the same number."""

    kind: Literal["request"] = "request"
    number: int
    operation: str
    argument: JsonValue = None


class KeepAlive(_Message):
    """The controller lives."""

    kind: Literal["keep_alive"] = "keep_alive"


class AgentReply(_Message):
    """What a request came to: a result, or the message of a LaggardError."""

    kind: Literal["reply"] = "reply"
    number: int
    result: JsonValue = None
    error: str = ""


class AgentStarted(_Message):
    """The agent runs and has taken its plan."""

    kind: Literal["agent_started"] = "agent_started"
    host: str
    pid: int


class ImportsDone(_Message):
    """What the workers need is imported."""

    kind: Literal["imports_done"] = "imports_done"
    import_s: float


class RankReady(_Message):
    """A rank has met the others, or the server (whose number follows the ranks') is there for
    them.
    """

    kind: Literal["rank_ready"] = "rank_ready"
    rank: int


class FirstStepBegan(_Message):
    """The first step began (head)."""

    kind: Literal["first_step_began"] = "first_step_began"
    time_ns: int


class TrainingDone(_Message):
    """Training has ended (where it is evaluated): the worker output folder's `done.json`."""

    kind: Literal["training_done"] = "training_done"
    document: dict[str, Scalar]


class TrainingProgress(_Message):
    """Lines of the worker output folder's `progress.jsonl` (where it is evaluated)."""

    kind: Literal["training_progress"] = "training_progress"
    lines: tuple[dict[str, Scalar], ...]


class RankHeartbeat(_Message):
    """A rank's last sign of life."""

    rank: int
    step: int
    phase: int
    age_s: float
    cpu_s: float
    stopped: bool


class NodeHeartbeats(_Message):
    """Those of a node's ranks, twice a second: also the agent's own sign of life."""

    kind: Literal["node_heartbeats"] = "node_heartbeats"
    heartbeats: tuple[RankHeartbeat, ...]


class ProcessEnded(_Message):
    """A process of the training ended; `rank` is -1 for those that are no ranks'."""

    kind: Literal["process_ended"] = "process_ended"
    name: str
    rank: int
    status: int
    log_tail: str


class MemoryExceeded(_Message):
    """The workers of this node hold more memory than its host has; `rank` is the biggest (-1: the
    server).
    """

    kind: Literal["memory_exceeded"] = "memory_exceeded"
    rank: int
    text: str


class NodeSample(_Message):
    """What a node reports to the fidelity monitor once a second during training: a `Sample` of the
    node's own clocks and its one host.

    Attributes:
        reference_ns: when.
        use: how the host has computed; None where nothing limits it, as `share` and `mechanism` are
            then.
    """

    kind: Literal["node_sample"] = "node_sample"
    reference_ns: int
    at_ns: int
    wall_ns: int
    awake_ns: int
    stolen_ns: dict[int, int]
    use: HostUse | None
    share: float | None
    mechanism: Mechanism | None


class LogChunk(_Message):
    """What was added to a log."""

    kind: Literal["log_chunk"] = "log_chunk"
    name: str
    text: str


class AgentFailed(_Message):
    """The agent itself cannot go on."""

    kind: Literal["agent_failed"] = "agent_failed"
    error: str


ControllerMessage = Annotated[
    AgentRequest | KeepAlive | BarrierUpdate | ProgressUpdate,
    Field(discriminator="kind"),
]
AgentMessage = Annotated[
    AgentReply
    | AgentStarted
    | ImportsDone
    | RankReady
    | FirstStepBegan
    | TrainingDone
    | TrainingProgress
    | NodeHeartbeats
    | ProcessEnded
    | MemoryExceeded
    | NodeSample
    | LogChunk
    | AgentFailed
    | BarrierUpdate
    | ProgressUpdate,
    Field(discriminator="kind"),
]

_controller_messages: TypeAdapter[ControllerMessage] = TypeAdapter(ControllerMessage)
_agent_messages: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)


def format_line(message: BaseModel) -> str:
    """A message as a line of ASCII, which survives being cut into pieces anywhere."""
    return json.dumps(message.model_dump(mode="json"))


def parse_controller_message(line: str) -> ControllerMessage:
    """A line that the controller wrote, as its message; pydantic's ValidationError for anything
    else.
    """
    return _controller_messages.validate_json(line)


def parse_agent_message(line: str) -> AgentMessage:
    """A line that an agent wrote, as its message; pydantic's ValidationError for anything else."""
    return _agent_messages.validate_json(line)
