"""Steps of a client within one pass over its samples."""

from __future__ import annotations

from collections.abc import Sequence


def list_local_steps(samples: int, batch: int, fewest: int = 1) -> Sequence[int]:
    """Return the samples of each step in a pass over a client's samples.

    Args:
        samples: samples of the client.
        batch: samples of a usual step.
        fewest: fewest samples that a step can have; a smaller rest joins the step before it.

    Examples:
        >>> list_local_steps(70, 32)
        [32, 32, 6]
        >>> list_local_steps(65, 32, fewest=2)
        [32, 33]
    """
    full, rest = divmod(samples, batch)
    steps = [batch] * full
    if rest and steps and rest < fewest:
        steps[-1] += rest
    elif rest:
        steps.append(rest)
    return steps
