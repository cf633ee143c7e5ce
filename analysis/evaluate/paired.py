"""What injections really cost: the makespan less that of the same run without them."""

from __future__ import annotations

from dataclasses import replace

from laggard.analysis.generate import generate_makespan_s
from laggard.analysis.trace_spec import TraceSpec


def paired_makespan_s(spec: TraceSpec) -> float:
    """Makespan of a generated run if nothing had been injected: the seed gives it the same noise,
    step by step.
    """
    return generate_makespan_s(replace(spec, injections=()))


def cost_error(predicted_s: float, makespan_s: float, paired_s: float) -> float:
    """How far a predicted cost is from the true one.

    Args:
        predicted_s: what the analysis says that all causes cost together.
        makespan_s: of the run.
        paired_s: of the run without injection.

    Returns:
        |predicted - (makespan - paired)| / makespan.
    """
    return abs(predicted_s - (makespan_s - paired_s)) / makespan_s
