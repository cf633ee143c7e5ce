"""Training that is played event by event until its goal is reached."""

from __future__ import annotations

from abc import ABC, abstractmethod

from laggard.core.simulation.event_loop import EventLoop
from laggard.core.simulation.training import SimulationInput, SimulationResult


class EventTraining(ABC):
    """Base of trainings whose ranks each take steps of their own.

    Args:
        sim_input: training to simulate.

    Attributes:
        loop: event loop with the simulated time.
        sim_input: training to simulate.
        steps: steps that each rank has begun.
    """

    def __init__(self, sim_input: SimulationInput) -> None:
        self.loop, self.sim_input = EventLoop(), sim_input
        self.steps = [0] * sim_input.world
        self._samples_learned = 0.0

    @abstractmethod
    def begin(self, rank: int) -> None:
        """Begin the first step of a rank."""

    def learn(self, samples: float) -> bool:
        """Count samples, and return whether the goal is reached; the training ends then."""
        self._samples_learned += samples
        self.loop.is_stopped = self.sim_input.work.is_done(self._samples_learned)
        return self.loop.is_stopped

    def simulate(self) -> SimulationResult:
        """Simulate the training."""
        for rank in range(self.sim_input.world):
            self.begin(rank)
        self.loop.run()
        now_s = self.loop.now_s
        return SimulationResult(now_s, now_s, tuple(self.steps), self.loop.actions)
