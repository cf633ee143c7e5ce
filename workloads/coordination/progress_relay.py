"""Carries the progress board of one machine's shared memory, and parts of snapshots, to and from
the other machines of a training.

The coordinator's machine must see how far all ranks are, and have their parts; the others must see
what the coordinator asks for and that training is over. Who is gone, and who has come to the
training's end, everybody must know. What crosses is told in the time of one reference clock, as
barriers are (barrier_relay.py).
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from laggard.workloads.coordination.barrier_relay import ClockMap
from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.coordination.start_barrier import Reason
from laggard.workloads.output.worker_output import WorkerOutputDir

COUNTED_EVERY_S = 0.02
"""How seldom a machine tells how far its ranks are: a hundred machines tell it all to one
controller."""

PIECE_BYTES = 96 << 10
"""Of a part, at a time: barriers and clocks have their turn between two."""


class _ProgressMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Counted(_ProgressMessage):
    """Numbers of steps that a rank has finished and of samples that it has trained on."""

    kind: Literal["counted"] = "counted"
    rank: int
    samples: int
    steps: int


class PartPiece(_ProgressMessage):
    """The next bytes (base64) of a rank's part of a snapshot."""

    kind: Literal["part_piece"] = "part_piece"
    rank: int
    number: int
    content: str
    last: bool


class PartGiven(_ProgressMessage):
    """A rank's part of a snapshot is whole, as it was at `time_ns` (reference clock); after its
    last piece.
    """

    kind: Literal["part_given"] = "part_given"
    rank: int
    number: int
    time_ns: int


class SessionEnded(_ProgressMessage):
    """A rank's session is over."""

    kind: Literal["session_ended"] = "session_ended"
    rank: int
    session: int


class StageReached(_ProgressMessage):
    """A rank has come to a stage of the training's end."""

    kind: Literal["stage_reached"] = "stage_reached"
    rank: int
    stage: int


class SnapshotRequested(_ProgressMessage):
    """The coordinator wants all ranks' parts of a snapshot."""

    kind: Literal["snapshot_requested"] = "snapshot_requested"
    number: int


class TrainingOver(_ProgressMessage):
    """The coordinator has ended the training."""

    kind: Literal["training_over"] = "training_over"
    reason: Reason


ProgressUpdate = (
    Counted | PartPiece | PartGiven | SessionEnded | StageReached | SnapshotRequested | TrainingOver
)
PROGRESS_UPDATE_TYPES = (
    Counted,
    PartPiece,
    PartGiven,
    SessionEnded,
    StageReached,
    SnapshotRequested,
    TrainingOver,
)


