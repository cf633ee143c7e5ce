"""A folder of image files with one folder per class.

Files are read when they are fetched, and decoded when they are prepared.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from laggard.core.errors import InputError
from laggard.workloads.datasets.dataset import Batch, Data, Indices, Raw
from laggard.workloads.output.worker_output import write_whole
from laggard.workloads.specification.datasets import ImageFolder

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"})
INDEX = "image_folder.json"
# One in so many images is kept for tests if the folder has no split of its own.
TEST_PART = 5
_CHUNK_BYTES = 1 << 20

Labelled = list[tuple[str, int]]


@dataclass(frozen=True)
class FileSplit:
    """Image files [n] and labels [n].

    Images are resized to `size` x `size` pixels of three channels.
    """

    files: tuple[Path, ...]
    labels: Indices
    size: int

    def __len__(self) -> int:
        return len(self.files)

    def fetch(self, indices: Indices) -> Raw:
        """Read the files."""
        return Raw(tuple(self.files[i].read_bytes() for i in indices), self.labels[indices])

    def drop_from_cache(self, indices: Indices) -> None:
        """Have the next fetch read these files from their storage (see `CachedSplit`)."""
        for i in indices:
            with self.files[i].open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def prepare(self, raw: Raw) -> Batch:
        """Decode the files, resize the images, and scale the values to -1 … 1.

        Raises:
            InputError: a file is not an image.
        """
        assert isinstance(raw.inputs, tuple)
        pixels = np.empty((len(raw.inputs), self.size, self.size, 3), dtype=np.uint8)
        for i, content in enumerate(raw.inputs):
            pixels[i] = _decode_image(content, self.size)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        return Batch(images.contiguous(), torch.from_numpy(raw.labels))


def _decode_image(content: bytes, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(
            f"image_folder: a file of {len(content)} bytes is not a readable image: {error} —"
            " remove the file"
        ) from error


def index(spec: ImageFolder, seed: int, target: Path) -> None:
    """List the files once, so that workers can open them with `load`.

    Raises:
        InputError: there is no training image or no test image.
    """
    root = Path(spec.folder)
    own_split = (root / "train").is_dir() and (root / "test").is_dir()
    classes = _list_classes(root / "train" if own_split else root)
    if own_split:
        train, test = _list_files(root / "train", classes), _list_files(root / "test", classes)
    else:
        every = _list_files(root, classes)
        order = np.random.default_rng(seed).permutation(len(every))
        cut = len(every) // TEST_PART
        test, train = [every[i] for i in order[:cut]], [every[i] for i in order[cut:]]
    if not train or not test:
        raise InputError(
            f"{root}: {len(train)} training and {len(test)} test images — at least one of each is"
            " needed, as train/CLASS/*.png and test/CLASS/*.png, or as CLASS/*.png"
        )
    listing = {"train": train, "test": test, "classes": classes, "size": spec.size}
    write_whole(target / INDEX, json.dumps(listing).encode())


def read_all(folder: Path) -> None:
    """Read every file of the dataset that `index` has listed, so that the system caches it."""
    for split in ("train", "test"):
        for path, _ in json.loads((folder / INDEX).read_bytes())[split]:
            with Path(path).open("rb") as file:
                while file.read(_CHUNK_BYTES):
                    pass


def load(folder: Path) -> Data:
    """Open the dataset that `index` has listed."""
    from PIL import Image

    # This loads the decoders, so that no worker loads them within its first step.
    Image.init()
    listing = json.loads((folder / INDEX).read_bytes())
    size = listing["size"]

    def split(pairs: Labelled) -> FileSplit:
        return FileSplit(
            tuple(Path(path) for path, _ in pairs),
            np.array([label for _, label in pairs], dtype=np.int64),
            size,
        )

    return Data(
        split(listing["train"]), split(listing["test"]), (3, size, size), len(listing["classes"])
    )


def _list_classes(root: Path) -> list[str]:
    if not root.is_dir():
        raise InputError(f"{root}: no such folder — give a folder that has one folder per class")
    classes = sorted(
        path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if len(classes) < 2:
        raise InputError(
            f"{root}: found {len(classes)} class folders — give a folder with at least two, one per"
            " class"
        )
    return classes


def _list_files(root: Path, classes: list[str]) -> Labelled:
    return [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
