"""Predicted seconds, energy and price of a client's round, before it has taken part in one.

A client computes in proportion to its samples, divided by its share of a core, and sends and gets
a model over its links. The seconds of a sample on a whole core are the median of those that other
clients' rounds show; before any has answered, they are a usual value, so only the differences
between clients have a meaning.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USUAL_SAMPLE_S = 1e-3
"""Seconds of a sample on a whole core, as long as no round is known."""

_HOUR_S = 3600.0


@dataclass(frozen=True)
class ClientProfile:
    """Properties of a client that are known before training.

    Attributes:
        share: share of a core that it computes with.
        down_mbps: rate from the server to it in Mbit/s; None if it is not limited.
        up_mbps: rate from it to the server in Mbit/s; None if it is not limited.
        delay_s: delay of the way there and back.
        sample_j: energy that training on a sample takes, in joules; None if it is not given.
        hour_price: price of an hour of its host; None if it is not given.
    """

    share: float = 1.0
    down_mbps: float | None = None
    up_mbps: float | None = None
    delay_s: float = 0.0
    sample_j: float | None = None
    hour_price: float | None = None


@dataclass(frozen=True)
class RoundForecast:
    """Forecast of the rounds of all clients.

    Attributes:
        profiles: properties of each client.
        round_samples: samples that each client computes in a round, all passes over them counted.
        model_bytes: size of the model.
    """

    profiles: Sequence[ClientProfile]
    round_samples: Sequence[int]
    model_bytes: float

    def predict(self, known_s: Mapping[int, float]) -> Sequence[float]:
        """Return the seconds of a round of each client.

        Args:
            known_s: seconds of the last round of each client that has answered.
        """
        sample_s = self._estimate_sample_s(known_s)
        return [
            known_s[client]
            if client in known_s
            else self._compute_link_s(client) + sample_s * self._count_core_samples(client)
            for client in range(len(self.profiles))
        ]

    def compute_energy_j(self, client: int) -> float | None:
        """Return the energy of a client's round in joules; None if it is not known."""
        sample_j = self.profiles[client].sample_j
        return None if sample_j is None else sample_j * self.round_samples[client]

    def compute_price(self, client: int, seconds: float) -> float | None:
        """Return the price of so many seconds of a client's host; None if it is not known."""
        price = self.profiles[client].hour_price
        return None if price is None else price * seconds / _HOUR_S

    def _estimate_sample_s(self, known_s: Mapping[int, float]) -> float:
        found = [
            max(seconds - self._compute_link_s(client), 0.0) / work
            for client, seconds in known_s.items()
            if (work := self._count_core_samples(client)) > 0
        ]
        return statistics.median(found) if found else USUAL_SAMPLE_S

    def _count_core_samples(self, client: int) -> float:
        """Return the samples of a round that a whole core would compute in the same time."""
        return self.round_samples[client] / self.profiles[client].share

    def _compute_link_s(self, client: int) -> float:
        profile = self.profiles[client]
        rates = (profile.down_mbps, profile.up_mbps)
        s_per_bit = sum(1e-6 / rate for rate in rates if rate is not None)
        return profile.delay_s + 8 * self.model_bytes * s_per_bit
