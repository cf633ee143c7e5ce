"""What is said of other strategies: a table for people, a document for machines."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from laggard.analysis.replay.what_if.strategy_estimate import StrategyEstimate
from laggard.analysis.tables.load_run import RunData

NOT_ACCURACY = (
    "These are times for the same work (as many samples learnt from), not for the same accuracy:"
    " how many samples a strategy needs for that differs, and no replay says it."
)


def to_estimate_document(run: RunData, estimates: Sequence[StrategyEstimate]) -> JsonValue:
    """One object per strategy, beside what the run took."""
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
        "strategies": strategies,
    }


def format_estimates(run: RunData, estimates: Sequence[StrategyEstimate]) -> str:
    """The quickest first; what is not known comes last."""
    measured_s = _get_measured_s(run)
    name = run.record.strategy.description if run.record is not None else "allreduce"
    as_it_was = "" if measured_s is None else f" It took {measured_s:.1f} s by {name}."
    lines = [f"The same work by other strategies.{as_it_was}"]
    known = sorted(
        (each for each in estimates if each.makespan_s is not None),
        key=lambda each: each.makespan_s or 0.0,
    )
    width = max((len(each.strategy.label) for each in estimates), default=0)
    for each in known:
        assert each.makespan_s is not None
        ratio = "" if measured_s is None else f"  {each.makespan_s / measured_s:5.2f}x"
        beyond = (
            f"  {each.extrapolated_s:.1f} s of it beyond the run"
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
