"""What ranks without a server tell their coordinator, and what it tells them: shared memory,
outside the continuum's network and clock.

The coordinator (training_coordinator.py) is the evaluator's process. It counts samples, asks for
snapshots of all ranks' models, and says when training is over. Where ranks live on several
machines, each machine has such a memory, and a relay (progress_relay.py) carries what is written
into one over to the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from laggard.workloads.coordination.start_barrier import Reason
from laggard.workloads.tracing.heartbeat import map_file

_WORDS = 8
_REQUESTED, _REASON = range(2)
_SAMPLES, _STEPS, _GIVEN, _GIVEN_NS, _SESSION, _LEFT, _STAGE = range(7)


class ProgressBoard:
    """The shared memory of one training.

    Args:
        path: the file behind it.
        world_size: number of ranks.
    """

    def __init__(self, path: Path, world_size: int) -> None:
        self._map = map_file(path, (1 + world_size) * _WORDS * 8)
        words = np.frombuffer(self._map, dtype=np.int64).reshape(1 + world_size, _WORDS)
        self._head, self._ranks = words[0], words[1:]

    def add(self, rank: int, samples: int) -> None:
        """A rank has finished a step and trained on so many samples."""
        self._ranks[rank, _SAMPLES] += samples
        self._ranks[rank, _STEPS] += 1

    def count(self, rank: int, samples: int, steps: int) -> None:
        """Put down how far a rank of another machine is."""
        self._ranks[rank, _SAMPLES], self._ranks[rank, _STEPS] = samples, steps

    def samples_of(self, rank: int) -> int:
        """Number of samples that a rank has trained on."""
        return int(self._ranks[rank, _SAMPLES])

    @property
    def samples(self) -> int:
        """Number of samples that all ranks together have trained on."""
        return int(self._ranks[:, _SAMPLES].sum())

    def steps(self, rank: int) -> int:
        """Number of steps that a rank has finished."""
        return int(self._ranks[rank, _STEPS])

    def leave(self, rank: int, session: int = 0) -> None:
        """A rank's session is over: nothing is expected of it, until another begins. That one may
        have begun by now, and stays.
        """
        self._ranks[rank, _LEFT] = max(self._ranks[rank, _LEFT], session + 1)

    def sessions_over(self, rank: int) -> int:
        """Number of a rank's sessions that are over."""
        return int(self._ranks[rank, _LEFT])

    def join(self, rank: int, session: int) -> None:
        """A rank is there, after all or again; snapshots asked for before are not expected of it.

        Args:
            rank: which.
            session: 0 of those that are there when training begins, and more each time that a rank
                joins.
        """
        self._ranks[rank, _GIVEN] = self.requested_snapshots
        self._ranks[rank, _SESSION] = session

    def session(self, rank: int) -> int:
        """A rank's last."""
        return int(self._ranks[rank, _SESSION])

    @property
    def _is_present(self) -> npt.NDArray[np.bool_]:
        there: npt.NDArray[np.bool_] = self._ranks[:, _SESSION] >= self._ranks[:, _LEFT]
        return there

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks that are not gone."""
        return tuple(int(rank) for rank in np.flatnonzero(self._is_present))

    @property
    def requested_snapshots(self) -> int:
        """Number of snapshots that the coordinator has asked for."""
        return int(self._head[_REQUESTED])

    def request_snapshot(self) -> int:
        """Ask all ranks for one more snapshot; returns its number, from 1."""
        self._head[_REQUESTED] += 1
        return self.requested_snapshots

    def record_requested(self, number: int) -> None:
        """Put down what the coordinator, on another machine, has asked for."""
        self._head[_REQUESTED] = number

    def given(self, rank: int) -> int:
        """Number of the last snapshot that a rank has given."""
        return int(self._ranks[rank, _GIVEN])

    def given_ns(self, rank: int) -> int:
        """Time at which the part was given."""
        return int(self._ranks[rank, _GIVEN_NS])

    def give(self, rank: int, number: int, now_ns: int) -> None:
        """A rank's part of a snapshot is there for the coordinator to read, as it was at `now_ns`
        (CLOCK_MONOTONIC).
        """
        self._ranks[rank, _GIVEN_NS] = now_ns
        self._ranks[rank, _GIVEN] = number

    def complete_ns(self, number: int) -> int | None:
        """When the last of those that are there gave its part of a snapshot; None while one is
        missing.
        """
        there = self._ranks[self._is_present]
        if (there[:, _GIVEN] < number).any():
            return None
        return int(there[:, _GIVEN_NS].max(initial=0))

    def reach(self, rank: int, stage: int) -> None:
        """A rank has come to a stage of the training's end."""
        self._ranks[rank, _STAGE] = stage

    def stage(self, rank: int) -> int:
        """The last that it has come to."""
        return int(self._ranks[rank, _STAGE])

    def reached(self, stage: int) -> bool:
        """Return whether all present ranks have reached the stage."""
        there = self._ranks[self._is_present]
        return bool((there[:, _STAGE] >= stage).all())

    def end(self, reason: Reason) -> None:
        """The coordinator ends the training."""
        self._head[_REASON] = reason

    @property
    def ended(self) -> Reason:
        """Why training is over; NONE while it is not."""
        return Reason(int(self._head[_REASON]))
