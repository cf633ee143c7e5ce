"""Record of the rounds of a federated training, and of the accuracies for its clients.

The server writes the rounds and the evaluator the accuracies; `federated.json` has both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter

from laggard.core.node_values import Count, NodeMessage, Number, Real, ShortText
from laggard.core.run_schema import (
    AnswerOutcome,
    ClientAccuracies,
    RoundAnswer,
    RoundResult,
)
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line, read_lines

Indices = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


def write_round(output_dir: WorkerOutputDir, result: RoundResult, time_ns: int) -> None:
    """Append a line for each client that a round selected, when it has ended.

    Args:
        output_dir: folder that the processes of the training share.
        result: result of the round.
        time_ns: time at which it ended.
    """
    for answer in result.answers:
        line = {"round": result.round, "time_ns": time_ns, **answer.model_dump()}
        append_line(output_dir.rounds, line)


@dataclass(frozen=True)
class ClientJudge:
    """Writer of the accuracies for the clients of a federated training.

    Attributes:
        output_dir: folder of the records.
        class_shares: part of each client's samples that is of each class, [clients, C]; 0 for a
            client without samples.
    """

    output_dir: WorkerOutputDir
    class_shares: Shares

    @classmethod
    def create(
        cls, output_dir: WorkerOutputDir, partition: ClientPartition, labels: Indices, classes: int
    ) -> ClientJudge:
        """Create the writer of a training, whose training samples have these labels."""
        counts = np.array(
            [
                np.bincount(labels[partition.list_samples(client)], minlength=classes)
                for client in range(partition.world_size)
            ],
            dtype=np.float64,
        )
        return cls(output_dir, counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))

    def write(self, correct: Indices, number: Indices) -> None:
        """Append the accuracies of an evaluation.

        Args:
            correct: test samples of each class that are classified correctly, [C].
            number: test samples of each class, [C].
        """
        accuracies = compute_client_accuracies(self.class_shares, correct, number)
        known = np.flatnonzero(np.isfinite(accuracies))
        if not len(known):
            return
        worst = int(known[np.argmin(accuracies[known])])
        append_line(
            self.output_dir.client_accuracies,
            {
                "mean": float(accuracies[known].mean()),
                "worst": float(accuracies[worst]),
                "worst_rank": worst,
            },
        )


def compute_client_accuracies(class_shares: Shares, correct: Indices, number: Indices) -> Shares:
    """Return the accuracy for each client: that on each class, weighted by its samples' classes.

    A class without test samples is left out.

    Args:
        class_shares: part of each client's samples that is of each class, [clients, C].
        correct: test samples of each class that are classified correctly, [at most C].
        number: test samples of each class, [at most C].

    Returns:
        Accuracies, [clients]; NaN for a client without samples of a tested class.

    Examples:
        >>> shares = np.array([[1.0, 0.0], [0.25, 0.75]])
        >>> compute_client_accuracies(shares, np.array([9, 4]), np.array([10, 8])).tolist()
        [0.9, 0.6]
    """
    tested = np.flatnonzero(number)
    weights = class_shares[:, tested]
    with np.errstate(invalid="ignore"):
        known: Shares = weights @ (correct[tested] / number[tested]) / weights.sum(axis=1)
    return known


class _AnswerLine(NodeMessage):
    round: Count
    time_ns: Number
    rank: Count
    reason: ShortText
    outcome: AnswerOutcome
    took_s: Annotated[Real, Field(ge=0)] | None
    clipped: bool
    energy_j: Annotated[Real, Field(ge=0)] | None = None


class _ClientAccuracyLine(NodeMessage):
    mean: float = Field(ge=0, le=1)
    worst: float = Field(ge=0, le=1)
    worst_rank: Count


_ANSWERS = TypeAdapter(tuple[_AnswerLine, ...])
_ACCURACIES = TypeAdapter(tuple[_ClientAccuracyLine, ...])


@dataclass(frozen=True)
class TimedRound:
    """Round as a server recorded it.

    Attributes:
        result: result of the round.
        time_ns: its end by the clock of the server's machine.
    """

    result: RoundResult
    time_ns: int


def read_rounds(output_dir: WorkerOutputDir, clients: int) -> tuple[TimedRound, ...]:
    """Read the rounds of a federated training; none of another one.

    Args:
        output_dir: folder of the records.
        clients: number of ranks.

    Raises:
        ValueError: the lines are damaged.
    """
    lines = _ANSWERS.validate_python(read_lines(output_dir.rounds))
    for line in lines:
        _require_client(line.rank, clients)
    rounds = itertools.groupby(lines, lambda line: (line.round, line.time_ns))
    return tuple(
        TimedRound(RoundResult(round=number, answers=tuple(map(_to_answer, own))), time_ns)
        for (number, time_ns), own in rounds
    )


def _to_answer(line: _AnswerLine) -> RoundAnswer:
    return RoundAnswer(
        rank=line.rank,
        reason=line.reason,
        outcome=line.outcome,
        took_s=line.took_s,
        clipped=line.clipped,
        energy_j=line.energy_j,
    )


def read_client_accuracies(
    output_dir: WorkerOutputDir, steps: Sequence[int], clients: int
) -> tuple[ClientAccuracies, ...]:
    """Read the accuracies for the clients in each evaluation that has them.

    Args:
        output_dir: folder of the records.
        steps: step of each evaluation of the training, in order.
        clients: number of ranks.

    Raises:
        ValueError: the lines are damaged.
    """
    lines = _ACCURACIES.validate_python(read_lines(output_dir.client_accuracies))
    for line in lines:
        _require_client(line.worst_rank, clients)
    # The last one is missing if the evaluator was ended between two lines.
    return tuple(
        ClientAccuracies(step=step, **line.model_dump())
        for step, line in zip(steps, lines, strict=False)
    )


def _require_client(rank: int, clients: int) -> None:
    if rank >= clients:
        raise ValueError(f"rank {rank} is none of {clients} clients")
