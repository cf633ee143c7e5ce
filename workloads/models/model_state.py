"""Files with the state of models and optimizers that any machine can read.

Tensors on a GPU are saved as tensors in the host's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import cast

import torch


def save_state(state: Mapping[str, object], path: Path) -> None:
    """Save nested mappings of tensors and plain values."""
    torch.save(_on_host(state), path)


def load_state(path: Path) -> dict[str, object]:
    """Load a saved state into this host's memory, from whatever device it was saved.

    Code in the file is not executed.
    """
    return cast("dict[str, object]", torch.load(path, map_location="cpu", weights_only=True))


def _on_host(part: object) -> object:
    if isinstance(part, torch.Tensor):
        return part.cpu()
    if isinstance(part, dict):
        # A copy keeps the attribute that torch attaches to a model's state: its modules' versions.
        moved = copy(part)
        moved.update((key, _on_host(value)) for key, value in part.items())
        return moved
    return part
