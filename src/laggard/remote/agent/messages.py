"""Protocol between the controller and the agent on every node: one JSON object per line.

The controller writes an `AgentPlan`, then `AgentRequest`s, barrier and progress updates, and
`KeepAlive`. The agent answers every request by its number and sends the other messages without a
request. Times are in ns of the reference clock, the head's CLOCK_MONOTONIC; ages are in seconds.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
)

from laggard.core.emulated_drive import DriveLimits
from laggard.core.node_values import (
    LARGEST,
    Count,
    MessageText,
    NodeMessage,
    Number,
    Rank,
    Real,
    Scalar,
    ShortText,
    describe_invalid,
)
from laggard.layers_services.ssh.contained_files import require_contained_name
from laggard.network_emulation.compute import Mechanism
from laggard.network_emulation.compute.host_counters import HostUse
from laggard.workloads.coordination.barrier_relay import BarrierUpdate
from laggard.workloads.coordination.progress_relay import ProgressUpdate
from laggard.workloads.output.training_end import TrainingEnd
from laggard.workloads.plan import EvaluatorPlan, LinkSamplerPlan, ServerPlan, WorkerPlan
from laggard.workloads.tracing.heartbeat import PHASES

LOG_CHUNK_BYTES = 1 << 16
"""Most bytes of a log that one message carries."""

SENT_FILES = {"resume": "resumed.pt", "initial_weights": "initial_weights.pt"}
"""Names of the files of a workload that a node gets, in the run's folder there, by their keys."""

MOST_CHECKPOINT_BYTES = 64 << 30
"""Largest checkpoint that a node may announce."""

