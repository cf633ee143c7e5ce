"""Rules that end a campaign, or the repeats of one setup, early. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from laggard.campaign.campaign_file import IntervalRule, StopRules
from laggard.campaign.campaign_state import Attempt

_HOUR_S = 3600.0


def find_stop_reason(rules: StopRules, elapsed_s: float, attempts: Iterable[Attempt]) -> str | None:
    """Return why no further cell may start; None if one may.

    Args:
        rules: rules of the campaign.
        elapsed_s: real seconds since the campaign was started this time.
        attempts: all attempts so far.
    """
    if rules.time is not None and elapsed_s >= rules.time:
        return f"stop.time: {elapsed_s:.0f} s have passed, and {rules.time:g} s are allowed"
    if rules.node_hours is not None:
        used = sum(map(get_node_hours, attempts))
        if used >= rules.node_hours:
            return f"stop.node_hours: {used:.2f} are used, and {rules.node_hours:g} are allowed"
    return None


def get_node_hours(attempt: Attempt) -> float:
    """Return machines x hours of an attempt; a run on this machine uses one machine."""
    elapsed_s, nodes = attempt.row.get("elapsed_s"), attempt.row.get("nodes")
    machines = nodes if isinstance(nodes, int) else 1
    return machines * float(elapsed_s) / _HOUR_S if isinstance(elapsed_s, int | float) else 0.0


def is_known_well(rule: IntervalRule | None, rows: Sequence[Mapping[str, object]]) -> bool:
    """Return whether the mean of a setup's repeats is known as well as a rule demands.

    Student's 95 % interval is used. Looking after every repeat makes it a little too narrow; the
    rule ends repeats and is no test.

    Args:
        rule: the rule; None if all repeats are made.
        rows: rows of the setup's repeats that are done.
    """
    if rule is None or len(rows) < rule.least:
        return False
    values = [row.get(rule.column) for row in rows]
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if len(numbers) < rule.least:
        return False
    from laggard.analysis.estimates.estimate import estimate_mean

    estimate = estimate_mean(numbers)
    if estimate.high is None:
        return False
    return estimate.high - estimate.mean <= rule.width * abs(estimate.mean)
