"""Parts of every step of every rank: what it spent on samples, computing, waiting and sending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.collective_waits import compute_wait_ns
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import COMPUTE_PHASES, SAMPLE_PHASES, Flag, Lane, Phase

StepPart = Literal["fetch", "prep", "compute", "wait", "transfer"]
"""Part of a step. `transfer` is communication that delays the rank, without waits for others."""

STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)

_FULL_BATCH = 0.9
"""A step with fewer samples than this fraction of the rank's most is the rest of an epoch."""


@dataclass(frozen=True)
class StepParts:
    """Parts of the usual steps of all ranks, in seconds per sample.

    Warm-up steps, unfinished steps, each rank's last step and the smaller last batches of epochs
    are left out.

    Attributes:
        hosts: host of every rank.
        tiers: tier of every rank.
        rank: rank of each step, [N].
        parts: seconds per sample of each part, [N] each, in the order of each rank's steps.
    """

    hosts: tuple[str, ...]
    tiers: tuple[str, ...]
    rank: IntArray
    parts: Mapping[StepPart, FloatArray]

    def average(self, ranks: Sequence[int], parts: Sequence[StepPart]) -> FloatArray:
        """Return the sum of some parts in each step, averaged over ranks, [steps].

        Steps are counted from each rank's first one; a step that a rank lacks is left out.
        """
        total = np.sum([self.parts[part] for part in parts], axis=0)
        each = [total[self.rank == rank] for rank in ranks]
        least = min(map(len, each))
        mean: FloatArray = np.mean([values[:least] for values in each], axis=0)
        return mean


def measure_step_parts(run: RunData) -> StepParts:
    """Return the parts of the usual steps of a run.

    Raises:
        RunFolderError: a rank has no usual step.
    """
    steps, spans = run.steps, _select_main_lane(run)
    width = int(max(steps.step.max(initial=0), spans.step.max(initial=0))) + 1
    keys = steps.rank * width + steps.step
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], spans.rank * width + spans.step)
    known = place < len(keys)
    known[known] = keys[order][place[known]] == (spans.rank * width + spans.step)[known]
    spans, row = spans.where(known), order[place[known]]
    usual = _find_usual_steps(run, row[spans.flags & (Flag.WARM_UP | Flag.TRUNCATED) != 0])
    kept = np.flatnonzero(usual)[np.argsort(keys[usual])]
    parts: dict[StepPart, FloatArray] = {
        part: np.bincount(row, seconds, len(keys))[kept] / steps.samples[kept]
        for part, seconds in _split_spans(run, spans).items()
    }
    missing = sorted(set(range(run.world_size)) - set(steps.rank[kept].tolist()))
    if missing:
        raise RunFolderError(
            f"{run.folder}: rank {missing[0]} finished no step after its warm-up — let the run"
            " have more steps"
        )
    return StepParts(
        tuple(host.host for host in run.hosts),
        tuple(host.tier for host in run.hosts),
        steps.rank[kept],
        parts,
    )


def _select_main_lane(run: RunData) -> SpanColumns:
    spans = run.spans.where((run.spans.lane == Lane.MAIN) & (run.spans.step >= 0))
    return spans.where(spans.start_ns >= 0)


def _find_usual_steps(
    run: RunData, unusual: IntArray
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    steps = run.steps
    usual = steps.samples > 0
    usual[unusual] = False
    for rank in range(run.world_size):
        own = np.flatnonzero(steps.rank == rank)
        if not len(own):
            continue
        usual[own[steps.step[own] == steps.step[own].max()]] = False
        usual[own[steps.samples[own] < _FULL_BATCH * steps.samples[own].max()]] = False
    return usual


def _split_spans(run: RunData, spans: SpanColumns) -> dict[StepPart, FloatArray]:
    waited = compute_wait_ns(run, spans)
    communicates = spans.phase == Phase.COMM.code
    computes = np.isin(
        spans.phase, [phase.code for phase in COMPUTE_PHASES if phase is not Phase.PREP]
    )
    gets_samples = [phase.code for phase in SAMPLE_PHASES]
    seconds = spans.dur_ns * 1e-9
    return {
        "fetch": np.where(np.isin(spans.phase, gets_samples), seconds, 0.0),
        "prep": np.where(spans.phase == Phase.PREP.code, seconds, 0.0),
        "compute": np.where(computes, seconds, 0.0),
        "wait": np.where(communicates, waited * 1e-9, 0.0),
        "transfer": np.where(communicates, seconds - waited * 1e-9, 0.0),
    }