_MOST_RANKS_OF_NODE = 4096
_MOST_LINES = 10_000
_MOST_FIELDS = 50
_MOST_CORES = 8192
_Core = Annotated[int, Field(ge=0, le=_MOST_CORES)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentPlan(_Message):
    """First message to an agent: everything that its node does in the run.

    Attributes:
        host: name of the host that this node is.
        address: address of the node on the experiment network.
        folder: folder for the run's data on this node.
        workers: plans of this node's workers with their secret keys, and no other worker's; the
            agent finds their network interface.
        evaluator: plan of the evaluator, on one node only: the server's, or else the head.
        server: plan of the parameter server, on its node only and if the strategy has one.
        sampler: plan of the link sampler, for this node's connections; None without workers.
        share: fraction of one core that the workers get at the start; None if never limited.
        core: index of the core that the share applies to, modulo the number of usable cores.
        drive: limits of the host's drive at the start; None if never limited.
        most_lives: most processes that a rank of this node has, one after another: one more
            whenever it joins.
        memory_bytes: most memory that the host's workers may hold together; None for no limit.
        reference_address: address of the head, whose clock all clocks are compared with.
        lease_s: seconds of silence after which the agent assumes that the controller is dead.
    """

    kind: Literal["plan"] = "plan"
    host: str
    address: str
    folder: str
    workers: tuple[WorkerPlan, ...]
    evaluator: EvaluatorPlan | None
    server: ServerPlan | None = None
    sampler: LinkSamplerPlan | None = None
    share: float | None
    core: int
    drive: DriveLimits | None = None
    most_lives: int = 1
    memory_bytes: int | None = None
    reference_address: str
    lease_s: float = 60.0


class AgentRequest(_Message):
    """Request of the controller; an `AgentReply` with the same number answers it."""

    kind: Literal["request"] = "request"
    number: int
    operation: str
    argument: JsonValue = None


class KeepAlive(_Message):
    """Sign of life of the controller."""

    kind: Literal["keep_alive"] = "keep_alive"


class AgentReply(NodeMessage):
    """Reply to a request: its result, or the message of a LaggardError or OSError.

    The type of the result depends on the operation (`operations.py`).
    """

    kind: Literal["reply"] = "reply"
    number: Count
    result: JsonValue = None
    error: MessageText = ""


class AgentStarted(NodeMessage):
    """Report that the agent runs and has its plan."""

    kind: Literal["agent_started"] = "agent_started"
    host: ShortText
    pid: Count


class ImportsDone(NodeMessage):
    """Report that the modules that the workers need are imported."""

    kind: Literal["imports_done"] = "imports_done"
    import_s: Real


class RankReady(NodeMessage):
    """Report that a rank, or the server, is ready to train.

    A rank is ready when it is connected to the others. The server's number is the number of ranks.
    """

    kind: Literal["rank_ready"] = "rank_ready"
    rank: Rank


class FirstStepBegan(NodeMessage):
    """Report of the head that the first step began."""

    kind: Literal["first_step_began"] = "first_step_began"
    time_ns: Number


class CheckpointWritten(NodeMessage):
    """Report of the head that the training has a new checkpoint, of so many bytes."""

    kind: Literal["checkpoint_written"] = "checkpoint_written"
    size_bytes: Annotated[int, Field(strict=True, gt=0, le=MOST_CHECKPOINT_BYTES)]


class TrainingDone(NodeMessage):
    """Report of the evaluator's node that training has ended, with the content of `done.json`."""

    kind: Literal["training_done"] = "training_done"
    document: TrainingEnd


class TrainingProgress(NodeMessage):
    """New lines of `progress.jsonl`, from the evaluator's node."""

    kind: Literal["training_progress"] = "training_progress"
    lines: Annotated[
        tuple[Annotated[dict[ShortText, Scalar], Field(max_length=_MOST_FIELDS)], ...],
        Field(max_length=_MOST_LINES),
    ]


class RankHeartbeat(NodeMessage):
    """Last sign of life of one rank.

    Attributes:
        rank: number of the rank.
        step: step that the rank is in.
        phase: code of the phase that the rank is in.
        age_s: seconds since the rank entered the phase or signaled that it is alive.
        cpu_s: CPU seconds that the rank's process has used.
        stopped: whether the process is stopped by a signal.
    """

    rank: Rank
    step: Number
    phase: Annotated[int, Field(strict=True, ge=0, lt=len(PHASES))]
    age_s: Real
    cpu_s: Real
    stopped: bool


class NodeHeartbeats(NodeMessage):
    """Heartbeats of a node's ranks, twice a second; also the agent's own sign of life."""

    kind: Literal["node_heartbeats"] = "node_heartbeats"
    heartbeats: Annotated[tuple[RankHeartbeat, ...], Field(max_length=_MOST_RANKS_OF_NODE)]


class ProcessEnded(NodeMessage):
    """Report that a process of the training ended; `rank` is -1 if the process is not a rank."""

    kind: Literal["process_ended"] = "process_ended"
    name: ShortText
    rank: Rank
    status: Annotated[int, Field(strict=True, ge=-128, le=255)]
    log_tail: MessageText


class MemoryExceeded(NodeMessage):
    """Report that the workers of this node hold more memory than its host has.

    Attributes:
        rank: rank that holds the most; -1 for the server.
        text: message for the user.
    """

    kind: Literal["memory_exceeded"] = "memory_exceeded"
    rank: Rank
    text: MessageText


def _require_bounded_use(use: HostUse) -> HostUse:
    if any(abs(value) > LARGEST for value in (use.due_ns, use.lost_ns, use.owed_ns)):
        raise ValueError(f"computing times must be at most {LARGEST} ns")
    return use


class NodeSample(NodeMessage):
    """Sample for the fidelity monitor, once a second during training.

    It contains a `FidelitySample` of the node's own clocks and of its one host.

    Attributes:
        reference_ns: time of the sample, reference clock.
        use: CPU use of the host; None if the host is not limited, as are `share` and `mechanism`.
    """

    kind: Literal["node_sample"] = "node_sample"
    reference_ns: Number
    at_ns: Number
    wall_ns: Number
    awake_ns: Number
    stolen_ns: Annotated[dict[_Core, Number], Field(max_length=_MOST_CORES)]
    use: Annotated[HostUse, AfterValidator(_require_bounded_use)] | None
    share: Annotated[Real, Field(gt=0, le=_MOST_CORES)] | None
    mechanism: Mechanism | None


def _require_log_name(name: str) -> str:
    if "/" in name or not name.endswith(".log"):
        raise ValueError(f"{name[:100]!a} is not the name of a log")
    return require_contained_name(name)


class LogChunk(NodeMessage):
    """Text that was appended to a log file."""

    kind: Literal["log_chunk"] = "log_chunk"
    name: Annotated[str, AfterValidator(_require_log_name)]
    text: Annotated[str, Field(max_length=LOG_CHUNK_BYTES)]


class AgentFailed(NodeMessage):
    """Report that the agent itself failed and ends."""

    kind: Literal["agent_failed"] = "agent_failed"
    error: MessageText


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
    | CheckpointWritten
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
    """Format a message as one line of ASCII, which remains readable if it is cut anywhere."""
    return json.dumps(message.model_dump(mode="json"))


def parse_controller_message(line: str) -> ControllerMessage:
    """Parse a line that the controller wrote; raises pydantic's ValidationError if invalid."""
    return _controller_messages.validate_json(line)


def parse_agent_message(line: bytes) -> AgentMessage:
    """Parse a line that an agent wrote.

    Raises:
        ValueError: the line is not JSON, or not a message within the bounds of its type; the
            reason is one short line.
    """
    try:
        return _agent_messages.validate_json(line)
    except ValidationError as error:
        raise ValueError(describe_invalid(error)) from error
