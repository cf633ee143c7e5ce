"""Rehearsal adds old samples to steps, and every rank knows how many the others add."""

from __future__ import annotations

import numpy as np
import pytest

from laggard.workloads.specification.stream import RehearsalSpec
from laggard.workloads.streams.rehearsal import FollowedBuffers, Rehearsal, SeenSamples
from laggard.workloads.streams.stream_partition import StreamPartition, draw_births
from laggard.workloads.streams.task_stream import build_class_stream, split_classes

WORLD, BATCH = 3, 12
LABELS = np.random.default_rng(4).integers(0, 6, 240)


def build_seen(keep: str, *, born: bool = False, exchange: str = "local") -> SeenSamples:
    partition = StreamPartition(
        len(LABELS),
        BATCH,
        WORLD,
        7,
        stream=build_class_stream(LABELS, split_classes(6, 3, None)),
        births=draw_births(LABELS, WORLD, 0.3, 1) if born else None,
    )
    spec = RehearsalSpec(size=20, sample=5, keep=keep, exchange=exchange)
    return SeenSamples(spec, partition, LABELS, 7)


def build_rehearsals(keep: str, *, born: bool = False) -> list[Rehearsal]:
    seen = build_seen(keep, born=born)
    return [Rehearsal(seen, rank) for rank in range(WORLD)]


@pytest.mark.parametrize("keep", ["reservoir", "class_balanced"])
@pytest.mark.parametrize("born", [False, True])
def test_all_ranks_agree_on_the_size_of_each_step(keep: str, born: bool) -> None:
    rehearsals = build_rehearsals(keep, born=born)
    partition = rehearsals[0].seen.partition
    seen: list[set[int]] = [set() for _ in range(WORLD)]
    for step in range(20):
        new = [partition.share(step, rank) for rank in range(WORLD)]
        shares = [each.extend(step, new[rank])[0] for rank, each in enumerate(rehearsals)]
        assert {share.batch_size for share in shares} == {sum(len(s.indices) for s in shares)}
        for rank, share in enumerate(shares):
            count = len(new[rank].indices)
            assert (share.indices[:count] == new[rank].indices).all()
            old = {*share.indices[count:].tolist()}
            # Only what this rank has trained on before, and up to five of it.
            assert old <= seen[rank]
            assert len(old) == len(share.indices) - count == min(5, len(seen[rank]))
            seen[rank] |= {*new[rank].indices.tolist()}


def test_steps_may_be_left_out_but_not_repeated() -> None:
    rehearsal = build_rehearsals("class_balanced")[0]
    partition = rehearsal.seen.partition
    late = rehearsal.extend(9, partition.share(9, 0))[0].indices
    with pytest.raises(ValueError, match="step 8"):
        rehearsal.extend(8, partition.share(8, 0))
    other = build_rehearsals("class_balanced")[0]
    for step in range(9):
        other.extend(step, partition.share(step, 0))
    assert other.extend(9, partition.share(9, 0))[0].indices.tolist() == late.tolist()


@pytest.mark.parametrize("born", [False, True])
def test_all_ranks_follow_the_same_buffers(born: bool) -> None:
    one = FollowedBuffers(build_seen("class_balanced", born=born, exchange="global"))
    other = FollowedBuffers(build_seen("class_balanced", born=born, exchange="global"))
    seen: set[int] = set()
    for step in range(20):
        draws = one.draw(step)
        # Also if steps are left out.
        if step % 3 == 0:
            assert other.draw(step) == draws
        for draw in draws:
            assert len({each.sample for each in draw}) == len(draw) == min(5, len(seen))
            assert {each.sample for each in draw} <= seen
        for rank in range(WORLD):
            seen |= {*one.seen.find(step, rank)[0].tolist()}
    holders = {each.holder for draw in one.draw(20) for each in draw}
    assert holders == {*range(WORLD)}
