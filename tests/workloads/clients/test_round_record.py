"""Rounds and accuracies as a training records them: read back whole, in order, and only if they can
be true."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.run_schema import RoundAnswer, RoundResult
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.clients.round_record import (
    ClientJudge,
    compute_client_accuracies,
    read_client_accuracies,
    read_rounds,
    write_round,
)
from laggard.workloads.output.worker_output import WorkerOutputDir

ROUNDS = (
    RoundResult(
        round=0,
        answers=(
            RoundAnswer(rank=2, reason="drawn", outcome="accepted", took_s=0.25),
            RoundAnswer(rank=0, reason="drawn", outcome="failed"),
        ),
    ),
    # Nobody's answer could be used, so its number comes again.
    RoundResult(round=1, answers=(RoundAnswer(rank=1, reason="drawn", outcome="failed"),)),
    RoundResult(
        round=1,
        answers=(
            RoundAnswer(rank=0, reason="waited longest", outcome="unanswered"),
            RoundAnswer(rank=1, reason="1.2 s", outcome="accepted", took_s=1.2),
        ),
    ),
)


def test_rounds_are_read_as_they_were_written(tmp_path: Path) -> None:
    output_dir = WorkerOutputDir(tmp_path)
    assert read_rounds(output_dir, 3) == ()
    for time_ns, each in enumerate(ROUNDS):
        write_round(output_dir, each, time_ns)
    read = read_rounds(output_dir, 3)
    assert tuple(each.result for each in read) == ROUNDS
    assert [each.time_ns for each in read] == [0, 1, 2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"rank": 2', '"rank": 3'),
        ('"rank": 2', '"rank": -1'),
        ('"outcome": "accepted"', '"outcome": "paid"'),
        ('"took_s": 0.25', '"took_s": -0.25'),
        ('"took_s": 0.25', '"took_s": Infinity'),
        ('"round": 0', '"round": 0.5'),
        ('"reason": "drawn"', '"reason": ["drawn"]'),
    ],
)
def test_a_line_that_cannot_be_true_is_refused(tmp_path: Path, old: str, new: str) -> None:
    output_dir = WorkerOutputDir(tmp_path)
    write_round(output_dir, ROUNDS[0], 5)
    text = output_dir.rounds.read_text()
    assert old in text
    output_dir.rounds.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"rank|rounds?|outcome|took_s|reason"):
        read_rounds(output_dir, 3)


def count_by_hand(labels: Sequence[int], right: Sequence[bool], own: Sequence[int]) -> float:
    """The mean over a client's samples of the accuracy on the class of each."""
    of_class = {
        each: float(np.mean([r for label, r in zip(labels, right, strict=True) if label == each]))
        for each in set(labels)
    }
    tested = [each for each in own if each in of_class]
    return float(np.mean([of_class[each] for each in tested])) if tested else float("nan")


@given(data=st.data())
def test_accuracies_are_those_on_the_classes_of_each_client(data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, 4))
    label = st.integers(0, classes - 1)
    labels = data.draw(st.lists(label, min_size=1, max_size=12))
    right = data.draw(st.lists(st.booleans(), min_size=len(labels), max_size=len(labels)))
    own = data.draw(st.lists(st.lists(label, max_size=6), min_size=1, max_size=4))
    number = np.bincount(labels)
    correct = np.bincount(np.array(labels)[np.array(right)], minlength=len(number))
    counts = np.array([np.bincount(np.array(each, int), minlength=classes) for each in own])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    assert compute_client_accuracies(shares, correct, number) == pytest.approx(
        [count_by_hand(labels, right, each) for each in own], nan_ok=True
    )


def test_the_worst_off_client_is_told_of_those_with_samples(tmp_path: Path) -> None:
    output_dir = WorkerOutputDir(tmp_path)
    labels = np.array([0, 0, 1, 1, 1])
    owners = np.array([0, 0, 0, 2, 2])  # The second client has no samples.
    judge = ClientJudge.create(output_dir, ClientPartition(5, 5, 3, 1, owners), labels, 2)
    judge.write(np.array([9, 2]), np.array([10, 8]))
    judge.write(np.array([1, 8]), np.array([10, 8]))
    first, second = read_client_accuracies(output_dir, [4, 9], 3)
    assert (first.step, first.worst_rank, first.worst) == (4, 2, 0.25)
    mixed = (2 * 0.9 + 0.25) / 3
    assert first.mean == pytest.approx((mixed + 0.25) / 2)
    assert (second.step, second.worst_rank, second.worst) == (9, 0, pytest.approx(1.2 / 3))
    # The evaluator was ended before it wrote the accuracy of all.
    assert read_client_accuracies(output_dir, [4], 3) == (first,)
    with pytest.raises(ValueError, match="rank 2 is none of 2 clients"):
        read_client_accuracies(output_dir, [4, 9], 2)
