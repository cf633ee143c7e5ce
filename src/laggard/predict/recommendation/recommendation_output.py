"""Recommendations as text and as a document for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from laggard.core.text.text_columns import align_columns
from laggard.core.text.text_format import format_percent
from laggard.predict.recommendation.recommend_scenario import Recommendation

if TYPE_CHECKING:
    from pydantic import JsonValue

_SHOWN = 12
_HOUR_S = 3600.0


def format_recommendation(recommendation: Recommendation) -> str:
    """Format the candidates on the front, the answer and the next measurement."""
    return "\n".join(_format_lines(recommendation))


def build_recommendation_document(recommendation: Recommendation) -> dict[str, JsonValue]:
    """Return the recommendation as a document."""
    chosen, useful = recommendation.choice.candidate, recommendation.useful
    return {
        "scenario": recommendation.scenario.name,
        "steps": recommendation.steps,
        "within_s": recommendation.budget.within_s,
        "cost_below": _finite(recommendation.budget.cost_below),
        "price_unit": recommendation.unit,
        "feasible": chosen is not None,
        "recommended": None if chosen is None else recommendation.candidates[chosen].name,
        "nearest": recommendation.candidates[recommendation.nearest].name,
        "measure_next": None if useful is None else recommendation.candidates[useful].name,
        "front": list(recommendation.front),
        "candidates": [
            _describe(recommendation, number) for number in range(len(recommendation.candidates))
        ],
        "notes": list(recommendation.notes),
    }


def _describe(recommendation: Recommendation, number: int) -> dict[str, JsonValue]:
    each, times_s = recommendation.candidates[number], recommendation.times_s[:, number]
    low, usual, high = recommendation.costs(number)
    return {
        "name": each.name,
        "place": each.instance.place,
        "machines": each.machines,
        "strategy": each.strategy,
        "price_per_hour": each.price_per_hour,
        "speed": each.speed,
        "measured_s": recommendation.measured.get(number),
        "time_s": float(times_s[1]),
        "time_s_low": float(times_s[0]),
        "time_s_high": float(times_s[2]),
        "cost": usual,
        "cost_low": low,
        "cost_high": high,
        "in_budget": float(recommendation.choice.in_budget[number]),
        "cheapest": float(recommendation.choice.cheapest[number]),
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _format_lines(recommendation: Recommendation) -> Iterator[str]:
    workload = recommendation.scenario.workload
    yield (
        f"{recommendation.scenario.name}: {workload.model} on {workload.dataset.name},"
        f" {recommendation.steps} steps, {format_budget(recommendation)}"
    )
    yield (
        f"Of {len(recommendation.candidates)} candidates no other is both faster and cheaper than"
        " these:"
    )
    rows = [["candidate", "time", "(90 %)", "cost", "(90 %)", "in budget"]]
    rows += [_format_row(recommendation, number) for number in _choose_shown(recommendation)]
    yield from align_columns(rows)
    yield from _format_answer(recommendation)
    yield from _format_next(recommendation)
    yield from (f"note: {each}" for each in recommendation.notes)


def format_budget(recommendation: Recommendation) -> str:
    """Format the limits of time and cost."""
    budget = recommendation.budget
    text = f"within {format_hours(budget.within_s)}"
    if budget.cost_below < float("inf"):
        text += f" for less than {budget.cost_below:g}{_unit(recommendation)}"
    return text


def format_hours(seconds: float) -> str:
    """Format a time in hours, and in minutes or seconds if it is short."""
    if seconds >= _HOUR_S:
        return f"{seconds / _HOUR_S:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"


def _choose_shown(recommendation: Recommendation) -> list[int]:
    """Return the front, or of a long one the part around the answer, and what was measured."""
    front, answer = list(recommendation.front), recommendation.choice.candidate
    if len(front) > _SHOWN:
        around = recommendation.nearest if answer is None else answer
        times_s = recommendation.times_s[1]
        front.sort(key=lambda each: abs(times_s[each] / times_s[around] - 1))
        front = front[:_SHOWN]
    shown = {*front, *recommendation.measured, *([] if answer is None else [answer])}
    return sorted(shown, key=lambda each: float(recommendation.times_s[1, each]))


def _format_row(recommendation: Recommendation, number: int) -> list[str]:
    low_s, usual_s, high_s = (float(each) for each in recommendation.times_s[:, number])
    low, usual, high = recommendation.costs(number)
    measured = " (measured)" if number in recommendation.measured else ""
    return [
        f"{recommendation.candidates[number].name}{measured}",
        format_hours(usual_s),
        f"{format_hours(low_s)} to {format_hours(high_s)}",
        f"{usual:.3g}",
        f"{low:.3g} to {high:.3g}",
        format_percent(float(recommendation.choice.in_budget[number])),
    ]


def _format_answer(recommendation: Recommendation) -> Iterator[str]:
    number, choice = recommendation.choice.candidate, recommendation.choice
    if number is None:
        nearest = recommendation.nearest
        cost = recommendation.costs(nearest)[1]
        yield (
            f"Infeasible: nothing is likely to end {format_budget(recommendation)}. The nearest is"
            f" {recommendation.candidates[nearest].name} in"
            f" {format_hours(float(recommendation.times_s[1, nearest]))} for"
            f" {cost:.3g}{_unit(recommendation)}."
        )
        return
    yield (
        f"Recommended: {recommendation.candidates[number].name} (within the budget:"
        f" {format_percent(float(choice.in_budget[number]))}; the cheapest of all:"
        f" {format_percent(float(choice.cheapest[number]))})."
    )


def _format_next(recommendation: Recommendation) -> Iterator[str]:
    if recommendation.useful is None:
        yield "No further measurement is worth its time."
        return
    name = recommendation.candidates[recommendation.useful].name
    yield (f"To be surer, run a few steps on {name}, and add --measured {name}=SECONDS_OF_A_STEP.")


def _unit(recommendation: Recommendation) -> str:
    return f" {recommendation.unit}" if recommendation.unit else ""
