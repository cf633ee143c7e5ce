"""What slow ranks cost by a formula, and what the analysis finds: traces without noise, in which
nothing else is slow.

    python benchmarks/closed_form.py

With W ranks of which k compute m times slower, ranks in lockstep lose (m - 1) c in each of the n
steps that the slowness lasts, c being what a step computes: the same for one slow rank as for many,
and each of k equals bears a k-th of it. Seconds of the first steps, which warm up, are nobody's.
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
COMPUTE_S = 0.002 + 0.020 + 0.040 + 0.003
LASTING = range(200, 300)


@dataclass(frozen=True)
class Case:
    """A trace, how many of its ranks are slow, how slow, in how many steps; and the cause that it
    is of.
    """

    told: str
    spec: TraceSpec
    slow: int
    factor: float
    steps: int


def cases() -> Iterator[Case]:
    """One of W slow all along, one of W for a while, k of W all along."""
    for world in (4, 16, 64):
        for factor in (1.2, 2.0, 4.0):
            one = (Injection("compute", factor, rank=1),)
            yield Case(
                f"1 of {world}, all along",
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
                f"{slow} of {world}, all along", _spec(tiers, ()), slow, factor, STEPS - WARM_UP
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
    """A line per case."""
    print("| slow | times | expected, s | found, s | off by | largest share, of 1/k | findings |")
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
