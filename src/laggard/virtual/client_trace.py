"""Trace of clients in virtual time: the spans and steps that clients of their own would record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from laggard.core.span_schema import NO_GROUP, NO_PEER, NOBODY, Lane, Phase
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.row_types import SPAN_ROW, STEP_ROW
from laggard.workloads.tracing.step_result import UNKNOWN
from laggard.workloads.tracing.stream import RowStream

_NS = 1e9


@dataclass
class ClientStep:
    """Round of a client, as it happens; times are virtual seconds.

    Attributes:
        rank: number of the client.
        step: number of the round.
        samples: samples of the client.
        begun_s: end of its step before, or 0.
        loaded_s: time at which it had the model; its first step waits for that.
        read_version: version of that model.
        computed_s: end of its computing.
        handled_s: time at which the server had handled its answer.
        loss: mean loss of its samples.
        applied_version: version of the model with its answer; -1 if it was dropped.
        evaluations: begin and end of each evaluation between its answer and the next model.
    """

    rank: int
    step: int
    samples: int
    begun_s: float
    loaded_s: float
    read_version: int
    computed_s: float = 0.0
    handled_s: float = 0.0
    loss: float = 0.0
    applied_version: int = UNKNOWN
    evaluations: tuple[tuple[float, float], ...] = ()


@dataclass
class ClientTrace:
    """Streams of all clients, in the format in which each would write its own.

    Attributes:
        output_dir: folder of the streams.
        message_bytes: bytes of a model.
        batch_size: samples of all clients.
        epochs: passes of a client over its samples.
        server: number of the server, which follows those of the clients.
    """

    output_dir: WorkerOutputDir
    message_bytes: int
    batch_size: int
    epochs: int
    server: int
    _spans: RowStream = field(init=False)
    _steps: RowStream = field(init=False)

    def __post_init__(self) -> None:
        self._spans = RowStream(self.output_dir.spans(0), SPAN_ROW)
        self._steps = RowStream(self.output_dir.steps(0), STEP_ROW)

    def finish_step(
        self, done: ClientStep, sent_s: float, ended_s: float, waited_for: int = NOBODY
    ) -> None:
        """Write a round whose answer was handled.

        Args:
            done: the round.
            sent_s: time at which the server sent the next model, or ended the training.
            ended_s: time at which the client had it.
            waited_for: client whose answer released it; -1 if it was the client itself.
        """
        for sequence, span in enumerate(self._list_spans(done, sent_s, ended_s, waited_for)):
            phase, start_s, end_s, peer, payload_bytes, work = span
            start_ns, end_ns = round(start_s * _NS), round(end_s * _NS)
            self._spans.append(
                (done.step, done.rank, Lane.MAIN, phase.code, sequence, start_ns, end_ns - start_ns,
                 NO_GROUP, peer, payload_bytes, work, 0)
            )  # fmt: skip
        is_applied = done.applied_version != UNKNOWN
        staleness = done.applied_version - 1 - done.read_version if is_applied else 0
        used, dropped = (done.samples, 0) if is_applied else (0, done.samples)
        self._steps.append(
            (done.step, done.rank, round(done.begun_s * _NS), round(ended_s * _NS), done.loss, used,
             self.batch_size, staleness, dropped, 0, done.read_version, done.applied_version,
             waited_for)
        )  # fmt: skip

    def _list_spans(
        self, done: ClientStep, sent_s: float, ended_s: float, waited_for: int
    ) -> Iterator[tuple[Phase, float, float, int, int, int]]:
        server, whole = self.server, self.message_bytes
        waits_for = waited_for if waited_for != NOBODY else server
        spans = (
            (Phase.COMM, done.begun_s, done.loaded_s, server, 0, 0),
            # Nothing tells the forward pass from the backward pass and the optimizer here.
            (Phase.FORWARD, done.loaded_s, done.computed_s, NO_PEER, 0, done.samples * self.epochs),
            (Phase.COMM, done.computed_s, done.handled_s, server, whole, 0),
            *_split_wait(done, sent_s, waits_for),
            (Phase.COMM, sent_s, ended_s, server, whole, 0),
        )
        return (each for each in spans if each[2] > each[1])

    def close(self) -> None:
        """Write what is left."""
        self._spans.close()
        self._steps.close()


def _split_wait(
    done: ClientStep, sent_s: float, waits_for: int
) -> Iterator[tuple[Phase, float, float, int, int, int]]:
    """Yield the wait of a client for its next model, and the evaluations that interrupt it."""
    since_s = done.handled_s
    for began_s, ended_s in done.evaluations:
        yield Phase.COMM, since_s, began_s, waits_for, 0, 0
        yield Phase.OTHER, began_s, ended_s, NO_PEER, 0, 0
        since_s = ended_s
    yield Phase.COMM, since_s, sent_s, waits_for, 0, 0
