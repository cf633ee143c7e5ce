"""Dataset sections of `workload.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Discriminator, Field, Tag, field_validator

from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.specification.section import Section

DATASET_NAMES = ("digits", "synthetic", "cifar10", "image_folder")


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


class DataSettings(Protocol):
    """Settings of a workload that determine its samples and their order."""

    @property
    def dataset(self) -> DatasetSpec:
        """Source of the samples."""

    @property
    def batch_size(self) -> int:
        """Number of samples in one step of all workers together."""

    @property
    def seed(self) -> int:
        """Seed of the random generators."""
