"""Every dataset, on small files in its own format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laggard.core.errors import InputError, WorkerError
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.datasets.dataset import Batch, Data, Split
from laggard.workloads.workload import Workload


def prepared(tmp_path: Path, dataset: object, seed: int = 1) -> Data:
    workload = Workload.model_validate({"model": "mlp", "dataset": dataset, "seed": seed})
    prepare_data(workload, tmp_path)
    prepare_data(workload, tmp_path)
    return open_data(workload, tmp_path)


def batch(split: Split, *indices: int) -> Batch:
    return split.prepare(split.fetch(np.array(indices, dtype=np.int64)))


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    data = prepared(tmp_path, "digits")
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (
        1437,
        360,
        10,
        (1, 8, 8),
    )
    train, test = batch(data.train, *range(1437)), batch(data.test, *range(360))
    ours = torch.cat([train.inputs, test.inputs]).mul(8).add(8).flatten(1).numpy()
    labels = torch.cat([train.labels, test.labels]).numpy()
    theirs, their_labels = load_digits(return_X_y=True)
    assert np.array_equal(
        sorted(map(tuple, np.c_[ours, labels])), sorted(map(tuple, np.c_[theirs, their_labels]))
    )
    assert train.inputs.dtype == torch.float32
    assert np.bincount(test.labels).min() > 20


def test_fetching_is_mapped_and_preparing_is_not(tmp_path: Path) -> None:
    split = prepared(tmp_path, "digits").train
    raw = split.fetch(np.array([5, 3]))
    assert raw.inputs.dtype == np.uint8
    assert isinstance(split.inputs, np.memmap)  # type: ignore[attr-defined]
    assert batch(split, 5, 3).inputs.shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("dataset", "sample_bytes"),
    [
        ("digits", 8 * 8),
        ({"name": "synthetic", "train": 60, "test": 20, "size": 8}, 3 * 8 * 8),
        ({"name": "synthetic", "kind": "tokens", "train": 60, "test": 20, "length": 10}, 10 * 4),
    ],
)
def test_rows_are_read_at_once_as_they_are_stored(
    tmp_path: Path, dataset: object, sample_bytes: int
) -> None:
    raw = prepared(tmp_path, dataset).train.fetch(np.array([5, 3, 5]))
    assert (raw.stored_bytes, raw.accesses) == (3 * sample_bytes, 1)


@pytest.mark.parametrize("kind", ["images", "tokens"])
def test_synthetic_data_follow_the_seed(tmp_path: Path, kind: str) -> None:
    spec = {
        "name": "synthetic",
        "kind": kind,
        "train": 60,
        "test": 20,
        "classes": 3,
        "size": 8,
        "vocabulary": 12,
    }
    one, same, other = (prepared(tmp_path / str(i), spec, seed) for i, seed in enumerate([1, 1, 2]))
    every = range(60)
    assert torch.equal(batch(one.train, *every).inputs, batch(same.train, *every).inputs)
    assert not torch.equal(batch(one.train, *every).inputs, batch(other.train, *every).inputs)
    assert one.vocabulary == (12 if kind == "tokens" else None)
    assert one.input_shape == ((32,) if kind == "tokens" else (3, 8, 8))
    assert batch(one.train, 0).inputs.dtype == (torch.int64 if kind == "tokens" else torch.float32)


def test_synthetic_images_can_be_learnt(tmp_path: Path) -> None:
    """By the nearest class mean."""
    spec = {"name": "synthetic", "train": 300, "test": 100, "classes": 4, "size": 8}
    data = prepared(tmp_path, spec)
    train, test = batch(data.train, *range(300)), batch(data.test, *range(100))
    means = torch.stack([train.inputs[train.labels == c].mean(0) for c in range(4)]).flatten(1)
    nearest = torch.cdist(test.inputs.flatten(1), means).argmin(1)
    assert (nearest == test.labels).float().mean() > 0.95


def write_cifar(folder: Path, name: str, rows: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    content = random.integers(0, 256, (rows, 3073), dtype=np.uint8)
    content[:, 0] = random.integers(0, 10, rows)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content.tobytes())
    return content


def test_cifar10_binary_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar"
    rows = np.concatenate([write_cifar(folder, f"data_batch_{i}.bin", 5 + i, i) for i in (1, 2, 3)])
    test_rows = write_cifar(folder, "test_batch.bin", 4, 9)
    data = prepared(tmp_path / "workers", {"name": "cifar10", "folder": str(folder)})
    assert (len(data.train), len(data.test), data.input_shape, data.classes) == (
        21,
        4,
        (3, 32, 32),
        10,
    )
    order = [20, 0, 6, 5, 13]
    got = batch(data.train, *order)
    assert got.labels.tolist() == rows[order, 0].tolist()
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    pixels = rows[order, 1:].reshape(-1, 3, 32, 32) / 255
    expected = (pixels - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(got.inputs.numpy(), expected, atol=1e-5)
    assert batch(data.test, 2).labels.tolist() == [test_rows[2, 0]]
    raw = data.train.fetch(np.array(order))
    assert (raw.stored_bytes, raw.accesses) == (5 * 3073, 1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x" * 3000, "not a whole number"),
        (b"\xff" * 3073, "label above 9"),
        (b"", "not a whole number"),
    ],
)
def test_cifar10_files_that_are_none(tmp_path: Path, content: bytes, says: str) -> None:
    write_cifar(tmp_path, "test_batch.bin", 2, 1)
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(InputError, match=says):
        prepared(tmp_path / "workers", {"name": "cifar10", "folder": str(tmp_path)})


def test_cifar10_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no CIFAR-10 here"):
        prepared(tmp_path / "workers", {"name": "cifar10", "folder": str(tmp_path)})


def write_images(root: Path, classes: dict[str, int], count: int) -> None:
    for name, grey in classes.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            suffix = "png" if i % 2 else "bmp"
            Image.new("L" if i % 3 else "RGBA", (20 + i, 12), grey).save(
                root / name / f"{i}.{suffix}"
            )


def test_an_image_folder_with_its_own_split(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write_images(root / "train", {"black": 0, "white": 255}, 6)
    write_images(root / "test", {"black": 0, "white": 255}, 2)
    (root / "train" / "black" / "notes.txt").write_text("not an image")
    data = prepared(tmp_path / "workers", {"name": "image_folder", "folder": str(root), "size": 8})
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (
        12,
        4,
        2,
        (3, 8, 8),
    )
    got = batch(data.train, 1, 7)
    assert got.labels.tolist() == [0, 1]
    assert got.inputs[0].max() == -1
    assert got.inputs[1].min() == 1
    raw = data.train.fetch(np.array([1]))
    assert isinstance(raw.inputs[0], bytes)
    raw = data.train.fetch(np.array([1, 7, 1]))
    sizes = [
        (root / "train" / name / "1.png").stat().st_size for name in ("black", "white", "black")
    ]
    assert (raw.stored_bytes, raw.accesses) == (sum(sizes), 3)


def test_an_image_folder_that_is_split_here(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write_images(root, {"a": 10, "b": 20, "c": 30}, 5)
    spec = {"name": "image_folder", "folder": str(root), "size": 8}
    data = prepared(tmp_path / "workers", spec)
    assert (len(data.train), len(data.test), data.classes) == (12, 3, 3)
    listing = json.loads((tmp_path / "workers" / "data" / "image_folder.json").read_text())
    assert not {path for path, _ in listing["train"]} & {path for path, _ in listing["test"]}


def test_a_file_that_is_no_image(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write_images(root, {"a": 10, "b": 20}, 5)
    for path in root.rglob("*.*"):
        path.write_bytes(b"\x89PNG broken")
    data = prepared(tmp_path / "workers", {"name": "image_folder", "folder": str(root)})
    with pytest.raises(InputError, match="is not a readable image"):
        batch(data.train, 0)


@pytest.mark.parametrize("make", [[], ["only"]])
def test_image_folders_that_are_none(tmp_path: Path, make: list[str]) -> None:
    root = tmp_path / "images"
    root.mkdir()
    for name in make:
        (root / name).mkdir()
    with pytest.raises(InputError, match="at least two, one per class"):
        prepared(tmp_path / "workers", {"name": "image_folder", "folder": str(root)})
    with pytest.raises(InputError, match="no such folder"):
        prepared(
            tmp_path / "workers", {"name": "image_folder", "folder": str(tmp_path / "nowhere")}
        )


OWN = """
import numpy as np
from laggard.workloads.datasets.arrays import ArraySplit
from laggard.workloads.datasets.dataset import Data

