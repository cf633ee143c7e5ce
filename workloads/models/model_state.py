"""State of models and optimizers in files that any machine can read: what lies on a GPU is saved as
tensors of the host's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import cast

import torch


def save_state(state: Mapping[str, object], path: Path) -> None:
    """Save mappings, nested or not, of tensors and plain values."""
    torch.save(_on_host(state), path)


def load_state(path: Path) -> dict[str, object]:
    """What was saved, on whatever device its tensors then were, in this host's memory; no code in
    it is run.
    """
    return cast("dict[str, object]", torch.load(path, map_location="cpu", weights_only=True))


def _on_host(part: object) -> object:
    if isinstance(part, torch.Tensor):
        return part.cpu()
    if isinstance(part, dict):
        # A copy keeps what torch attaches to a model's state: the versions of its modules.
        moved = copy(part)
        moved.update((key, _on_host(value)) for key, value in part.items())
        return moved
    return part
