"""Measured durations of a run in lockstep, as a schedule to replay."""

from __future__ import annotations

import numpy as np

from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.timeline import ROWS_AT_ONCE, Timeline
from laggard.core.simulation.maxplus import Schedule


def build_observed_schedule(timeline: Timeline) -> Schedule:
    """Return the measured durations as a schedule, whose makespan is the timeline's."""
    barriers, world = timeline.member.shape
    last = np.ones((1, world), dtype=np.bool_)
    depends = np.vstack([timeline.depends | timeline.pause[:, None], last])
    transfer = np.zeros((barriers + 1, world))
    for begin in range(0, barriers, ROWS_AT_ONCE):
        rows = np.s_[begin : min(begin + ROWS_AT_ONCE, barriers)]
        transfer[rows] = timeline.transfer_at(rows)
    # `own` is read only for ranks that do not wait. Most runs have none, and then a broadcast zero
    # takes no memory.
    own: FloatArray = np.broadcast_to(0.0, transfer.shape)
    if not depends.all():
        own = np.zeros_like(transfer)
        np.subtract(timeline.finish, timeline.arrival, out=own[:-1])
    member, posted = np.vstack([timeline.member, last]), np.append(timeline.posted, -1)
    return Schedule(timeline.local, transfer, own, depends, member, posted)
