"""Training to simulate, and the result of its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.message_handling import DEFAULT_HANDLING, MessageHandling
from laggard.core.simulation.network import FRAMING_OVERHEAD, SimulatedNetwork
from laggard.core.simulation.recorded_durations import RecordedDurations

# Relative rounding error that sums of samples may have.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class TrainingWork:
    """Work of a training.

    Attributes:
        ranks: duration of each rank's step, without sends and waits.
        samples_per_step: samples of one rank by step number; a simulation with more steps repeats
            them.
        goal: samples that all ranks processed until the training ended.
        end_s: raw seconds until the end of the last span, evaluations included; no slow period is
            known after it.
    """

    ranks: tuple[RecordedDurations, ...]
    samples_per_step: FloatArray
    goal: float
    end_s: float

    def is_done(self, samples_learned: float) -> bool:
        """Return whether so many samples reach the goal, except for the rounding of their sum."""
        return samples_learned >= self.goal * (1.0 - _TOLERANCE)

    def rank_samples(self, step: int) -> float:
        """Return the samples of one rank in a step; all ranks have the same number."""
        return float(self.samples_per_step[step % len(self.samples_per_step)])

    @property
    def steps(self) -> int:
        """Return the number of global steps that process as many samples as the run."""
        samples_learned, step = 0.0, 0
        while not self.is_done(samples_learned):
            samples_learned += self.rank_samples(step) * len(self.ranks)
            step += 1
        return step


@dataclass(frozen=True)
class SimulationInput:
    """Training to simulate.

    Attributes:
        work: compute work of all ranks.
        hosts: host of each rank.
        tiers: tier of each rank.
        shares_of_core: share of one core that each rank's host has; messages are handled at that
            speed.
        server: host on which a server would run.
        server_share: share of one core that the server's host has.
        network: network between the hosts.
        message_bytes: size of the model, or of all gradients.
        exchange: duration of an all-reduce of the model among all ranks, counted from the last
            arrival, if the run had such all-reduces.
        exit_delay_s: seconds by which each rank finished the all-reduce after the median rank.
        pauses: seconds of the evaluations that all ranks waited for, by step.
        handling: processor time of messages and updates.
        step_broadcasts: bytes of each broadcast of rank 0 that follows an all-reduce: DDP sends the
            model's buffers before the next step.
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
    handling: MessageHandling = DEFAULT_HANDLING
    step_broadcasts: tuple[float, ...] = ()

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return len(self.hosts)

    @property
    def wire_bytes(self) -> float:
        """Return the bytes that the model takes on the wire."""
        return self.message_bytes * FRAMING_OVERHEAD

    def packing_s(self, rank: int, parts: int = 1) -> float:
        """Return the seconds that a rank spends on sending or receiving a part of the model."""
        return self.handling.message_s(self._megabytes / parts, self.shares_of_core[rank])

    @property
    def server_packing_s(self) -> float:
        """Return the seconds that the server spends on sending or receiving a model."""
        return self.handling.message_s(self._megabytes, self.server_share)

    @property
    def applying_s(self) -> float:
        """Return the seconds that the server spends on applying an update."""
        return self.handling.update_s(self._megabytes, self.server_share)

    @property
    def _megabytes(self) -> float:
        return self.message_bytes * 1e-6


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        makespan_s: virtual seconds, without evaluations that all ranks wait for.
        end_s: virtual seconds with these evaluations.
        steps: number of steps of each rank.
        actions: number of actions of the event loop; 0 in lockstep.
    """

    makespan_s: float
    end_s: float
    steps: tuple[int, ...]
    actions: int = 0
