"""Relay of the progress board, and of parts of snapshots, between the machines of a training.

The coordinator's machine needs the progress of all ranks and their parts. The other machines need
the coordinator's requests and the end of training. Every machine needs the sessions that ended and
the stages of the training's end. Times in updates are in the reference clock, as in
barrier_relay.py.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from laggard.core.node_values import Count, NodeMessage, Number, Rank
from laggard.workloads.coordination.barrier_relay import ClockMap
from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.coordination.start_barrier import Reason
from laggard.workloads.output.worker_output import WorkerOutputDir

COUNTED_EVERY_S = 0.02
"""Seconds between two reports of a machine's progress. The interval limits the load on the
controller, to which a hundred machines may report."""

PIECE_BYTES = 96 << 10
"""Bytes of a part that are sent at a time; updates of barriers and clocks are sent between two
pieces."""

_PIECE_CHARACTERS = PIECE_BYTES // 3 * 4
"""Length of a piece in base64; its bytes are a multiple of three."""


def _require_piece(content: str) -> str:
    b64decode(content, validate=True)
    return content


class Counted(NodeMessage):
    """Progress of a rank: numbers of finished steps and of samples trained on."""

    kind: Literal["counted"] = "counted"
    rank: Rank
    samples: Count
    steps: Count


class PartPiece(NodeMessage):
    """Next bytes (base64) of a rank's part of a snapshot."""

    kind: Literal["part_piece"] = "part_piece"
    rank: Rank
    number: Count
    content: Annotated[str, Field(max_length=_PIECE_CHARACTERS), AfterValidator(_require_piece)]
    last: bool


class PartGiven(NodeMessage):
    """End of a rank's part of a snapshot, sent after its last piece.

    The part was valid at `time_ns` (reference clock).
    """

    kind: Literal["part_given"] = "part_given"
    rank: Rank
    number: Count
    time_ns: Number


class SessionBegan(NodeMessage):
    """Begin of a session of a rank that has joined."""

    kind: Literal["session_began"] = "session_began"
    rank: Rank
    session: Count


class SessionEnded(NodeMessage):
    """End of a rank's session."""

    kind: Literal["session_ended"] = "session_ended"
    rank: Rank
    session: Count


class StageReached(NodeMessage):
    """Stage of the training's end that a rank has reached."""

    kind: Literal["stage_reached"] = "stage_reached"
    rank: Rank
    stage: Count


class SnapshotRequested(NodeMessage):
    """Request of the coordinator for all ranks' parts of a snapshot."""

    kind: Literal["snapshot_requested"] = "snapshot_requested"
    number: Count


class TrainingOver(NodeMessage):
    """End of the training, as decided by the coordinator."""

    kind: Literal["training_over"] = "training_over"
    reason: Reason


ProgressUpdate = (
    Counted
    | PartPiece
    | PartGiven
    | SessionBegan
    | SessionEnded
    | StageReached
    | SnapshotRequested
    | TrainingOver
)
PROGRESS_UPDATE_TYPES = (
    Counted,
    PartPiece,
    PartGiven,
    SessionBegan,
    SessionEnded,
    StageReached,
    SnapshotRequested,
    TrainingOver,
)


class ProgressRelay:
    """Relay on one machine.

    Args:
        output_dir: output folder of this machine, with its progress board.
        world_size: number of ranks on all machines.
        ranks: ranks that run on this machine.
        to_reference: conversion from this machine's CLOCK_MONOTONIC to the reference clock, ns.
        to_local: the inverse conversion.
        has_coordinator: whether the coordinator runs on this machine.
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
        self._sessions = dict.fromkeys(self._ranks, 0)
        self._stages = dict.fromkeys(self._ranks, 0)
        self._steps = dict.fromkeys(self._ranks, 0)
        self._given = dict.fromkeys(self._ranks, 0)
        self._pending_parts: deque[Iterator[ProgressUpdate]] = deque()
        self._counted_s = 0.0
        self._requested_snapshots, self._is_over = 0, False

    def poll_updates(self) -> Iterator[ProgressUpdate]:
        """Yield the changes of this machine's board since the last call, for other machines.

        Each call yields at most one piece of a part.
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
        for rank, known in self._sessions.items():
            session = self._progress_board.session(rank)
            if session > known:
                self._sessions[rank] = session
                yield SessionBegan(rank=rank, session=session)
        for rank, known in self._stages.items():
            stage = self._progress_board.stage(rank)
            if stage > known:
                self._stages[rank] = stage
                yield StageReached(rank=rank, stage=stage)

    def _list_coordinator_updates(self) -> Iterator[ProgressUpdate]:
        """Yield the coordinator's requests and its end of the training."""
        # The order matters: a rank that closes gives the snapshot after the last requested one, so
        # it must learn of that request before it learns of the end.
        reason, requested = self._progress_board.ended, self._progress_board.requested_snapshots
        if requested > self._requested_snapshots:
            self._requested_snapshots = requested
            yield SnapshotRequested(number=requested)
        if reason and not self._is_over:
            self._is_over = True
            yield TrainingOver(reason=reason)

    def _list_updates_for_coordinator(self) -> Iterator[ProgressUpdate]:
        """Yield the progress of this machine's ranks, and the next piece of their parts."""
        now_s = time.monotonic()
        if now_s - self._counted_s >= COUNTED_EVERY_S:
            self._counted_s = now_s
            yield from self._list_counts()
        for rank, known in self._given.items():
            number, given_ns = self._progress_board.given(rank), self._progress_board.given_ns(rank)
            if number > known:
                self._given[rank] = number
                # A rank that has joined owes no snapshots of before, and has no parts of them.
                if not self._output_dir.part(number, rank).exists():
                    continue
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
        """Cut a part into pieces, remove its file and announce that it is complete."""
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
        """End the session of a rank of this machine that was killed.

        If training is over already, its peers do not report the loss.
        """
        self._progress_board.leave(rank, self._progress_board.session(rank))

    def apply_update(self, update: ProgressUpdate) -> None:
        """Write an update of another machine into this board."""
        if isinstance(update, Counted):
            self._progress_board.count(update.rank, update.samples, update.steps)
        elif isinstance(update, PartPiece):
            self._store_piece(update)
        elif isinstance(update, PartGiven):
            self._progress_board.give(update.rank, update.number, self._to_local(update.time_ns))
        elif isinstance(update, SessionBegan):
            self._progress_board.join(update.rank, update.session)
        elif isinstance(update, SessionEnded):
            self._progress_board.leave(update.rank, update.session)
            # Without this line, `poll_updates` would send the update back to the other machines.
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
        """Append a piece to the file of a part, which gets its final name with the last piece."""
        whole = self._output_dir.part(piece.number, piece.rank)
        partial = whole.with_name(f".{whole.name}.coming")
        with partial.open("ab") as file:
            file.write(b64decode(piece.content))
        if piece.last:
            partial.rename(whole)


class ProgressHub:
    """Router of progress updates between machines; pure.

    Args:
        machines: all machines of the training.
        coordinator: machine of the coordinator.
    """

    def __init__(self, machines: Sequence[str], coordinator: str) -> None:
        self._machines, self._coordinator = tuple(machines), coordinator

    def route(self, source: str, update: ProgressUpdate) -> tuple[str, ...]:
        """Return the machines that must receive an update."""
        if isinstance(update, Counted | PartPiece | PartGiven):
            return (self._coordinator,) if source != self._coordinator else ()
        return tuple(machine for machine in self._machines if machine != source)
