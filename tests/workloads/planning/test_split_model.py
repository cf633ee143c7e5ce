"""Division of models: the blocks together are the model, and carry what they say they carry."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from laggard.core.errors import InputError
from laggard.workloads.models import MODEL_NAMES, build_model
from laggard.workloads.planning.split_model import MOST_BLOCKS, SplitModel, split_model
from laggard.workloads.strategies.pipeline.profile_blocks import profile_blocks

SMALL = torch.linspace(-1, 1, 8 * 1 * 8 * 8).reshape(8, 1, 8, 8)


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    large = name in ("resnet18", "vgg11")
    shape = (3, 32, 32) if large else (1, 8, 8)
    inputs = torch.linspace(-1, 1, 8 * shape[0] * shape[1] * shape[2]).reshape(8, *shape)
    return build_model(name, shape, 10, seed=1), inputs


def build_sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01)


def train(model: nn.Module | SplitModel, inputs: torch.Tensor) -> torch.Tensor:
    """The gradients of all parameters after one pass, shape [parameters]."""
    modules = model.blocks if isinstance(model, SplitModel) else (model,)
    for each in modules:
        each.zero_grad()
    outputs = model.forward(inputs)
    outputs.square().mean().backward()  # type: ignore[no-untyped-call]
    found = [one.grad for each in modules for one in each.parameters() if one.grad is not None]
    return torch.cat([each.flatten() for each in found])


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_blocks_of_a_model_are_the_model(name: str) -> None:
    model, inputs = build(name)
    divided = split_model(model, inputs)
    assert 1 <= len(divided.blocks) <= MOST_BLOCKS
    ids = [id(each) for block in divided.blocks for each in block.parameters()]
    assert len(ids) == len({*ids})
    assert {*ids} == {id(each) for each in model.parameters()}
    model.eval()
    for block in divided.blocks:
        block.eval()
    assert torch.allclose(divided.forward(inputs), model(inputs), atol=1e-6)
    whole = train(model, inputs)
    # Blocks have their parameters in an order of their own.
    found = train(divided, inputs).sort().values
    assert torch.allclose(found, whole.sort().values, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "wide_mlp"])
def test_models_are_divided(name: str) -> None:
    model, inputs = build(name)
    divided = split_model(model, inputs)
    assert len(divided.blocks) > 1
    assert divided.note is None
    assert len(split_model(model, inputs, most=2).blocks) == 2


@pytest.mark.parametrize("name", ["mlp", "resnet8"])
def test_a_profile_has_the_bytes_of_the_blocks(name: str, tmp_path: Path) -> None:
    model, inputs = build(name)
    divided = split_model(model, inputs)
    profile = profile_blocks(divided, inputs, build_sgd, tmp_path)
    sizes = sum(each.numel() * each.element_size() for each in model.parameters())
    assert sum(each.parameter_bytes for each in profile.blocks) == sizes
    assert len({each.name for each in profile.blocks}) == len(profile.blocks)
    values = inputs
    for block, edge in zip(divided.blocks, profile.edges, strict=False):
        values = block(values)
        assert edge.sample_bytes == values[0].nbytes
    assert [(each.src, each.dst) for each in profile.edges] == [
        (number, number + 1) for number in range(len(profile.blocks) - 1)
    ]
    assert all(each.of(8) > 0 for each in profile.forward)
    assert all(each.saved_bytes >= 0 for each in profile.blocks)
    assert all((each.update_s > 0) == (each.parameter_bytes > 0) for each in profile.blocks)


class Choosy(nn.Module):
    """Model whose control flow depends on its values."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * 2 if inputs.sum() > 0 else inputs


def test_a_model_that_cannot_be_traced_is_divided_at_its_modules() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Choosy(), nn.Linear(8, 3))
    divided = split_model(model, SMALL)
    assert len(divided.blocks) == 4
    assert divided.note is not None
    assert "borders of its modules" in divided.note
    assert torch.equal(divided.forward(SMALL), model(SMALL))
    alone = split_model(Choosy(), SMALL)
    assert (len(alone.blocks), "one block" in (alone.note or "")) == (1, True)


def test_a_module_that_is_used_twice_stays_in_one_block() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(self.again(self.first(inputs)))
            outputs: torch.Tensor = self.last(self.again(hidden))
            return outputs

    model, inputs = Twice(), torch.ones(4, 8)
    divided = split_model(model, inputs)
    owners = [
        number
        for number, block in enumerate(divided.blocks)
        if any(each is model.again.weight for each in block.parameters())
    ]
    assert len(owners) == 1
    assert torch.equal(divided.forward(inputs), model(inputs))


def test_a_residual_connection_stays_within_a_block() -> None:
    model, inputs = build("resnet8")
    values = inputs
    for block in split_model(model, inputs).blocks:
        values = block(values)
        assert isinstance(values, torch.Tensor)


def test_a_model_with_several_outputs_is_refused() -> None:
    class Pair(nn.Module):
        def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return inputs, inputs

    with pytest.raises(InputError, match="does not return one tensor"):
        split_model(Pair(), SMALL)
