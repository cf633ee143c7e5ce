"""Progress board: shared memory of the ranks without a server and their training coordinator.

It lies outside the continuum's network and clock. The coordinator (training_coordinator.py) runs
in the evaluator's process. It counts samples, requests snapshots of all ranks' models, and ends
training.

If the ranks run on several machines, each machine has a progress board, and a relay
(progress_relay.py) copies changes between them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from laggard.workloads.coordination.start_barrier import Reason
from laggard.workloads.tracing.heartbeat import map_file

_WORDS = 8
_REQUESTED, _REASON = range(2)
# `_LEFT` is the number of ended sessions. A rank is present if its session's number is at least
# that.
_SAMPLES, _STEPS, _GIVEN, _GIVEN_NS, _SESSION, _LEFT, _STAGE = range(7)


class ProgressBoard:
    """Progress board of one training.

    Args:
        path: file behind the shared memory.
        world_size: number of ranks.
    """

    def __init__(self, path: Path, world_size: int) -> None:
        self._map = map_file(path, (1 + world_size) * _WORDS * 8)
        words = np.frombuffer(self._map, dtype=np.int64).reshape(1 + world_size, _WORDS)
        self._head, self._ranks = words[0], words[1:]

    def add(self, rank: int, samples: int) -> None:
        """Count a finished step of a rank, and the samples that it trained on."""
        self._ranks[rank, _SAMPLES] += samples
        self._ranks[rank, _STEPS] += 1

    def count(self, rank: int, samples: int, steps: int) -> None:
        """Set the progress of a rank on another machine."""
        self._ranks[rank, _SAMPLES], self._ranks[rank, _STEPS] = samples, steps

    def samples_of(self, rank: int) -> int:
        """Return the number of samples that a rank has trained on."""
        return int(self._ranks[rank, _SAMPLES])

    @property
    def samples(self) -> int:
        """Number of samples that all ranks together have trained on."""
        return int(self._ranks[:, _SAMPLES].sum())

    def steps(self, rank: int) -> int:
        """Return the number of steps that a rank has finished."""
        return int(self._ranks[rank, _STEPS])

    def leave(self, rank: int, session: int = 0) -> None:
        """Mark a rank's session as ended, so that nothing is expected of it.

        A later session may have begun already; it stays valid.
        """
        self._ranks[rank, _LEFT] = max(self._ranks[rank, _LEFT], session + 1)

    def sessions_over(self, rank: int) -> int:
        """Return the number of a rank's sessions that have ended."""
        return int(self._ranks[rank, _LEFT])

    def join(self, rank: int, session: int) -> None:
        """Begin a session of a rank; snapshots requested before are not expected of it.

        Args:
            rank: number of the rank.
            session: number of the session; 0 if present when training begins, and one more for
                each join.
        """
        self._ranks[rank, _GIVEN] = self.requested_snapshots
        self._ranks[rank, _SESSION] = session

    def session(self, rank: int) -> int:
        """Return the number of a rank's last session."""
        return int(self._ranks[rank, _SESSION])

    @property
    def _is_present(self) -> npt.NDArray[np.bool_]:
        there: npt.NDArray[np.bool_] = self._ranks[:, _SESSION] >= self._ranks[:, _LEFT]
        return there

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks whose last session has not ended."""
        return tuple(int(rank) for rank in np.flatnonzero(self._is_present))

    @property
    def requested_snapshots(self) -> int:
        """Number of snapshots that the coordinator has requested."""
        return int(self._head[_REQUESTED])

    def request_snapshot(self) -> int:
        """Request one more snapshot from all ranks and return its number, from 1."""
        self._head[_REQUESTED] += 1
        return self.requested_snapshots

    def record_requested(self, number: int) -> None:
        """Set the number of snapshots that a coordinator on another machine has requested."""
        self._head[_REQUESTED] = number

    def given(self, rank: int) -> int:
        """Return the number of the last snapshot that a rank has given."""
        return int(self._ranks[rank, _GIVEN])

    def given_ns(self, rank: int) -> int:
        """Return the time at which a rank gave its last part."""
        return int(self._ranks[rank, _GIVEN_NS])

    def give(self, rank: int, number: int, now_ns: int) -> None:
        """Announce a rank's part of a snapshot, which was valid at `now_ns` (CLOCK_MONOTONIC)."""
        # The time comes first: readers take it as valid once the number has changed.
        self._ranks[rank, _GIVEN_NS] = now_ns
        self._ranks[rank, _GIVEN] = number

    def complete_ns(self, number: int) -> int | None:
        """Return the time of a snapshot's last part; None while a present rank's is missing."""
        there = self._ranks[self._is_present]
        if (there[:, _GIVEN] < number).any():
            return None
        return int(there[:, _GIVEN_NS].max(initial=0))

    def reach(self, rank: int, stage: int) -> None:
        """Set the stage of the training's end that a rank has reached."""
        self._ranks[rank, _STAGE] = stage

    def stage(self, rank: int) -> int:
        """Return the last stage of the training's end that a rank has reached."""
        return int(self._ranks[rank, _STAGE])

    def reached(self, stage: int) -> bool:
        """Return whether all present ranks have reached a stage."""
        there = self._ranks[self._is_present]
        return bool((there[:, _STAGE] >= stage).all())

    def end(self, reason: Reason) -> None:
        """End the training."""
        self._head[_REASON] = reason

    @property
    def ended(self) -> Reason:
        """Reason for the end of training; NONE while it continues."""
        return Reason(int(self._head[_REASON]))
