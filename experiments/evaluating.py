"""`laggard evaluate`: the analysis is held against runs whose stragglers are known."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter

from laggard.analysis.evaluate.account import Tried
from laggard.analysis.evaluate.grid import full_grid
from laggard.analysis.evaluate.online import judge_online
from laggard.analysis.evaluate.trial import try_cases
from laggard.analysis.evaluate.verdict import judge
from laggard.analysis.online.replayed import alarms_of
from laggard.experiments.emulated_cases import SCENARIO, EmulatedCase, emulated_cases
from laggard.experiments.emulated_truth import injected_events
from laggard.experiments.run_apart import run_apart
from laggard.run_schema import Finding

log = logging.getLogger(__name__)

DEFAULT_CASES = 1500
DEFAULT_EMULATED = 6

_T = TypeVar("_T")


@dataclass(frozen=True)
class Extent:
    """How much is tried: the first `cases` of the grid (None: all of it), drawn from `seed`."""

    cases: int | None
    seed: int


def evaluate_generated(extent: Extent, *, quiet: bool) -> tuple[Tried, ...]:
    """Tries generated runs, as many at once as there are cores.

    Args:
        extent: which part of the grid.
        quiet: whether to draw no progress, which is drawn on a terminal only.

    Returns:
        Each run with its verdict, in the grid's order.
    """
    cases = full_grid(extent.seed)[: extent.cases]
    verdicts = _counted(try_cases(cases), len(cases), quiet=quiet)
    return tuple(
        Tried(case.name, case.axes(), verdict)
        for case, verdict in zip(cases, verdicts, strict=True)
    )


def evaluate_emulated(extent: Extent, runs: Path, *, quiet: bool) -> tuple[Tried, ...]:
    """Tries real runs on the emulated continuum, one after the other.

    Args:
        extent: how many, and the seed of when and where they are slowed.
        runs: where their run folders are kept.
        quiet: whether they say nothing meanwhile.

    Returns:
        Each run with its verdict; a run that failed, or whose emulation slipped, proves nothing and
        is left out.
    """
    cases = emulated_cases(extent.seed, extent.cases or DEFAULT_EMULATED)
    tried = (_try_emulated(case, runs, quiet=quiet) for case in cases)
    return tuple(each for each in tried if each is not None)


def _try_emulated(case: EmulatedCase, runs: Path, *, quiet: bool) -> Tried | None:
    from laggard.analysis.load import load_run

    if not quiet:
        sys.stderr.write(f"{case.name}\n")
    answer = run_apart(SCENARIO, case.overrides(), runs).answer or {}
    if answer.get("status") != "done":
        log.warning(
            "%s: the run ended %s and is left out",
            case.name,
            answer.get("status", "without an answer"),
        )
        return None
    folder = Path(str(answer["folder"]))
    run = load_run(folder)
    findings = TypeAdapter(tuple[Finding, ...]).validate_python(answer["stragglers"])
    steps = len(np.unique(run.spans.step))
    events = injected_events(run, folder)
    verdict = replace(
        judge(events, findings, steps, None), online=judge_online(events, alarms_of(run), steps)
    )
    return Tried(f"{case.name}, {folder}", {"injected": case.family}, verdict)


def _counted(verdicts: Iterator[_T], count: int, *, quiet: bool) -> Iterator[_T]:
    if quiet or not sys.stderr.isatty():
        return verdicts
    from rich.console import Console
    from rich.progress import track

    return iter(
        track(verdicts, "evaluate", total=count, console=Console(stderr=True), transient=True)
    )
