"""Streams are read while they are written: every row once, in order, and no half batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.workloads.tracing.following import RowFollower
from laggard.workloads.tracing.row_types import STEP_ROW
from laggard.workloads.tracing.stream import RowStream, read_rows


def written(path: Path, batches: list[int]) -> bytes:
    stream, step = RowStream(path, STEP_ROW), 0
    for size in batches:
        for _ in range(size):
            stream.append((step, 1, 10, 20, 0.5, *[3] * 8))
            step += 1
        stream.flush()
    stream.close()
    return path.read_bytes()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_however_much_is_there_at_each_look_every_row_comes_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    content = written(folder / "whole", batches)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    growing = folder / "growing"
    follower = RowFollower(growing, STEP_ROW)
    assert len(follower.read()) == 0
    seen = []
    for cut in [*cuts, len(content)]:
        growing.write_bytes(content[:cut])
        seen.append(follower.read())
    np.testing.assert_array_equal(np.concatenate(seen), read_rows(folder / "whole", STEP_ROW))
    assert len(follower.read()) == 0
