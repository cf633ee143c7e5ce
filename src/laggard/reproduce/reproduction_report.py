"""Result of a reproduction, as text and as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from laggard.analysis.reproduction.block_comparison import compare_logarithms
from laggard.analysis.reproduction.compare_pair import Judgment, judge_ratio
from laggard.core.errors import escape_unprintable
from laggard.core.files.input_files import JsonDocument
from laggard.reproduce.run_again import ReproducedRun

_LEAST_PAIRS = 3
_TIMED = frozenset({"step time", "makespan"})
_MOST_CHARACTERS = 100


@dataclass(frozen=True)
class Reproduction:
    """Result of a reproduction.

    Attributes:
        runs: comparison of every run.
        overall: judgment of the makespans of all pairs of a campaign; None with fewer than three.
    """

    runs: tuple[ReproducedRun, ...]
    overall: Judgment | None

    @property
    def agrees(self) -> bool:
        """Return whether all runs agree.

        With a judgment of all pairs, the time of a single pair does not count: it has less power,
        and among many pairs some differ by chance.
        """
        ignored = frozenset() if self.overall is None else _TIMED
        return (self.overall is None or self.overall.agrees) and all(
            judgment.agrees
            for run in self.runs
            for judgment in run.judgments
            if judgment.quantity not in ignored
        )

    def to_document(self) -> dict[str, JsonDocument]:
        """Return the JSON document."""
        return {
            "agrees": self.agrees,
            "overall": None if self.overall is None else asdict(self.overall),
            "runs": [_to_document(run) for run in self.runs],
        }

    def text(self) -> str:
        """Return the text of the verdict; `format_run` has that of each run."""
        count = sum(run.agrees for run in self.runs)
        verdict = "agrees with" if self.agrees else "differs from"
        lines = []
        if self.overall is not None:
            lines.append(f"all {len(self.runs)} pairs: {_format_judgment(self.overall)}")
            lines.append(f"{count} of {len(self.runs)} runs agree in every quantity")
        return "\n".join([*lines, f"the reproduction {verdict} the original"])


def judge_reproduction(runs: Sequence[ReproducedRun], tolerance: float) -> Reproduction:
    """Judge all runs of a reproduction together; see `Reproduction.agrees`."""
    outcomes = [(each.original.outcome, each.reproduction.outcome) for each in runs]
    differences = [
        math.log(other.makespan_s / one.makespan_s)
        for one, other in outcomes
        if one is not None and other is not None and min(one.makespan_s, other.makespan_s) > 0
    ]
    overall = None
    if len(differences) >= _LEAST_PAIRS:
        compared = compare_logarithms(np.array(differences))
        overall = judge_ratio("makespan", "the mean makespan", compared, tolerance, "pairs of runs")
    return Reproduction(tuple(runs), overall)


def format_run(run: ReproducedRun) -> str:
    """Return the text of one run: what differs in its origin, then every judgment."""
    return "\n".join(_format_lines(run))


def _format_lines(run: ReproducedRun) -> Iterator[str]:
    verdict = "agrees" if run.agrees else "differs"
    yield f"{escape_unprintable(run.label)}: {verdict} (reproduced in {run.folder})"
    if run.facts:
        yield "  made differently:"
    for fact in run.facts:
        yield f"    {fact.name}: {_shorten(fact.original)} -> {_shorten(fact.reproduction)}"
    if not run.facts:
        yield "  made by the same versions, on the same hardware, from the same files"
    if run.inexact and any(each.quantity == "losses" for each in run.judgments):
        yield f"  losses need not be equal bit for bit: {'; '.join(run.inexact)}"
    yield from (f"  {_format_judgment(each)}" for each in run.judgments)


def _format_judgment(judgment: Judgment) -> str:
    state = "agrees " if judgment.agrees else "DIFFERS"
    return escape_unprintable(f"{state} {judgment.quantity}: {judgment.sentence}")


def _shorten(value: str) -> str:
    shown = escape_unprintable(value[: _MOST_CHARACTERS + 1])
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."


def _to_document(run: ReproducedRun) -> JsonDocument:
    return {
        "label": run.label,
        "original": run.original.id,
        "reproduction": run.reproduction.id,
        "folder": str(run.folder),
        "agrees": run.agrees,
        "facts": [asdict(each) for each in run.facts],
        "bit_for_bit": not run.inexact,
        "inexact": list(run.inexact),
        "judgments": [asdict(each) for each in run.judgments],
    }
