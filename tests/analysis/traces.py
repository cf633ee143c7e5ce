"""Small traces the tests share."""

from __future__ import annotations

import dataclasses

import numpy as np

from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Noise,
    Tier,
    TraceSpec,
)
from laggard.analysis.tables.columns import BoolArray
from laggard.analysis.tables.load_run import RunData

LEVEL = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4))
CONTINUUM = (Tier("cloud", 2), Tier("fog", 2, 1.5), Tier("edge", 4, 4.0))


def quiet(world: int, steps: int, *injections: Injection) -> TraceSpec:
    """A noiseless trace of `world` equal ranks."""
    return TraceSpec(
        tiers=(Tier("edge", world),),
        steps=steps,
        noise=QUIET,
        warm_up_steps=0,
        evaluate_every=0,
        injections=injections,
    )


def keep_spans(run: RunData, keep: BoolArray) -> RunData:
    """The run with only some of its spans."""
    return dataclasses.replace(run, spans=run.spans.where(np.flatnonzero(keep)))


HARSH = Noise(sigma=0.1, spike=0.03, drift=0.08, host=0.02, transfer_sigma=0.3)
