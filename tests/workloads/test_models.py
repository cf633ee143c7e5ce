"""Every model takes every shape it should, is drawn from its seed, and learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from laggard.core.errors import InputError
from laggard.workloads.models import MODEL_NAMES, build_model
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.specification.training import OptimizerSpec
from laggard.workloads.tracing.batch_loader import fewest_samples

SHAPES = [(1, 8, 8), (3, 16, 16), (3, 32, 32)]
PARAMETERS = {
    "mlp": 9_610,
    "cnn": 38_282,
    "resnet8": 77_754,
    "resnet18": 11_172_810,
    "vgg11": 9_224_458,
    "wide_mlp": 1_339_530,
    "wide_cnn": 141_066,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_shapes_and_fewest_samples(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 7, 1)
    x = torch.randn(fewest_samples(model), *shape)
    logits = model(x)
    assert logits.shape == (len(x), 7)
    cross_entropy(logits[:0], torch.zeros(0, dtype=torch.long), reduction="sum").backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameters(name: str, count: int) -> None:
    assert sum(p.numel() for p in build_model(name, (1, 8, 8), 10, 1).parameters()) == count


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "transformer", "wide_mlp", "wide_cnn"])
def test_the_seed_decides(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        return torch.cat(
            [p.detach().flatten() for p in build_model(name, (1, 8, 8), 10, seed).parameters()]
        )

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "cnn",
        "resnet8",
        pytest.param("vgg11", marks=pytest.mark.long),
        "transformer",
        "wide_mlp",
        "wide_cnn",
    ],
)
def test_it_learns_one_batch(name: str) -> None:
    torch.set_num_threads(1)
    model = build_model(name, (1, 8, 8), 4, 1)
    optimizer = build_optimizer(OptimizerSpec(name="adam", lr=0.001), model)
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 1, 8, 8, generator=random), torch.randint(0, 4, (16,), generator=random)
    losses = []
    for _ in range(40):
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_tokens() -> None:
    model = build_model("transformer", (12,), 5, 1, vocabulary=30)
    assert model(torch.randint(0, 30, (2, 12))).shape == (2, 5)
    with pytest.raises(InputError, match="vocabulary"):
        build_model("transformer", (12,), 5, 1)
    with pytest.raises(InputError, match="use the transformer"):
        build_model("cnn", (12,), 5, 1, vocabulary=30)


def test_images_that_do_not_divide() -> None:
    with pytest.raises(InputError, match="patches of 2x2"):
        build_model("transformer", (1, 9, 9), 5, 1)


def test_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from torch import nn\ndef nothing(shape, classes): return 3\ndef some(shape, classes):"
        " return nn.Linear(7, classes)"
    )
    (tmp_path / "own_shapes.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert build_model("own_shapes:some", (7,), 5, 1)(torch.zeros(1, 7)).shape == (1, 5)
    with pytest.raises(InputError, match=r"must return a torch.nn.Module"):
        build_model("own_shapes:nothing", (7,), 5, 1)


@pytest.mark.parametrize(("name", "kind"), [("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW")])
def test_optimizers(name: str, kind: str) -> None:
    spec = OptimizerSpec.model_validate({"name": name, "lr": 0.5, "weight_decay": 0.25})
    optimizer = build_optimizer(spec, build_model("mlp", (1, 8, 8), 10, 1))
    assert type(optimizer).__name__ == kind
    assert optimizer.defaults["lr"] == 0.5
    assert optimizer.defaults["weight_decay"] == 0.25
