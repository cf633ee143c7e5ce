"""Arrival of one rank's samples: a step begins when all its new samples are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from laggard.core.rules.arrivals import ArrivalRule
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.specification.stream import StreamSpec

_POLL_S = 0.1


@dataclass
class SampleArrivals:
    """Arrival of the samples of one rank, in the training's time.

    Attributes:
        rule: pace at which they arrive.
        partition: new samples of all ranks and steps.
        rank: the rank.
        dilation: real seconds per virtual second.
        read_paused_ns: function that returns for how long the training's clock has stood still.
        zero_ns: time at which the training began, CLOCK_MONOTONIC.
    """

    rule: ArrivalRule
    partition: Partition
    rank: int
    dilation: float
    read_paused_ns: Callable[[], int]
    zero_ns: int = 0
    _next_step: int = 0
    _samples: int = 0

    def wait(self, step: int, signal_alive: Callable[[], None]) -> None:
        """Wait until the samples of a step and of all earlier ones have arrived.

        Args:
            step: step that is about to begin.
            signal_alive: function that is called while the rank waits.
        """
        while self._next_step <= step:
            self._samples += len(self.partition.share(self._next_step, self.rank).indices)
            self._next_step += 1
        arrival_ns = int(self.rule.find_time_s(self._samples) * self.dilation * 1e9)
        while True:
            due_ns = self.zero_ns + self.read_paused_ns() + arrival_ns
            left_s = (due_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            time.sleep(min(left_s, _POLL_S))
            signal_alive()


def find_arrival_rule(stream: StreamSpec | None, layer: str) -> ArrivalRule | None:
    """Return the pace at which samples arrive in a layer; None if they are there from the start."""
    spec = None if stream is None else stream.arrivals.get(layer)
    return None if spec is None else ArrivalRule(spec.rate, spec.burst, spec.every_s)
