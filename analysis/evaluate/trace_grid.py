"""Grid of runs as other tools record them, and their evaluation.

It has what the first grid lacks: few steps, stalls of hosts, single long steps, process groups and
pipelines. All random choices of a case derive from the grid's seed and the case's number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from laggard.analysis.evaluate.case_evaluation import compute_cost_error
from laggard.analysis.evaluate.detectability import is_detectable
from laggard.analysis.evaluate.finding_judgment import CaseJudgment, judge_findings
from laggard.analysis.evaluate.ground_truth import WHOLE_RUN_SHARE, InjectedEvent
from laggard.analysis.evaluate.synthetic.trace_generator import (
    Layout,
    SlowPlace,
    TraceJob,
    generate_trace,
    simulate_trace_s,
)
from laggard.analysis.findings.analysis_result import STRAGGLER_SHARE, analyze_lockstep
from laggard.core.run_schema import StragglerFamily

SLOW_PLACES: tuple[tuple[Layout, SlowPlace], ...] = (
    ("data parallel", "compute"),
    ("data parallel", "host gap"),
    ("data parallel", "garbage collection"),
    ("data parallel", "one long step"),
    ("groups", "compute"),
    ("pipeline", "compute"),
)
LAYOUTS: tuple[Layout, ...] = ("data parallel", "groups", "pipeline")
STEPS = (3, 5, 10, 24, 60)
RANKS = (4, 8, 16)
MAGNITUDES = (1.2, 1.5, 2.0, 4.0)
NOISES = (0.02, 0.05, 0.10)
REPETITIONS = 2
_JOB, _ORDER = range(2)


@dataclass(frozen=True)
class TraceCase:
    """One run to generate and judge.

    Attributes:
        number: position in the grid; with `seed`, it determines all random choices.
        seed: seed of the grid.
        layout: arrangement of the ranks.
        slow: what makes a rank slow; "none" in a clean run.
        steps: number of steps.
        ranks: number of ranks.
        magnitude: ratio of the slow rank's local work to the usual work.
        noise: standard deviation of log durations.
    """

    number: int
    seed: int
    layout: Layout
    slow: SlowPlace
    steps: int
    ranks: int
    magnitude: float
    noise: float

    @property
    def name(self) -> str:
        """Return a description of the case in one line."""
        what = "clean" if self.slow == "none" else f"{self.slow} x{self.magnitude:g}"
        return (
            f"{what}, {self.layout}, {self.steps} steps, {self.ranks} ranks,"
            f" noise {self.noise:g}, #{self.seed}.{self.number}"
        )

    def axes(self) -> dict[str, str]:
        """Return the position in the grid, from axis to value, for tables."""
        axes = {
            "slow place": self.slow,
            "layout": self.layout,
            "steps": str(self.steps),
            "ranks": str(self.ranks),
            "noise": f"{self.noise:g}",
        }
        return axes if self.slow == "none" else axes | {"magnitude": f"{self.magnitude:g}"}

    def to_job(self) -> TraceJob:
        """Return the training; the same case gives the same training."""
        random = np.random.default_rng((self.seed, self.number, _JOB))
        return TraceJob(
            layout=self.layout,
            ranks=self.ranks,
            steps=self.steps,
            slow=self.slow,
            magnitude=self.magnitude,
            slow_rank=int(random.integers(self.ranks)),
            noise=self.noise,
            seed=int(random.integers(2**31)),
        )


def build_trace_grid(seed: int) -> tuple[TraceCase, ...]:
    """Return all cases in random order; a clean one follows every two others.

    Args:
        seed: seed of the order and of all random choices in the cases.
    """
    axes = list(product(STEPS, RANKS, MAGNITUDES, NOISES, range(REPETITIONS)))
    slow = [
        TraceCase(0, seed, layout, place, steps, ranks, magnitude, noise)
        for layout, place in SLOW_PLACES
        for steps, ranks, magnitude, noise, _ in axes
    ]
    cells = list(product(LAYOUTS, STEPS, RANKS, NOISES))
    clean = [
        TraceCase(0, seed, layout, "none", steps, ranks, 1.0, noise)
        for layout, steps, ranks, noise in (cells[n % len(cells)] for n in range(len(slow) // 2))
    ]
    cases = [replace(case, number=n) for n, case in enumerate((*slow, *clean))]
    random = np.random.default_rng((seed, len(cases), _ORDER))
    in_turn = random.permutation(len(slow))
    between = len(slow) + random.permutation(len(clean))
    order = np.insert(in_turn, np.arange(2, len(slow) + 1, 2), between)
    return tuple(cases[index] for index in order)


def evaluate_trace(case: TraceCase) -> CaseJudgment:
    """Generate one run, analyze it, and judge the findings."""
    job = case.to_job()
    run = generate_trace(job)
    analysis = analyze_lockstep(run)
    makespan_s, paired_s = simulate_trace_s(job), simulate_trace_s(job.healthy())
    events = build_trace_events(job, 1.0 - paired_s / makespan_s)
    error = compute_cost_error(analysis.lost_s, makespan_s, paired_s) if events else None
    return judge_findings(events, analysis.findings, job.steps, error)


def build_trace_events(job: TraceJob, cost_share: float) -> tuple[InjectedEvent, ...]:
    """Return the events of a training.

    An event of less than 1 % of the makespan is no straggler by definition if it is not in every
    step, so it counts as undetectable.

    Args:
        job: the training.
        cost_share: cost of the slow place as a share of the makespan.
    """
    slow = job.slow_steps
    if not slow:
        return ()
    family: StragglerFamily = (
        "host" if job.slow in ("host gap", "garbage collection") else "compute"
    )
    is_whole = len(slow) >= WHOLE_RUN_SHARE * job.steps
    return (
        InjectedEvent(
            family=family,
            kind="deterministic" if is_whole else "dynamic",
            rank=job.slow_rank,
            links=frozenset(),
            first=slow[0],
            last=slow[-1],
            detectable=(is_whole or cost_share >= STRAGGLER_SHARE)
            and is_detectable(len(slow), job.magnitude, job.noise),
        ),
    )
