"""Models of which a rank has some blocks only, against the whole model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from laggard.workloads.models import build_model
from laggard.workloads.models.initial_model import write_model
from laggard.workloads.planning.split_model import SplitModel, split_model
from laggard.workloads.strategies.pipeline.partial_model import PartialModel


class WithBuffers(nn.Module):
    """Numbers of several types, one that no state has, and some that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4), persistent=False)
        self.last = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = self.first(inputs)
        values = torch.relu(values * self.scale + self.shift)
        shared: torch.Tensor = self.last(self.last(values))
        return shared


def divide(model: nn.Module, example: torch.Tensor) -> tuple[SplitModel, PartialModel]:
    shapes = copy.deepcopy(model).to("meta")
    with torch.device("meta"):
        divided = split_model(shapes, example.to("meta"))
    return divided, PartialModel(shapes, divided.blocks)


@pytest.mark.parametrize("name", ["own", "mlp", "cnn", "resnet8", "transformer"])
def test_loaded_blocks_compute_what_the_whole_model_does(tmp_path: Path, name: str) -> None:
    torch.manual_seed(4)
    model = WithBuffers() if name == "own" else build_model(name, (1, 8, 8), 10, 3)
    example = torch.randn(3, 4) if name == "own" else torch.randn(3, 1, 8, 8)
    divided, partial = divide(model, example)
    assert len(divided.blocks) > 1
    write_model(tmp_path / "model", model)
    values = example
    model.eval()
    for number, block in enumerate(divided.blocks):
        assert all(each.is_meta for each in block.parameters())
        partial.load(number, tmp_path / "model", torch.device("cpu"))
        block.eval()
        values = block(values)
    assert torch.equal(values, model(example))


def test_states_of_blocks_make_the_whole_state(tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = WithBuffers()
    divided, partial = divide(model, torch.randn(3, 4))
    write_model(tmp_path / "model", model)
    found: dict[str, torch.Tensor] = {}
    for number in range(len(divided.blocks)):
        partial.load(number, tmp_path / "model", torch.device("cpu"))
        state = partial.read_state(number)
        assert len(state) == partial.count_bytes(number)
        found |= partial.name_state(number, state)
    known = model.state_dict()
    assert found.keys() == known.keys()
    assert all(torch.equal(found[name], known[name]) for name in known)
