"""`workload.yaml`: what is trained, on what data, how, where, and when it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from laggard.core.units import DurationS
from laggard.workloads.compress.parameters import COMPRESSION_NAMES
from laggard.workloads.models import MODEL_NAMES
from laggard.workloads.models.callables import is_callable_name
from laggard.workloads.specification.churn import ChurnEntry
from laggard.workloads.specification.section import NameOrMapping, Section, named
from laggard.workloads.strategies.parameters import (
    SHORTHANDS,
    STRATEGY_NAMES,
    AllReduceParameters,
    StrategyParameters,
    parse_strategy,
)

DATASET_NAMES = ("digits", "synthetic", "cifar10", "image_folder")
OPTIMIZER_NAMES = ("sgd", "adam", "adamw")
MAX_SEED = 2**32 - 1


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Digits(Section):
    """Scikit-learn's 1797 real 8x8 images of handwritten digits: 1437 to train, 360 to test."""

    name: Literal["digits"] = "digits"


class Synthetic(Section):
    """Seeded data that can be learnt: noisy images of class patterns, or token sequences biased by
    class.
    """

    name: Literal["synthetic"] = "synthetic"
    kind: Literal["images", "tokens"] = "images"
    train: int = Field(default=2048, ge=1, le=10_000_000, description="training samples")
    test: int = Field(default=512, ge=1, le=10_000_000, description="test samples")
    classes: int = Field(default=10, ge=2, le=10_000)
    channels: int = Field(default=3, ge=1, le=16)
    size: int = Field(
        default=32, ge=4, le=512, description="height and width of an image, in pixels"
    )
    length: int = Field(default=32, ge=2, le=4096, description="tokens in a sequence")
    vocabulary: int = Field(default=256, ge=2, le=1_000_000, description="different tokens")


class Cifar10(Section):
    """CIFAR-10 in its binary version: a folder with `data_batch_*.bin` and `test_batch.bin`."""

    name: Literal["cifar10"]
    folder: str = Field(min_length=1)


class ImageFolder(Section):
    """A folder of images: `train/CLASS/*.png` and `test/CLASS/*.png`, or `CLASS/*.png`, of which a
    fifth is kept to test.
    """

    name: Literal["image_folder"]
    folder: str = Field(min_length=1)
    size: int = Field(
        default=32,
        ge=8,
        le=512,
        description="images are resized to this height and width, in pixels",
    )


class OwnDataset(Section):
    """The user's own: a callable that takes the seed and returns the data (see
    `workloads/datasets/own.py`).
    """

    name: str

    @field_validator("name")
    @classmethod
    def _is_callable(cls, name: str) -> str:
        if not is_callable_name(name):
            raise ValueError(
                f"no such dataset — use {', '.join(DATASET_NAMES)} or package.module:callable"
            )
        return name


def _dataset_tag(value: object) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if isinstance(name, str) and name in DATASET_NAMES else "own"


DatasetSpec = Annotated[
    Annotated[Digits, Tag("digits")]
    | Annotated[Synthetic, Tag("synthetic")]
    | Annotated[Cifar10, Tag("cifar10")]
    | Annotated[ImageFolder, Tag("image_folder")]
    | Annotated[OwnDataset, Tag("own")],
    Discriminator(_dataset_tag),
]


class OptimizerSpec(Section):
    """The local update rule, as in torch.optim."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(default=0.05, gt=0, le=100, allow_inf_nan=False)
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="for sgd only, and there 0.9 when absent"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Self:
        if self.name != "sgd" and self.momentum is not None:
            raise ValueError(f"{self.name} has no momentum — remove it, or use sgd")
        return self


class Placement(Section):
    """Which hosts train, in rank order; a ring's latency depends on that order."""

    workers: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        default=("all",), min_length=1
    )
    per_host: int = Field(default=1, ge=1, le=64, description="workers on each of these hosts")
    server: str | None = Field(
        default=None, description="the host of a strategy that has a server: the first match"
    )


class Objective(Section):
    """What `adaptive` makes small, or fair; every run reports all three. And what a run costs."""

    name: Literal["makespan", "cost", "fairness"] = "makespan"
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="per host-hour by layer, and `gigabyte` per GB sent between layers",
    )


class Stop(Section):
    """When training ends: whichever of these comes first."""

    accuracy: float | None = Field(
        default=None, gt=0, le=1, description="reached in three evaluations in a row"
    )
    steps: int | None = Field(default=None, ge=1, le=100_000_000)
    time_s: DurationS | None = Field(
        default=None, alias="time", description="since the first step, without evaluations"
    )

    @model_validator(mode="after")
    def _require_stopping_rule(self) -> Self:
        if self.accuracy is None and self.steps is None and self.time_s is None:
            raise ValueError(
                "nothing ends the training — give at least one of accuracy, steps and time"
            )
        if self.time_s is not None and self.time_s <= 0:
            raise ValueError(
                "a time of zero trains nothing — give a positive duration such as 10min"
            )
        return self


class Workload(Section):
    """`workload.yaml`."""

    model: str = Field(
        description=f"{', '.join(MODEL_NAMES)}, or package.module:callable",
        examples=list(MODEL_NAMES),
    )
    dataset: Annotated[DatasetSpec, BeforeValidator(named), NameOrMapping(*DATASET_NAMES)]
    batch_size: int = Field(
        128, ge=1, le=10_000_000, description="samples of one step, over all workers"
    )
    optimizer: Annotated[OptimizerSpec, BeforeValidator(named), NameOrMapping(*OPTIMIZER_NAMES)] = (
        OptimizerSpec()
    )
    strategy: Annotated[
        StrategyParameters,
        BeforeValidator(parse_strategy),
        NameOrMapping(*STRATEGY_NAMES, *SHORTHANDS, *COMPRESSION_NAMES),
    ] = AllReduceParameters()
    placement: Placement = Placement()
    objective: Annotated[
        Objective, BeforeValidator(named), NameOrMapping("makespan", "cost", "fairness")
    ] = Objective()
    stop: Stop = Stop(steps=1000)
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="samples between two evaluations; one pass over the training data when absent",
    )
    checkpoint_every: int | None = Field(
        default=None,
        ge=1,
        description=(
            "steps between two checkpoints, which the first worker writes; none when absent"
        ),
    )
    churn: tuple[ChurnEntry, ...] = Field(
        default=(), description="workers that are killed and started while the others train"
    )
    seed: int = Field(default=1, ge=0, le=MAX_SEED)

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, name: str) -> str:
        if name not in MODEL_NAMES and not is_callable_name(name):
            raise ValueError(
                f"no such model — use {', '.join(MODEL_NAMES)} or package.module:callable"
            )
        return name

    def located(self, scenario_folder: Path) -> Workload:
        """This workload with the dataset's folder made absolute, relative to the scenario's."""
        if not isinstance(self.dataset, Cifar10 | ImageFolder):
            return self
        folder = (scenario_folder / Path(self.dataset.folder).expanduser()).resolve()
        return self.model_copy(
            update={"dataset": self.dataset.model_copy(update={"folder": str(folder)})}
        )