def images(seed):
    labels = np.arange(12) % 3
    return np.full((12, 1, 8, 8), seed, dtype=np.float32), labels, np.zeros((3, 1, 8, 8), dtype=np.float32), labels[:3]

def tokens(seed):
    labels = np.arange(4) % 2
    return np.arange(20).reshape(4, 5), labels, np.arange(20).reshape(4, 5), labels

def splits(seed):
    split = ArraySplit(np.zeros((6, 1, 8, 8), dtype=np.float32), np.zeros(6, dtype=np.int64))
    return Data(split, split, (1, 8, 8), 2)

def wrong_lengths(seed):
    return np.zeros((4, 1, 8, 8)), np.zeros(3, dtype=int), np.zeros((4, 1, 8, 8)), np.zeros(4, dtype=int)

def wrong_shapes(seed):
    return np.zeros((4, 1, 8, 8)), np.zeros(4, dtype=int), np.zeros((4, 1, 9, 8)), np.zeros(4, dtype=int)

def negative(seed):
    return np.zeros((4, 1, 8, 8)), -np.ones(4, dtype=int), np.zeros((4, 1, 8, 8)), np.zeros(4, dtype=int)

def text(seed):
    return "nothing"

def wrong_kind(seed):
    return np.zeros((4, 5)), np.zeros(4, dtype=int), np.zeros((4, 5)), np.zeros(4, dtype=int)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_data_of_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_own_data(own: Path) -> None:
    images = prepared(own / "a", "own_data_of_test:images", seed=9)
    assert (len(images.train), images.classes, images.input_shape) == (12, 3, (1, 8, 8))
    assert batch(images.train, 4).inputs.eq(9).all()
    tokens = prepared(own / "b", "own_data_of_test:tokens")
    assert (tokens.vocabulary, tokens.input_shape) == (20, (5,))
    assert batch(tokens.train, 1).inputs.tolist() == [[5, 6, 7, 8, 9]]
    splits = prepared(own / "c", "own_data_of_test:splits")
    assert len(splits.train) == 6


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrong_lengths", "4 training samples and 3 labels"),
        ("wrong_shapes", "must have the same shape"),
        ("negative", "labels must be"),
        ("text", "returned a str"),
        ("wrong_kind", "not whole numbers"),
    ],
)
def test_own_data_that_is_none(own: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        prepared(own / "workers", f"own_data_of_test:{name}")


def test_nobody_prepared_it(tmp_path: Path) -> None:
    workload = Workload.model_validate({"model": "mlp", "dataset": "digits"})
    with pytest.raises(WorkerError, match="was not prepared"):
        open_data(workload, tmp_path, patience_s=0.05)
