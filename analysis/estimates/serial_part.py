"""Serial part of a training, fitted to its speeds with several numbers of workers.

With the same batch (strong scaling), Amdahl's law (AFIPS 1967) says that a step of n workers takes
s + (1 - s) / n of that of one. With the same samples of each worker (weak scaling), Gustafson's law
(Communications of the ACM 31, 1988) says that n workers are s + (1 - s) n times as fast as one.
Both are lines: of the time over 1 / n, and of the speed over n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from laggard.analysis.estimates.estimate import Estimate, make_estimate
from laggard.core.errors import InputError

Scaling = Literal["strong", "weak"]

LEAST_NUMBERS = 3
"""Numbers of workers that a fit needs: two for the line, and one more for its interval."""


def fit_serial_part(speeds: Mapping[int, float], scaling: Scaling) -> Estimate:
    """Fit the part of a step that more workers do not shorten.

    Args:
        speeds: samples per second by number of workers.
        scaling: `strong` if the batch is the same for all numbers, `weak` if it grows with them.

    Returns:
        The serial part, from 0 to 1, with a 95 % interval. All speeds count alike, relative to
        themselves. The interval is wide if no such line fits.

    Raises:
        InputError: there are fewer than three numbers, or a speed is not positive.

    Examples:
        >>> fit_serial_part({1: 10.0, 2: 18.0, 4: 34.0, 8: 66.0}, "weak").mean
        0.2
    """
    if len(speeds) < LEAST_NUMBERS or min(speeds) < 1 or min(speeds.values()) <= 0:
        raise InputError(
            f"the speeds of {len(speeds)} numbers of workers have no serial part — give positive"
            f" speeds of at least {LEAST_NUMBERS} numbers"
        )
    numbers = np.array(sorted(speeds), dtype=np.float64)
    speed = np.array([speeds[int(each)] for each in numbers])
    # The time of the same batch, or the speed of a growing one: constant + slope x.
    values, x = (1.0 / speed, 1.0 / numbers) if scaling == "strong" else (speed, numbers)
    design = np.column_stack([np.ones_like(x), x]) / values[:, None]
    (constant, slope), *_ = np.linalg.lstsq(design, np.ones_like(x), rcond=None)
    freedom = len(x) - 2
    misfit = float(np.sum((design @ (constant, slope) - 1.0) ** 2)) / freedom
    whole = constant + slope
    # The derivative of constant / (constant + slope).
    gradient = np.array([slope, -constant]) / whole**2
    variance = float(gradient @ np.linalg.inv(design.T @ design) @ gradient) * misfit
    mean = min(max(float(constant / whole), 0.0), 1.0)
    return make_estimate(mean, math.sqrt(variance), freedom, 0.0, 1.0)
