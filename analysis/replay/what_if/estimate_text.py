"""Estimates for other strategies, as a text table for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from laggard.analysis.replay.what_if.strategy_estimate import StrategyEstimate
from laggard.analysis.tables.load_run import RunData

NOT_ACCURACY = (
    "These times are for the same work (the same number of samples), not for the same accuracy."
    " Strategies need different numbers of samples for that, and no replay can tell how many."
)


def to_estimate_document(
    run: RunData,
    estimates: Sequence[StrategyEstimate],
    workers: Mapping[str, int] | None = None,
) -> JsonValue:
    """Return the measured makespan, the other numbers of workers, and one object per strategy."""
    strategies: list[JsonValue] = [
        {
            "strategy": each.strategy.name,
            "parameters": dict(each.strategy.settings),
            "makespan_s": each.makespan_s,
            "steps": list(each.steps),
            "extrapolated_s": each.extrapolated_s,
            "failure_reason": each.failure_reason or None,
        }
        for each in estimates
    ]
    return {
        "compared_at": "the same work, not the same accuracy",
        "measured_s": _get_measured_s(run),
        "workers": dict(workers) if workers else None,
        "strategies": strategies,
    }


def format_estimates(
    run: RunData,
    estimates: Sequence[StrategyEstimate],
    workers: Mapping[str, int] | None = None,
) -> str:
    """Format the estimates as text: the fastest first, those without a makespan last."""
    measured_s = _get_measured_s(run)
    name = run.record.strategy.description if run.record is not None else "allreduce"
    as_it_was = "" if measured_s is None else f" The run took {measured_s:.1f} s with {name}."
    if workers:
        others = ", ".join(f"{count} in {tier}" for tier, count in workers.items())
        lines = [
            f"Estimated time of the same work with another number of workers ({others}).{as_it_was}"
        ]
    else:
        lines = [f"Estimated time of the same work with other strategies.{as_it_was}"]
    known = sorted(
        (each for each in estimates if each.makespan_s is not None),
        key=lambda each: each.makespan_s or 0.0,
    )
    width = max((len(each.strategy.label) for each in estimates), default=0)
    for each in known:
        assert each.makespan_s is not None
        ratio = "" if measured_s is None else f"  {each.makespan_s / measured_s:5.2f}x"
        beyond = (
            f"  {each.extrapolated_s:.1f} s of it after the end of the run"
            if each.extrapolated_s > 0.01 * each.makespan_s
            else ""
        )
        lines.append(f"  {each.strategy.label:{width}s}  {each.makespan_s:8.1f} s{ratio}{beyond}")
    lines += [
        f"  {each.strategy.label}: {each.failure_reason}"
        for each in estimates
        if each.makespan_s is None
    ]
    return "\n".join([*lines, f"  {NOT_ACCURACY}"])


def _get_measured_s(run: RunData) -> float | None:
    outcome = run.record.outcome if run.record is not None else None
    return None if outcome is None else outcome.makespan_s
