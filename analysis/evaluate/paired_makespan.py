"""What injections really cost: the makespan less that of the same run without them."""

from __future__ import annotations

from dataclasses import replace

from laggard.analysis.evaluate.synthetic.run_generator import simulate_makespan_s
from laggard.analysis.evaluate.synthetic.trace_spec import TraceSpec


def simulate_paired_makespan_s(spec: TraceSpec) -> float:
    """Makespan of a generated run if nothing had been injected: the seed gives it the same noise,
    step by step.
    """
    return simulate_makespan_s(replace(spec, injections=()))


def compute_cost_error(predicted_s: float, makespan_s: float, paired_s: float) -> float:
    """How far a predicted cost is from the true one.

    Args:
        predicted_s: what the analysis says that all causes cost together.
        makespan_s: of the run.
        paired_s: of the run without injection.

    Returns:
        |predicted - (makespan - paired)| / makespan.
    """
    return abs(predicted_s - (makespan_s - paired_s)) / makespan_s
