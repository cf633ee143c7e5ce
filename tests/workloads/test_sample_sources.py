"""Where the samples of a step come from: the drive, the cache or one prepared batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from laggard.core.emulated_drive import Drive, DriveLimits, make_drive
from laggard.workloads.datasets.dataset import Batch, CachedSplit, Indices, Raw
from laggard.workloads.datasets.image_folder import FileSplit
from laggard.workloads.datasets.partition import Share
from laggard.workloads.specification.datasets import SampleSource
from laggard.workloads.tracing.batch_loader import BatchLoader

CPU = torch.device("cpu")


class StillRecorder:
    """A recorder that keeps the phases it was told."""

    meter = None

    def __init__(self) -> None:
        self.phases: list[str] = []

    def enter(self, phase: str, **_: object) -> int:
        self.phases.append(str(phase))
        return 0

    def signal_alive(self) -> None:
        """Nobody listens."""


@dataclass
class CountingSplit:
    """Samples 0 to 9, each of eight bytes, that remember what was asked of them."""

    fetched: list[list[int]] = field(default_factory=list)
    dropped: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return 10

    def fetch(self, indices: Indices) -> Raw:
        self.fetched.append(indices.tolist())
        return Raw(indices.astype(np.float64), indices)

    def drop_from_cache(self, indices: Indices) -> None:
        self.dropped.append(indices.tolist())

    def prepare(self, raw: Raw) -> Batch:
        assert not isinstance(raw.inputs, tuple)
        return Batch(torch.from_numpy(raw.inputs), torch.from_numpy(raw.labels))


def take_twice(source: SampleSource, drive: Drive | None) -> tuple[CountingSplit, list[Batch]]:
    split = CountingSplit()
    loader = BatchLoader(split, StillRecorder(), CPU, 1, drive, source)  # type: ignore[arg-type]
    shares = [Share(np.array(each), 2, 1) for each in ([1, 2], [3, 4])]
    return split, [loader.take(share, 0) for share in shares]


@pytest.mark.parametrize(
    ("source", "read_bytes", "fetched", "dropped"),
    [
        ("stored", 32, [[1, 2], [3, 4]], []),
        ("cold", 32, [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("warm", 0, [[1, 2], [3, 4]], []),
        ("prepared", 0, [[1, 2]], []),
    ],
)
def test_each_source_asks_for_what_it_must(
    tmp_path: Path,
    source: SampleSource,
    read_bytes: int,
    fetched: list[list[int]],
    dropped: list[list[int]],
) -> None:
    with make_drive(tmp_path / "drive", DriveLimits(read_mb_per_s=100.0), 1) as drive:
        split, batches = take_twice(source, drive)
        assert drive.counters().read_bytes == read_bytes
    assert split.fetched == fetched
    assert split.dropped == dropped
    first, second = (batch.labels.tolist() for batch in batches)
    assert first == [1, 2]
    assert second == ([1, 2] if source == "prepared" else [3, 4])


def test_a_prepared_batch_is_as_large_as_the_share(tmp_path: Path) -> None:
    split = CountingSplit()
    loader = BatchLoader(split, StillRecorder(), CPU, 1, None, "prepared")  # type: ignore[arg-type]
    sizes = [len(loader.take(Share(np.arange(n), n, 1), 0).labels) for n in (3, 2, 3, 2)]
    assert sizes == [3, 2, 3, 2]
    assert len(split.fetched) == 2


def test_image_files_can_be_dropped_from_the_cache_and_read_again(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{n}.png" for n in range(3))
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 5000)
    split = FileSplit(paths, np.arange(3), 8)
    assert isinstance(split, CachedSplit)
    split.drop_from_cache(np.array([0, 2]))
    assert split.fetch(np.array([0, 2])).inputs == (b"\0" * 5000, b"\2" * 5000)
