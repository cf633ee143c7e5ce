"""Gradients that a parameter server receives, and its reactions: updates and answers; pure.

A worker's clock is the number of the step that it is in. The worker pushes the gradient of its
clock, then waits for an answer: the model and its next clock. A rule receives the pushes one after
another. It decides which gradients become updates and which workers are answered. Workers may
leave and join again. A joining worker waits for an answer, too, which contains the current model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from laggard.core.run_schema import RoundResult
from laggard.core.span_schema import NOBODY


@dataclass(frozen=True)
class Push:
    """Gradient of one worker.

    Attributes:
        rank: number of the worker.
        clock: clock that the gradient was computed in.
        samples: samples that the gradient sums.
        batch_size: samples in the whole batch of that clock.
        rehearsed: samples that are old ones of a stream.
        took_s: seconds since the worker was answered, if a client of a federated training pushes.
        utility: statistical utility of its samples, if such a client pushes.
        clipped: whether its change of the model was too long and was shortened.
    """

    rank: int
    clock: int
    samples: int
    batch_size: int
    rehearsed: int = 0
    took_s: float = 0.0
    utility: float = 0.0
    clipped: bool = False


@dataclass(frozen=True)
class Update:
    """Gradients of one clock that together make one step of the optimizer.

    Attributes:
        pushes: the gradients, in the order in which they are summed.
        fraction: part of a whole step, by which the step size is scaled.
        number: number of the update, if its gradients may be of several clocks; None if they are of
            one, which is then its number.
        discounts: factor of each gradient, by the worker's number; 1 for those left out.
    """

    pushes: tuple[Push, ...]
    fraction: float
    number: int | None = None
    discounts: Mapping[int, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples of all its gradients."""
        return sum(push.samples for push in self.pushes)

    @property
    def new_samples(self) -> int:
        """Number of samples of all its gradients, without old ones of a stream."""
        return sum(push.samples - push.rehearsed for push in self.pushes)

    @property
    def clock(self) -> int:
        """Clock of its gradients, or its number."""
        return self.pushes[0].clock if self.number is None else self.number


@dataclass(frozen=True)
class ServerReply:
    """Answer that lets a worker continue.

    Attributes:
        rank: number of the worker.
        clock: next clock of the worker.
        waited_for: rank whose push or loss released this answer; -1 if it was the worker itself.
        skipped: number of steps that the worker skips.
    """

    rank: int
    clock: int
    waited_for: int = NOBODY
    skipped: int = 0


@dataclass(frozen=True)
class Reaction:
    """Reaction to one push: updates in this order, then answers.

    Attributes:
        updates: updates of the model.
        replies: answers to workers.
        dropped: gradients that become part of no update, of workers that are not answered now.
        ended: round of a federated training that ended; None if none did.
    """

    updates: tuple[Update, ...] = ()
    replies: tuple[ServerReply, ...] = ()
    dropped: tuple[Push, ...] = ()
    ended: RoundResult | None = None


class ServerUpdateRule(Protocol):
    """Rule of a server, as a state machine."""

    def push(self, push: Push) -> Reaction:
        """Handle the gradient of a worker."""

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a worker that is gone; its earlier pushes still count."""

    def add_member(self, rank: int) -> Reaction:
        """Add a worker that joins again.

        The worker is answered now or later, with a clock that it has never pushed before.
        """
