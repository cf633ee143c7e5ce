"""Cost of slow ranks by a formula and by the analysis, on traces without noise.

    python benchmarks/closed_form.py

Nothing else is slow in these traces. With W ranks in lockstep of which k compute m times slower,
each of the n slow steps loses (m - 1) c, where c is the computing time of a step. One slow rank
costs as much as many, and each of k equal ranks causes a k-th of it. The first steps warm up and
are not charged to any rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analyze_run import analyze_run

STEPS, WARM_UP = 600, 3
# A step's phases in `TraceSpec`: preparation, forward pass, backward pass, optimizer.
COMPUTE_S = 0.002 + 0.020 + 0.040 + 0.003
LASTING = range(200, 300)


@dataclass(frozen=True)
class Case:
    """Trace with a known cost.

    Attributes:
        told: description of the case.
        spec: specification of the trace.
        slow: number of slow ranks.
        factor: factor by which they are slow.
        steps: number of slow steps.
    """

    told: str
    spec: TraceSpec
    slow: int
    factor: float
    steps: int


def cases() -> Iterator[Case]:
    """Yield the cases: one slow rank throughout, one for some steps, several throughout."""
    for world in (4, 16, 64):
        for factor in (1.2, 2.0, 4.0):
            one = (Injection("compute", factor, rank=1),)
            yield Case(
                f"1 of {world}, throughout",
                _spec((Tier("cloud", world),), one),
                1,
                factor,
                STEPS - WARM_UP,
            )
    for world in (4, 64):
        for factor in (1.2, 4.0):
            a_while = (Injection("compute", factor, LASTING.start, LASTING.stop - 1, rank=1),)
            spec = _spec((Tier("cloud", world),), a_while)
            yield Case(f"1 of {world}, {len(LASTING)} steps", spec, 1, factor, len(LASTING))
    for slow, world in ((2, 16), (8, 16), (15, 16), (61, 64)):
        for factor in (1.2, 4.0):
            tiers = (Tier("cloud", world - slow), Tier("edge", slow, factor))
            yield Case(
                f"{slow} of {world}, throughout", _spec(tiers, ()), slow, factor, STEPS - WARM_UP
            )


def _spec(tiers: tuple[Tier, ...], injections: tuple[Injection, ...]) -> TraceSpec:
    return TraceSpec(
        tiers=tiers,
        steps=STEPS,
        steps_per_epoch=10 * STEPS,
        warm_up_steps=WARM_UP,
        noise=QUIET,
        injections=injections,
    )


def main() -> None:
    """Print one line per case."""
    print(
        "| slow ranks | factor | expected, s | found, s | error | largest share, times k |"
        " findings |"
    )
    print("|---|---|---|---|---|---|---|")
    for case in cases():
        analysis = analyze_run(generate_run(case.spec))
        costs = [finding.cost_s for finding in analysis.findings]
        expected, found = (case.factor - 1) * COMPUTE_S * case.steps, sum(costs)
        off, share = found / expected - 1, max(costs) / expected * case.slow
        print(
            f"| {case.told} | {case.factor:g} | {expected:.3f} | {found:.3f} | {off:+.0e} |"
            f" {share:.4f} | {len(costs)} of {case.slow} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
