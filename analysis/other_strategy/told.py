"""What is said of other strategies: a table for people, a document for machines."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from laggard.analysis.load import Run
from laggard.analysis.other_strategy.instead import Instead

NOT_ACCURACY = (
    "These are times for the same work (as many samples learnt from), not for the same accuracy:"
    " how many samples a strategy needs for that differs, and no replay says it."
)


def instead_document(run: Run, told: Sequence[Instead]) -> JsonValue:
    """One object per strategy, beside what the run took."""
    strategies: list[JsonValue] = [
        {
            "strategy": each.strategy.name,
            "parameters": dict(each.strategy.settings),
            "makespan_s": each.makespan_s,
            "steps": list(each.steps),
            "beyond_s": each.beyond_s,
            "why_not": each.why_not or None,
        }
        for each in told
    ]
    return {
        "for": "the same work, not the same accuracy",
        "measured_s": _measured_s(run),
        "strategies": strategies,
    }


def instead_text(run: Run, told: Sequence[Instead]) -> str:
    """The quickest first; what is not known comes last."""
    measured_s = _measured_s(run)
    name = run.record.strategy.told if run.record is not None else "allreduce"
    as_it_was = "" if measured_s is None else f" It took {measured_s:.1f} s by {name}."
    lines = [f"The same work by other strategies.{as_it_was}"]
    known = sorted(
        (each for each in told if each.makespan_s is not None),
        key=lambda each: each.makespan_s or 0.0,
    )
    width = max((len(each.strategy.told) for each in told), default=0)
    for each in known:
        assert each.makespan_s is not None
        ratio = "" if measured_s is None else f"  {each.makespan_s / measured_s:5.2f}x"
        beyond = (
            f"  {each.beyond_s:.1f} s of it beyond the run"
            if each.beyond_s > 0.01 * each.makespan_s
            else ""
        )
        lines.append(f"  {each.strategy.told:{width}s}  {each.makespan_s:8.1f} s{ratio}{beyond}")
    lines += [f"  {each.strategy.told}: {each.why_not}" for each in told if each.makespan_s is None]
    return "\n".join([*lines, f"  {NOT_ACCURACY}"])


def _measured_s(run: Run) -> float | None:
    outcome = run.record.outcome if run.record is not None else None
    return None if outcome is None else outcome.makespan_s
