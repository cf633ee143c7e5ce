"""Networks in blocks: every cut gives the whole model's answer, and the best ones are among them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laggard.workloads.inference.cut_model import CutModel, Tensors, cut_model
from laggard.workloads.models import MODEL_NAMES, build_model


class Branches(nn.Module):
    """A wide branch that shrinks soon, and another one that computes much: two tensors pass between."""

    def __init__(self) -> None:
        super().__init__()
        self.shrink = nn.Sequential(nn.Conv2d(3, 2, 8, stride=8), nn.ReLU())
        self.deep = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4, padding=2),
            nn.ReLU(),
            *(nn.Conv2d(16, 16, 9, padding=4) for _ in range(4)),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Linear(2 * 64 + 16 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        both = [self.shrink(images).flatten(1), self.deep(images).flatten(1)]
        return self.head(torch.cat(both, dim=1))


class Undecided(nn.Module):
    """A model whose control flow depends on values, which cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(values)
        return found if float(found.detach().sum()) > 0 else -found


def compute(chain: CutModel, values: Tensors, blocks: range) -> Tensors:
    with torch.inference_mode():
        for number in blocks:
            values = chain.compute(number, values)
    return values


@pytest.mark.parametrize("name", [each for each in MODEL_NAMES if each != "transformer"])
def test_every_cut_gives_the_answer_of_the_model(name: str) -> None:
    model = build_model(name, (3, 32, 32), 10, seed=1).eval()
    inputs = torch.randn(2, 3, 32, 32)
    chain = cut_model(model, inputs, 0.1, 1.0)
    assert len(chain.blocks) > 1
    with torch.inference_mode():
        expected = model(inputs)
    for cut in range(len(chain.blocks) + 1):
        head = compute(chain, (inputs,), range(cut))
        (answer,) = compute(chain, head, range(cut, len(chain.blocks)))
        torch.testing.assert_close(answer, expected)


def test_sequences_are_cut_too() -> None:
    model = build_model("transformer", (16,), 5, seed=1, vocabulary=50).eval()
    inputs = torch.randint(50, (2, 16))
    chain = cut_model(model, inputs, 0.1, 1.0)
    with torch.inference_mode():
        expected = model(inputs)
    (answer,) = compute(chain, (inputs,), range(len(chain.blocks)))
    torch.testing.assert_close(answer, expected)


def test_other_numbers_of_samples_pass() -> None:
    model = Branches().eval()
    chain = cut_model(model, torch.randn(2, 3, 64, 64), 0.1, 1.0)
    one = torch.randn(1, 3, 64, 64)
    (answer,) = compute(chain, (one,), range(len(chain.blocks)))
    with torch.inference_mode():
        torch.testing.assert_close(answer, model(one))


def test_a_graph_is_cut_where_several_tensors_pass() -> None:
    model = Branches().eval()
    inputs = torch.randn(2, 3, 64, 64)
    chain = cut_model(model, inputs, device_share=0.05, server_share=1.0)
    passing = [compute(chain, (inputs,), range(cut)) for cut in range(1, len(chain.blocks))]
    several = [each for each in passing if len(each) > 1]
    assert several, "the branches meet in the last operation only"
    fewest = min(sum(each.nbytes for each in values) for values in several)
    assert fewest < inputs.nbytes / 4


def test_all_nodes_find_the_same_blocks() -> None:
    def names() -> list[list[str]]:
        chain = cut_model(Branches().eval(), torch.randn(2, 3, 64, 64), 0.1, 1.0)
        return [[node.name for node in each.graph.nodes] for each in chain.blocks]  # type: ignore[union-attr]

    assert names() == names()


def test_a_model_that_cannot_be_traced_is_one_block() -> None:
    model, inputs = Undecided().eval(), torch.randn(2, 4)
    chain = cut_model(model, inputs, 0.1, 1.0)
    assert len(chain.blocks) == 1
    torch.testing.assert_close(compute(chain, (inputs,), range(1))[0], model(inputs))
