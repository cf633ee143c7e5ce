"""Updates of a federated training as its server records them, so that clients can be paid later.

Contributions are measured after training: this takes many evaluations, which would delay rounds.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch

from laggard.core.rules.server_rule import Push, Update
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole

if TYPE_CHECKING:
    from laggard.workloads.serving.model_keeper import ModelKeeper


@dataclass(frozen=True)
class RecordedUpdate:
    """Update of a model with the answers of its clients.

    Attributes:
        update: the update.
        model: model before it, shape [parameters + buffers].
        changes: change of the parameters by each client, scaled as gradients are, [parameters].
        world_size: number of clients, by which they scaled their changes.
    """

    update: Update
    model: torch.Tensor
    changes: Mapping[int, torch.Tensor]
    world_size: int

    def preview(self, pushes: Sequence[Push]) -> torch.Tensor:
        """Return the model with some answers alone, shape [parameters + buffers].

        The other answers count as no change. The learning rate is 1, as in averaging.
        """
        changed = self.model.clone()
        own = changed[: len(next(iter(self.changes.values())))]
        scale = self.update.pushes[0].batch_size / (self.world_size * self.update.samples)
        for push in pushes:
            own -= scale * self.update.discounts.get(push.rank, 1.0) * self.changes[push.rank]
        return changed


def record_update(keeper: ModelKeeper, update: Update, world_size: int) -> RecordedUpdate:
    """Return an update with its answers, before the keeper applies it."""
    changes = {push.rank: keeper.read_change(push) for push in update.pushes}
    return RecordedUpdate(update, keeper.read(), changes, world_size)


def write_update(output_dir: WorkerOutputDir, number: int, recorded: RecordedUpdate) -> None:
    """Write an update to a file of its own.

    Args:
        output_dir: folder of the training's records.
        number: number of the update, from 0.
        recorded: the update.
    """
    update = recorded.update
    content = io.BytesIO()
    np.savez(
        content,
        model=recorded.model.numpy(),
        changes=np.stack([recorded.changes[push.rank].numpy() for push in update.pushes]),
        pushes=np.array(
            [(push.rank, push.clock, push.samples, push.batch_size) for push in update.pushes]
        ),
        discounts=np.array([update.discounts.get(push.rank, 1.0) for push in update.pushes]),
    )
    output_dir.updates.mkdir(exist_ok=True)
    write_whole(output_dir.updates / f"{number:09d}.npz", content.getvalue())


def read_updates(output_dir: WorkerOutputDir, world_size: int) -> Iterator[RecordedUpdate]:
    """Yield all updates in order.

    Raises:
        ValueError: a file is damaged.
    """
    for path in sorted(output_dir.updates.glob("*.npz")):
        try:
            recorded = _read_update(path, world_size)
        except (OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile) as error:
            raise ValueError(f"{path.name} is damaged: {error}") from error
        yield recorded


def _read_update(path: Path, world_size: int) -> RecordedUpdate:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        model, changes = torch.from_numpy(content["model"]), torch.from_numpy(content["changes"])
        numbers, discounts = content["pushes"].tolist(), content["discounts"].tolist()
    pushes = tuple(
        Push(int(rank), int(clock), int(samples), int(batch_size))
        for rank, clock, samples, batch_size in numbers
    )
    ranks = [push.rank for push in pushes]
    update = Update(pushes, 1.0, discounts=dict(zip(ranks, discounts, strict=True)))
    return RecordedUpdate(update, model, dict(zip(ranks, changes, strict=True)), world_size)
