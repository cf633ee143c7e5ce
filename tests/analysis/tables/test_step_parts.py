"""Parts of steps, against the split of the whole run's time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import Injection, generate_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.step_parts import measure_step_parts
from laggard.analysis.tables.timelines.time_split import get_tier_placement, split_time
from laggard.core.errors import RunFolderError
from tests.analysis.traces import quiet

STEPS = 30


def make_run(*injections: Injection, steps: int = STEPS) -> RunData:
    spec = dataclasses.replace(quiet(4, steps, *injections), steps_per_epoch=2 * STEPS)
    return generate_run(spec)


def test_equal_steps_add_up_to_the_split_of_the_run() -> None:
    run = make_run(Injection("compute", 2.0, rank=1))
    parts = measure_step_parts(run)
    split = split_time(build_timeline(run), get_tier_placement(run))
    of_run = {
        "fetch": split.fetch_s,
        "prep": split.prep_s,
        "compute": split.compute_s,
        "wait": split.wait_s,
        "transfer": split.transfer_s,
    }
    samples = run.steps.samples[0]
    for part, whole_s in of_run.items():
        for rank in range(4):
            # Every step is like every other, so the mean of some is that of all.
            mean = parts.parts[part][parts.rank == rank].mean()
            assert mean * samples * STEPS == pytest.approx(whole_s[rank], rel=1e-3, abs=1e-4)


def test_the_last_step_is_left_out() -> None:
    parts = measure_step_parts(make_run())
    assert (np.bincount(parts.rank) == STEPS - 1).all()


def test_a_run_of_one_step_says_so() -> None:
    with pytest.raises(RunFolderError, match="more steps"):
        measure_step_parts(make_run(steps=1))
