"""Trainings that go on from a checkpoint: two halves are the whole, bit for bit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from laggard.core.errors import InputError
from laggard.workloads.models import build_model
from laggard.workloads.models.model_state import (
    TrainedSoFar,
    load_checkpoint,
    load_state,
    load_weights,
    save_checkpoint,
    save_weights,
)
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.specification.training import OptimizerSpec
from tests.one_short import one_short

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

HALF, WHOLE = 9, 18


def require_equal(one: object, other: object) -> None:
    """Nested mappings and lists of tensors and numbers are equal, bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()  # type: ignore[attr-defined]
        for key in one:
            require_equal(one[key], other[key])  # type: ignore[index]
    elif isinstance(one, list):
        for mine, theirs in zip(one, other, strict=True):  # type: ignore[call-overload]
            require_equal(mine, theirs)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)  # type: ignore[arg-type]
    else:
        assert one == other


# DDP reduces the first step in other pieces than later ones, and with more than two ranks the order
# of sums depends on the pieces.
@pytest.mark.parametrize(
    ("strategy", "ranks", "model", "optimizer"),
    one_short(
        [
            ("allreduce", 2, "mlp", {"name": "sgd", "lr": 0.1, "momentum": 0.9}),
            ("ring_allreduce", 3, "resnet8", {"name": "adam", "lr": 0.01}),
        ]
    ),
)
def test_two_halves_are_the_whole(
    train: Train, strategy: str, ranks: int, model: str, optimizer: dict[str, object]
) -> None:
    def run(steps: int, **more: object) -> Training:
        workload = {
            "model": model,
            "dataset": "digits",
            "batch_size": 96,
            "strategy": strategy,
            "optimizer": optimizer,
            "stop": {"steps": steps},
            "checkpoint_every": HALF,
            **more,
        }
        return train(workload, ranks)

    whole, first = run(WHOLE), run(HALF)
    second = run(WHOLE, resume=str(first.output_dir.checkpoint))
    states = [load_state(each.output_dir.checkpoint) for each in (second, whole)]
    # The times of two runs differ, and only those.
    assert all(isinstance(state.pop("elapsed_s"), float) for state in states)
    require_equal(*states)
    assert load_state(second.output_dir.checkpoint)["step"] == WHOLE - 1
    losses = {
        name: each.table("steps").set_index(["rank", "step"]).loss.sort_index()
        for name, each in (("whole", whole), ("first", first), ("second", second))
    }
    for rank in range(ranks):
        halves = [*losses["first"][rank], *losses["second"][rank]]
        assert halves == losses["whole"][rank].tolist()
    # The records of the second half are those of a run of its own.
    assert second.done()["steps"] == WHOLE - HALF
    assert first.done()["samples"] + second.done()["samples"] == whole.done()["samples"]


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("harm"),))  # type: ignore[return-value]


def make(model: str = "mlp") -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    built = build_model(model, (1, 8, 8), 10, 1, None)
    return built, build_optimizer(OptimizerSpec(name="sgd", lr=0.1), built)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no checkpoint of this workload"),
        (b"0" * (20 << 20), "larger than a model of"),
        (b"weights", "is no checkpoint of this workload"),
        (pickle.dumps(_Harmful(), protocol=2), "is no checkpoint of this workload"),
        ("cnn", "is no checkpoint of this workload"),
        ({"step": 3}, "is no checkpoint of this workload"),
        (9, "has 10 of 10 steps, so nothing is left"),
        (-1, "step -1: is no number of a step"),
    ],
)
def test_what_is_no_checkpoint_of_the_workload_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        save_checkpoint(path, TrainedSoFar(3, 1.0), *make(content))
    elif isinstance(content, int):
        save_checkpoint(path, TrainedSoFar(content, 1.0), *make())
    else:
        torch.save(content, path)
    with pytest.raises(InputError, match=message):
        load_checkpoint(path, *make(), steps=10)
    assert not (tmp_path / "harm").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no checkpoint"):
        load_checkpoint(tmp_path / "none.pt", *make(), steps=None)


@pytest.mark.parametrize(
    "strategy", one_short(["parameter_server", "allreduce", "local_sgd", "gossip"])
)
def test_weights_of_a_training_are_those_that_another_begins_with(
    train: Train, strategy: str
) -> None:
    common = {
        "model": "mlp",
        "dataset": "digits",
        "batch_size": 96,
        "strategy": strategy,
        "evaluate_every": 1_000_000,
    }
    first = train(common | {"stop": {"steps": 60}, "save_weights": True}, 2)
    weights = first.output_dir.weights
    assert first.done()["accuracy"] > 0.6
    # Steps that hardly change anything leave the model as good as it was.
    nothing = {"optimizer": {"name": "sgd", "lr": 1e-9}, "seed": 2}
    second = train(common | nothing | {"stop": {"steps": 2}, "initial_weights": str(weights)}, 2)
    assert second.done()["accuracy"] == pytest.approx(first.done()["accuracy"], abs=0.005)
    assert not second.output_dir.weights.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"weights", "has no weights of this model"),
        (pickle.dumps(_Harmful(), protocol=2), "has no weights of this model"),
        ("cnn", "has no weights of this model"),
        ({"step": 3}, "has no weights of this model: 'model'"),
    ],
)
def test_what_has_no_weights_of_the_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "cnn":
        save_weights(path, make("cnn")[0])
    else:
        torch.save(content, path)
    with pytest.raises(InputError, match=message):
        load_weights(path, make()[0])
    assert not Path("harm").exists()


def test_a_checkpoint_has_weights_too(tmp_path: Path) -> None:
    model, optimizer = make()
    save_checkpoint(tmp_path / "checkpoint.pt", TrainedSoFar(3, 1.0), model, optimizer)
    other = build_model("mlp", (1, 8, 8), 10, 2, None)
    load_weights(tmp_path / "checkpoint.pt", other)
    require_equal(other.state_dict(), model.state_dict())
