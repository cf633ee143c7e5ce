"""Updates of a federated training as its server records them, so that clients can be paid later.

Contributions are measured after training: this takes many evaluations, which would delay rounds.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch

from laggard.core.rules.server_rule import Push, Update
from laggard.workloads.output.worker_output import WorkerOutputDir

if TYPE_CHECKING:
    from laggard.workloads.serving.model_keeper import ModelKeeper

_SIZE = struct.Struct(">Q")
"""Size of an update, before its bytes."""
_MOST_BYTES = 1 << 34


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


def write_update(output_dir: WorkerOutputDir, recorded: RecordedUpdate) -> None:
    """Append an update to the file of all updates.

    Args:
        output_dir: folder of the training's records.
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
    with output_dir.updates.open("ab") as file:
        file.write(_SIZE.pack(content.tell()) + content.getvalue())


def read_updates(output_dir: WorkerOutputDir, world_size: int) -> Iterator[RecordedUpdate]:
    """Yield all updates in order, without one that a killed server wrote in part.

    Raises:
        ValueError: the file is damaged.
    """
    path = output_dir.updates
    with path.open("rb") as file:
        for number in itertools.count():
            head = file.read(_SIZE.size)
            if len(head) < _SIZE.size:
                return
            (size,) = _SIZE.unpack(head)
            if size > _MOST_BYTES:
                raise ValueError(f"{path.name} is damaged: update {number} has {size} bytes")
            content = file.read(size)
            if len(content) < size:
                return
            try:
                recorded = _parse_update(content, world_size)
            except (OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile) as error:
                raise ValueError(f"{path.name} is damaged: update {number}: {error}") from error
            yield recorded


def _parse_update(content: bytes, world_size: int) -> RecordedUpdate:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        model, changes = torch.from_numpy(found["model"]), torch.from_numpy(found["changes"])
        numbers, discounts = found["pushes"].tolist(), found["discounts"].tolist()
    pushes = tuple(
        Push(int(rank), int(clock), int(samples), int(batch_size))
        for rank, clock, samples, batch_size in numbers
    )
    ranks = [push.rank for push in pushes]
    update = Update(pushes, 1.0, discounts=dict(zip(ranks, discounts, strict=True)))
    return RecordedUpdate(update, model, dict(zip(ranks, changes, strict=True)), world_size)
