"""Interface of client selection: what is known of clients, and who takes part in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class ClientCandidate:
    """Client that could take part in the next round.

    Attributes:
        client: number of the client.
        samples: samples that it trains on in a round.
        predicted_s: predicted seconds from the departure of the model to the arrival of the answer.
        energy_j: predicted energy of a round in joules; None if it is not known.
        price: price of a round; None if there is none.
    """

    client: int
    samples: int
    predicted_s: float
    energy_j: float | None = None
    price: float | None = None

    @property
    def is_eligible(self) -> bool:
        """Return whether the client has samples and is expected to answer at all."""
        return self.samples > 0 and 0 < self.predicted_s < math.inf


Outcome = Literal["accepted", "late", "failed"]
"""What became of a client's answer: it is part of the model, it came too late, or it never came
or could not be used."""


@dataclass(frozen=True)
class ClientResult:
    """Result of a client in a round.

    Attributes:
        client: number of the client.
        outcome: what became of its answer.
        duration_s: seconds from the departure of the model to the arrival of the answer, or to the
            end of the round if it had not arrived.
        utility: statistical utility of its samples (see `compute_statistical_utility`); None if
            nothing was answered.
    """

    client: int
    outcome: Outcome
    duration_s: float
    utility: float | None = None

    @property
    def is_failure(self) -> bool:
        """Return whether it failed, or answered with a number that is infinite, negative or NaN.

        An answer that comes too late is no failure.
        """
        numbers = (self.duration_s, self.utility or 0.0)
        return self.outcome == "failed" or not all(0 <= number < math.inf for number in numbers)


@dataclass(frozen=True)
class ClientChoice:
    """Client that takes part in a round, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class ClientSelection:
    """Clients that take part in a round.

    Attributes:
        choices: the clients, in the order in which they were chosen.
        missing: number of clients that were asked for and could not be had.
    """

    choices: tuple[ClientChoice, ...]
    missing: int = 0

    @property
    def clients(self) -> tuple[int, ...]:
        """Numbers of the clients."""
        return tuple(choice.client for choice in self.choices)


class ClientSelector(Protocol):
    """ClientSelection of the clients of one training, round after round."""

    def report(self, result: ClientResult) -> None:
        """Take note of what became of a client in the round that was selected last."""

    def select(self, candidates: Sequence[ClientCandidate], count: int) -> ClientSelection:
        """Begin the next round and select so many clients of those that are available now.

        Fewer are selected if fewer are eligible, and none if none is.
        """


def compute_statistical_utility(losses: Sequence[float]) -> float:
    """Return the statistical utility of a client's samples: n sqrt(sum of squared losses / n).

    It stands for the norm of their gradients (Lai et al., OSDI 2021, section 4.2).

    Args:
        losses: loss of each sample before the client trained on it.

    Examples:
        >>> compute_statistical_utility([2.0, 2.0, 2.0])
        6.0
    """
    if not losses:
        return 0.0
    squares = math.fsum(loss * loss for loss in losses)
    return len(losses) * math.sqrt(squares / len(losses))