class ProgressRelay:
    """One machine's end.

    Args:
        output_dir: its folder, with its progress board.
        world_size: number of ranks, of all machines.
        ranks: those that run on it.
        to_reference: from its CLOCK_MONOTONIC to the reference clock, ns.
        to_local: and back.
        has_coordinator: whether the coordinator runs on it.
    """

    def __init__(
        self,
        output_dir: WorkerOutputDir,
        world_size: int,
        ranks: Sequence[int],
        to_reference: ClockMap,
        to_local: ClockMap,
        *,
        has_coordinator: bool,
    ) -> None:
        self._output_dir, self._progress_board, self._ranks = (
            output_dir,
            ProgressBoard(output_dir.progress_board, world_size),
            tuple(ranks),
        )
        self._to_reference, self._to_local, self._has_coordinator = (
            to_reference,
            to_local,
            has_coordinator,
        )
        self._sessions_over = dict.fromkeys(range(world_size), 0)
        self._stages = dict.fromkeys(self._ranks, 0)
        self._steps = dict.fromkeys(self._ranks, 0)
        self._given = dict.fromkeys(self._ranks, 0)
        self._pending_parts: deque[Iterator[ProgressUpdate]] = deque()
        self._counted_s = 0.0
        self._requested_snapshots, self._is_over = 0, False

    def poll_updates(self) -> Iterator[ProgressUpdate]:
        """What was written into this memory since the last call, and others must know; of a part,
        one piece at a time.
        """
        if self._has_coordinator:
            yield from self._list_coordinator_updates()
        else:
            yield from self._list_updates_for_coordinator()
        for rank, known in self._sessions_over.items():
            over = self._progress_board.sessions_over(rank)
            if over > known:
                self._sessions_over[rank] = over
                yield SessionEnded(rank=rank, session=over - 1)
        for rank, known in self._stages.items():
            stage = self._progress_board.stage(rank)
            if stage > known:
                self._stages[rank] = stage
                yield StageReached(rank=rank, stage=stage)

    def _list_coordinator_updates(self) -> Iterator[ProgressUpdate]:
        # Read in this order: who closes gives the snapshot after the last that was requested, and
        # must have heard of that one.
        reason, requested = self._progress_board.ended, self._progress_board.requested_snapshots
        if requested > self._requested_snapshots:
            self._requested_snapshots = requested
            yield SnapshotRequested(number=requested)
        if reason and not self._is_over:
            self._is_over = True
            yield TrainingOver(reason=reason)

    def _list_updates_for_coordinator(self) -> Iterator[ProgressUpdate]:
        now_s = time.monotonic()
        if now_s - self._counted_s >= COUNTED_EVERY_S:
            self._counted_s = now_s
            yield from self._list_counts()
        for rank, known in self._given.items():
            number, given_ns = self._progress_board.given(rank), self._progress_board.given_ns(rank)
            if number > known:
                self._given[rank] = number
                self._pending_parts.append(self._cut_part(rank, number, given_ns))
        if self._pending_parts:
            piece = next(self._pending_parts[0], None)
            if piece is None:
                self._pending_parts.popleft()
            else:
                yield piece

    def _list_counts(self) -> Iterator[Counted]:
        for rank, known in self._steps.items():
            samples, steps = self._progress_board.samples_of(rank), self._progress_board.steps(rank)
            if steps > known:
                self._steps[rank] = steps
                yield Counted(rank=rank, samples=samples, steps=steps)

    def _cut_part(self, rank: int, number: int, given_ns: int) -> Iterator[ProgressUpdate]:
        path = self._output_dir.part(number, rank)
        with path.open("rb") as part:
            piece = part.read(PIECE_BYTES)
            while piece:
                following = part.read(PIECE_BYTES)
                content = b64encode(piece).decode()
                yield PartPiece(rank=rank, number=number, content=content, last=not following)
                piece = following
        path.unlink()
        yield PartGiven(rank=rank, number=number, time_ns=self._to_reference(given_ns))

    def remove_rank(self, rank: int) -> None:
        """A rank of this machine was killed: where training is over already, its peers do not
        tell.
        """
        self._progress_board.leave(rank, self._progress_board.session(rank))

    def apply_update(self, update: ProgressUpdate) -> None:
        """Write what another machine's memory says into this one."""
        if isinstance(update, Counted):
            self._progress_board.count(update.rank, update.samples, update.steps)
        elif isinstance(update, PartPiece):
            self._store_piece(update)
        elif isinstance(update, PartGiven):
            self._progress_board.give(update.rank, update.number, self._to_local(update.time_ns))
        elif isinstance(update, SessionEnded):
            self._progress_board.leave(update.rank, update.session)
            self._sessions_over[update.rank] = max(
                self._sessions_over[update.rank], update.session + 1
            )
        elif isinstance(update, StageReached):
            self._progress_board.reach(update.rank, update.stage)
        elif isinstance(update, SnapshotRequested):
            self._progress_board.record_requested(update.number)
        elif isinstance(update, TrainingOver):
            self._progress_board.end(update.reason)

    def _store_piece(self, piece: PartPiece) -> None:
        whole = self._output_dir.part(piece.number, piece.rank)
        partial = whole.with_name(f".{whole.name}.coming")
        with partial.open("ab") as file:
            file.write(b64decode(piece.content))
        if piece.last:
            partial.rename(whole)


class ProgressHub:
    """Decides which machine must hear which update; pure.

    Args:
        machines: all machines of the training.
        coordinator: the one that the coordinator runs on.
    """

    def __init__(self, machines: Sequence[str], coordinator: str) -> None:
        self._machines, self._coordinator = tuple(machines), coordinator

    def route(self, source: str, update: ProgressUpdate) -> tuple[str, ...]:
        """Return the machines that must receive the update."""
        if isinstance(update, Counted | PartPiece | PartGiven):
            return (self._coordinator,) if source != self._coordinator else ()
        return tuple(machine for machine in self._machines if machine != source)
