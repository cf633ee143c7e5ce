"""Everything that strategies' rules are played with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laggard.analysis.replay.simulation.recorded_durations import RecordedDurations
from laggard.analysis.replay.simulation.simulated_network import SimulatedNetwork
from laggard.analysis.replay.simulation.training_work import TrainingWork

PACKING_S_PER_MB = 0.9e-3
"""CPU seconds at full speed for which a megabyte occupies its sender, and as long its receiver: it
is sealed, written, read, and opened (ZeroMQ with CURVE). On the machine that docs/what_if.md tells
of 0.94 and 0.76 ms of 0.56 MB, and 0.87 and 0.88 ms of 5.4 MB."""

APPLYING_S_PER_MB = 0.4e-3
"""CPU seconds at full speed of a server's step of SGD, per megabyte of the model; there, 0.31 to
0.58 ms for one to eight gradients."""


@dataclass(frozen=True)
class SimulationInput:
    """A training that is to be played.

    Attributes:
        work: of all ranks.
        hosts: of the ranks.
        tiers: of the ranks.
        shares_of_core: of the ranks' hosts, of one core: what handles messages goes at that speed.
        server: where a server would be.
        server_share: of a core, of its host.
        network: between the hosts.
        message_bytes: of a model, or of all gradients.
        exchange: an all-reduce of the model among all ranks, counted from the last arrival, where
            the run had such.
        exit_delay_s: how much later than the middle one each rank was through with it.
        pauses: seconds of evaluations that all ranks stood for, by step.
    """

    work: TrainingWork
    hosts: tuple[str, ...]
    tiers: tuple[str, ...]
    shares_of_core: tuple[float, ...]
    server: str
    server_share: float
    network: SimulatedNetwork
    message_bytes: float
    exchange: RecordedDurations | None = None
    exit_delay_s: tuple[float, ...] = ()
    pauses: Mapping[int, float] = field(default_factory=dict)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    def packing_s(self, rank: int, part: float = 1.0) -> float:
        """What a part of a model occupies a rank for when it is sent or received."""
        return PACKING_S_PER_MB * part * self.message_bytes * 1e-6 / self.shares_of_core[rank]

    @property
    def server_packing_s(self) -> float:
        """What a model occupies the server for when it is sent or received."""
        return PACKING_S_PER_MB * self.message_bytes * 1e-6 / self.server_share

    @property
    def applying_s(self) -> float:
        """What an update occupies the server for."""
        return APPLYING_S_PER_MB * self.message_bytes * 1e-6 / self.server_share


@dataclass(frozen=True)
class SimulationResult:
    """How it went.

    Attributes:
        makespan_s: virtual seconds, without evaluations that all ranks stand for.
        end_s: with them.
        steps: that each rank took.
    """

    makespan_s: float
    end_s: float
    steps: tuple[int, ...]
