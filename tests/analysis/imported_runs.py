"""Runs of equal ranks as other tools record them, with slow places whose cost is known.

Every step has pieces of work, each before a collective of all ranks or of some, and an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from laggard.analysis.formats.import_run.imported_run import (
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.import_run.main_lane import TraceSpan
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import Phase

PIECE_NS, TRANSFER_NS, OPTIMIZER_NS = 5e6, 2e5, 1e6
Slowness = Callable[[int, int, int], float]
"""Of a rank's piece of work in a step: arguments are rank, step and piece."""


def _not_slow(_rank: int, _step: int, _piece: int) -> float:
    return 1.0


def _no_stall(_rank: int, _step: int, _piece: int) -> float:
    return 0.0


def _usual_transfer(_step: int, _piece: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Training:
    """Attributes:
    factor: factor on a piece of work.
    stall_ms: unrecorded time before a piece of work.
    transfer: factor on the transfer of a collective, by step and piece.
    groups: members of the collectives after each piece; all ranks without it.
    """

    steps: int
    ranks: int = 4
    pieces: int = 1
    jitter: float = 0.03
    factor: Slowness = _not_slow
    stall_ms: Slowness = _no_stall
    transfer: Callable[[int, int], float] = _usual_transfer
    groups: Sequence[Sequence[Sequence[int]]] | None = None
    seed: int = 0

    @property
    def healthy(self) -> Training:
        """The same training, with the same jitter, in which nothing is slow."""
        return replace(self, factor=_not_slow, stall_ms=_no_stall, transfer=_usual_transfer)


def record(training: Training) -> tuple[RunData, float]:
    """The run, and the seconds that it took."""
    rng = np.random.default_rng(training.seed)
    clock = np.zeros(training.ranks)
    steps: list[RankStep] = []
    for step in range(training.steps):
        begin = clock.copy()
        spans: list[list[TraceSpan]] = [[] for _ in range(training.ranks)]
        for piece in range(training.pieces):
            for rank in range(training.ranks):
                clock[rank] += training.stall_ms(rank, step, piece) * 1e6
                jitter = float(np.exp(rng.normal(0.0, training.jitter)))
                took = PIECE_NS * jitter * training.factor(rank, step, piece)
                phase = Phase.FORWARD if 2 * piece < training.pieces else Phase.BACKWARD
                spans[rank].append(TraceSpan(phase, int(clock[rank]), int(clock[rank] + took)))
                clock[rank] += took
            _meet(training, step, piece, clock, spans)
        for rank in range(training.ranks):
            took = OPTIMIZER_NS * float(np.exp(rng.normal(0.0, training.jitter)))
            end = clock[rank] + took
            spans[rank].append(TraceSpan(Phase.OPTIMIZER, int(clock[rank]), int(end)))
            clock[rank] = end
            steps.append(RankStep(step, rank, int(begin[rank]), int(end), tuple(spans[rank])))
    hosts = tuple(
        build_rank_host(r, f"rank-{r}", device_class="cpu") for r in range(training.ranks)
    )
    origin = TraceOrigin(format="kineto", path="made", notes=())
    run = build_imported_run(Path("made"), origin, steps, hosts, "made by hand")
    return run, float(clock.max()) * 1e-9


def _meet(
    training: Training, step: int, piece: int, clock: np.ndarray, spans: list[list[TraceSpan]]
) -> None:
    groups = training.groups[piece] if training.groups else [range(training.ranks)]
    for number, members in enumerate(groups):
        ranks = list(members)
        end = clock[ranks].max() + TRANSFER_NS * training.transfer(step, piece)
        for rank in ranks:
            group = piece * training.ranks + number
            spans[rank].append(TraceSpan(Phase.COMM, int(clock[rank]), int(end), group=group))
            clock[rank] = end


def measure_lost_share(training: Training) -> float:
    """The share of its duration that a training would not need if nothing were slow."""
    slow, healthy = record(training)[1], record(training.healthy)[1]
    return (slow - healthy) / slow
