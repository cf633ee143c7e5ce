"""Training that is played event by event until its goal is reached."""

from __future__ import annotations

from laggard.core.simulation.event_loop import EventLoop
from laggard.core.simulation.training import SimulationInput, SimulationResult

# Relative tolerance of the goal, for the rounding errors of its sum.
_TOLERANCE = 1e-6


class EventTraining:
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

    def begin(self, rank: int) -> None:
        """Begin the first step of a rank."""
        raise NotImplementedError

    def learn(self, samples: float) -> bool:
        """Count samples, and return whether the goal is reached; the training ends then."""
        self._samples_learned += samples
        goal = self.sim_input.work.goal * (1.0 - _TOLERANCE)
        self.loop.is_stopped = self._samples_learned >= goal
        return self.loop.is_stopped

    def simulate(self) -> SimulationResult:
        """Simulate the training."""
        for rank in range(self.sim_input.world):
            self.begin(rank)
        self.loop.run()
        now_s = self.loop.now_s
        return SimulationResult(now_s, now_s, tuple(self.steps), self.loop.actions)
