"""A model of which one rank has some blocks only; the other blocks are shapes without numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

_POLL_S = 0.005


@dataclass(frozen=True)
class _Place:
    """Place of a tensor: in its module, in a file of the whole model, and in a state."""

    module: nn.Module
    key: str
    meta: torch.Tensor
    offset: int
    name: str | None

    @property
    def tensor(self) -> torch.Tensor:
        found = getattr(self.module, self.key)
        assert isinstance(found, torch.Tensor)
        return found.detach()


class PartialModel:
    """Blocks of a model that is too large for one rank.

    Args:
        model: the whole model, on torch's device `meta`.
        blocks: all blocks of it.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        offsets, end = {}, 0
        for each in (*model.parameters(), *model.buffers()):
            offsets[id(each)] = end
            end += each.nbytes
        names = {id(each): name for name, each in model.state_dict(keep_vars=True).items()}
        self._bytes = end
        self._blocks = blocks
        self._places = [
            [
                _Place(module, key, tensor, offsets[id(tensor)], names.get(id(tensor)))
                for module, key, tensor in _list_tensors(block)
            ]
            for block in blocks
        ]

    def load(self, block: int, path: Path, device: torch.device) -> None:
        """Give a block its numbers from a file of the whole model, once the file is there.

        Only the numbers of this block are in memory afterwards: the file is mapped.

        Args:
            block: number of the block.
            path: file of `write_model`.
            device: device of the block.
        """
        while not path.exists():
            time.sleep(_POLL_S)
        content = np.memmap(path, dtype=np.uint8, mode="r") if self._bytes else None
        known: dict[int, torch.Tensor] = {}
        for place in self._places[block]:
            if place.offset not in known:
                known[place.offset] = _read(content, place, device)
            setattr(place.module, place.key, known[place.offset])

    def read_state(self, block: int) -> torch.Tensor:
        """Return the state of a block as bytes, in the host's memory."""
        parts = [_to_bytes(each.tensor) for each in self._places[block] if each.name is not None]
        return torch.cat([*parts, torch.empty(0, dtype=torch.uint8)])

    def count_bytes(self, block: int) -> int:
        """Return the bytes of `read_state`, for any block."""
        return sum(each.meta.nbytes for each in self._places[block] if each.name is not None)

    def name_state(self, block: int, state: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return the tensors in the bytes of a block by their names in the whole model."""
        found, offset = {}, 0
        for place in self._places[block]:
            if place.name is not None:
                part = state[offset : offset + place.meta.nbytes].clone()
                found[place.name] = part.view(place.meta.dtype).view(place.meta.shape)
                offset += place.meta.nbytes
        return found


def _list_tensors(block: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for module in block.modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield module, key, parameter
        for key, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            yield module, key, buffer


def _read(content: np.ndarray | None, place: _Place, device: torch.device) -> torch.Tensor:
    meta = place.meta
    if content is None or not meta.nbytes:
        numbers = torch.empty(meta.shape, dtype=meta.dtype, device=device)
    else:
        part = np.array(content[place.offset : place.offset + meta.nbytes])
        numbers = torch.from_numpy(part).view(meta.dtype).view(meta.shape).to(device)
    if isinstance(meta, nn.Parameter):
        return nn.Parameter(numbers, requires_grad=meta.requires_grad)
    return numbers


def _to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
