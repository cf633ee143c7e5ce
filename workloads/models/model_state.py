"""Files with the state of models and optimizers that any machine can read.

Tensors on a GPU are saved as tensors in the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, cast

import torch

from laggard.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn


_MOST_COPIES = 8
_MOST_OTHER_BYTES = 16 << 20
"""Largest checkpoint: so many times the model, and so many further bytes."""

_MOST_CHECKPOINT_BYTES = 64 << 30
"""Largest checkpoint whose step is read without its model."""

_UNREADABLE = (
    OSError,
    EOFError,
    UnpicklingError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
)
"""What torch raises for files that are no checkpoint, or that of another model."""


def save_state(state: Mapping[str, object], path: Path) -> None:
    """Save nested mappings of tensors and plain values."""
    torch.save(_on_host(state), path)


def load_state(path: Path) -> dict[str, object]:
    """Load a saved state into this host's memory, from whatever device it was saved.

    Code in the file is not executed.
    """
    return cast("dict[str, object]", torch.load(path, map_location="cpu", weights_only=True))


@dataclass(frozen=True)
class TrainedSoFar:
    """Training up to a checkpoint.

    Attributes:
        step: last step, from 0, of all runs of the training.
        elapsed_s: virtual seconds of this run's training, without evaluations; None in
            checkpoints of older versions.
    """

    step: int
    elapsed_s: float | None


def save_checkpoint(
    path: Path, so_far: TrainedSoFar, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Save the state after a step, from which the training can go on."""
    state = {
        "step": so_far.step,
        "elapsed_s": so_far.elapsed_s,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    _save_whole(path, state)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int | None
) -> int:
    """Put a saved state into a model and its optimizer, and return the step that comes next.

    Args:
        path: checkpoint; its content is data, and no code of it is executed.
        model: model of the same kind.
        optimizer: optimizer of the model's parameters, of the same kind.
        steps: number of steps of the whole training; None if something else ends it.

    Raises:
        InputError: the file is no checkpoint, or that of another workload, or all steps are done.
    """
    with _refuse_unreadable(
        f"resume: {path}: is no checkpoint of this workload",
        "give the checkpoint.pt of a run with the same model and optimizer",
    ):
        state = _load_bounded(path, model)
        step = state["step"]
        model.load_state_dict(cast("dict[str, torch.Tensor]", state["model"]))
        optimizer.load_state_dict(cast("dict[str, object]", state["optimizer"]))
    if not isinstance(step, int) or step < 0:
        raise InputError(f"resume: {path}: step {step}: is no number of a step — give a checkpoint")
    if steps is not None and step + 1 >= steps:
        raise InputError(
            f"resume: {path}: has {step + 1} of {steps} steps, so nothing is left to train — set"
            " workload.stop.steps higher"
        )
    return step + 1


def read_progress(path: Path) -> TrainedSoFar:
    """Return how far the training of a checkpoint got.

    Raises:
        InputError: the file is no checkpoint.
    """
    with _refuse_unreadable(f"{path}: is no checkpoint", "give the checkpoint.pt of a run"):
        if path.stat().st_size > _MOST_CHECKPOINT_BYTES:
            raise ValueError(f"it is larger than {_MOST_CHECKPOINT_BYTES} bytes")
        state = load_state(path)
        step, elapsed_s = state["step"], state.get("elapsed_s")
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"step {step} is no number of a step")
        if elapsed_s is not None and not isinstance(elapsed_s, float):
            raise ValueError(f"elapsed_s {elapsed_s} is no number of seconds")
    return TrainedSoFar(step, elapsed_s)


def save_weights(path: Path, model: nn.Module) -> None:
    """Save the parameters and buffers of a model, without its optimizer."""
    _save_whole(path, {"model": model.state_dict()})


def load_weights(path: Path, model: nn.Module) -> None:
    """Give a model the parameters and buffers of a file of `save_weights` or `save_checkpoint`.

    Raises:
        InputError: the file has no weights, or those of another model.
    """
    with _refuse_unreadable(
        f"initial_weights: {path}: has no weights of this model",
        "give the weights.pt of a run with the same model and `save_weights`",
    ):
        state = _load_bounded(path, model)
        model.load_state_dict(cast("dict[str, torch.Tensor]", state["model"]))


def _save_whole(path: Path, state: Mapping[str, object]) -> None:
    """Save a state in a file that appears whole, since a kill could leave half of it."""
    partial = path.with_suffix(".partial")
    save_state(state, partial)
    partial.rename(path)


@contextmanager
def _refuse_unreadable(rule: str, fix: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{rule}: {reason} — {fix}") from error


def _load_bounded(path: Path, model: nn.Module) -> dict[str, object]:
    """Load a saved state that is no larger than one of a model and its optimizer can be."""
    known_bytes = sum(each.numel() * each.element_size() for each in model.state_dict().values())
    if path.stat().st_size > _MOST_COPIES * known_bytes + _MOST_OTHER_BYTES:
        raise ValueError(f"it is larger than a model of {known_bytes} bytes needs")
    return load_state(path)


def _on_host(part: object) -> object:
    if isinstance(part, torch.Tensor):
        return part.cpu()
    if isinstance(part, dict):
        # A copy keeps the attribute that torch attaches to a model's state: its modules' versions.
        moved = copy(part)
        moved.update((key, _on_host(value)) for key, value in part.items())
        return moved
    return part
