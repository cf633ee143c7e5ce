"""Reinforcement learning: a policy that balances a pole, by the cross-entropy method.

Every step, a worker plays episodes with its present policy and learns the actions of the best ones
(S. Mannor, R. Rubinstein, Y. Gat, "The cross entropy method for fast policy search", ICML 2003). An
episode lasts as long as the pole stands, so no two steps of a worker take the same time. Model and
samples belong together: the samples are played with the model that was built in the same process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, SupportsFloat

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from laggard.core.errors import PrerequisiteError
from laggard.workloads.datasets.dataset import Batch, Data, Indices, Raw

ENVIRONMENT = "CartPole-v1"
OBSERVATIONS, ACTIONS = 4, 2
LONGEST_EPISODE = 200
EPISODES, BEST = 8, 2
"""Episodes that are played for a batch, and those whose actions are learned."""

Rows = npt.NDArray[np.float32]


class _Environment(Protocol):
    def reset(self, *, seed: int) -> tuple[Rows, object]:
        """Begin an episode."""

    def step(self, action: int) -> tuple[Rows, SupportsFloat, bool, bool, dict[str, object]]:
        """Take an action."""


class PolePolicy(nn.Module):
    """PolePolicy of two layers, whose logits are those of pushing left and right."""

    present: PolePolicy | None = None
    """PolePolicy that was built last in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(OBSERVATIONS, 32), nn.Tanh(), nn.Linear(32, ACTIONS)
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the logits of both actions, [n, 2]."""
        logits: torch.Tensor = self.layers(observations)
        return logits


def build(_input_shape: tuple[int, ...], _classes: int) -> nn.Module:
    """Build a policy, with which the samples of this process are played from now on."""
    PolePolicy.present = PolePolicy()
    return PolePolicy.present


@dataclass(frozen=True)
class PlayedSplit:
    """Samples that are played when they are prepared.

    Attributes:
        count: nominal number of samples.
        learns: whether the actions are those of the best episodes; otherwise they are those of a
            controller that balances the pole.
        seed: seed of the episodes.
    """

    count: int
    learns: bool
    seed: int

    def __len__(self) -> int:
        return self.count

    def fetch(self, indices: Indices) -> Raw:
        """Return the numbers of the samples, from which their episodes are seeded."""
        return Raw(np.asarray(indices).reshape(-1, 1), np.zeros(len(indices), dtype=np.int64))

    def prepare(self, raw: Raw) -> Batch:
        """Play episodes, and return as many of their states and actions as were asked for."""
        numbers = np.asarray(raw.inputs)[:, 0]
        rng = np.random.default_rng(
            (self.seed, int(numbers[0]), int(numbers[-1]), int(self.learns))
        )
        played = sorted((self._play(rng) for _ in range(EPISODES)), key=lambda each: -len(each[1]))
        chosen = played[: BEST if self.learns else EPISODES]
        states = np.concatenate([states for states, _ in chosen])
        actions = np.concatenate([actions for _, actions in chosen])
        rows = rng.integers(len(states), size=len(numbers))
        inputs = torch.from_numpy(states[rows].reshape(-1, 1, 1, OBSERVATIONS))
        return Batch(inputs, torch.from_numpy(actions[rows]))

    def _play(self, rng: np.random.Generator) -> tuple[Rows, npt.NDArray[np.int64]]:
        """Play an episode with the present policy, and return its states and actions."""
        environment = _create_environment()
        state, _ = environment.reset(seed=int(rng.integers(2**31)))
        states: list[Rows] = []
        actions: list[int] = []
        while len(states) < LONGEST_EPISODE:
            action = _choose_action(state, rng)
            states.append(state)
            actions.append(action if self.learns else _balance(state))
            state, _, fell, _, _ = environment.step(action)
            if fell:
                break
        return np.asarray(states, dtype=np.float32), np.asarray(actions, dtype=np.int64)


def load(seed: int) -> Data:
    """Return samples that are played; an accuracy is agreement with a controller that balances."""
    return Data(
        PlayedSplit(4096, learns=True, seed=seed),
        PlayedSplit(256, learns=False, seed=seed),
        (1, 1, OBSERVATIONS),
        ACTIONS,
    )


def _create_environment() -> _Environment:
    try:
        import gymnasium
    except ImportError as error:
        raise PrerequisiteError(
            "the pole needs gymnasium", 'pip install "laggard[gallery]"'
        ) from error
    environment: _Environment = gymnasium.make(ENVIRONMENT)
    return environment


def _choose_action(state: Rows, rng: np.random.Generator) -> int:
    """Draw an action of the present policy; any, before there is one."""
    if PolePolicy.present is None:
        return int(rng.integers(ACTIONS))
    with torch.no_grad():
        logits = PolePolicy.present(torch.from_numpy(state.reshape(1, 1, 1, -1)))
    likely = torch.softmax(logits[0].double(), dim=0).numpy()
    return int(rng.random() < likely[1])


def _balance(state: Rows) -> int:
    """Return the push of a controller that balances the pole, by its angle and angular velocity."""
    return int(state[2] + 0.5 * state[3] > 0)
