"""Overhead of a step besides computing and communication, in seconds on a whole core.

A client of a federated training reads its samples, loads the model and finds its change in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from laggard.analysis.tables.load_run import RunData
from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.span_schema import SAMPLE_PHASES, Flag, Lane, Phase

_COUNTED = [phase.code for phase in (*SAMPLE_PHASES, Phase.OTHER)]
_UNUSED = int(Flag.WARM_UP | Flag.TRUNCATED | Flag.CLOCK_SUSPECT)


def measure_overheads(run: RunData) -> Mapping[str, float]:
    """Return the seconds of a usual step besides its computing and communication, by host.

    They count as processor time with cold caches, so a host with a small share of a core takes
    more than in proportion to it. Hosts without a completed step are left out.

    Args:
        run: run of Laggard, with spans.
    """
    seconds: dict[int, list[float]] = {}
    for spans in run.spans.parts():
        own = spans.where(
            (spans.lane == Lane.MAIN) & (spans.step >= 0) & ((spans.flags & _UNUSED) == 0)
        )
        world = own.max_rank + 1
        cells, index = np.unique(own.step * world + own.rank, return_inverse=True)
        counted_ns = np.where(np.isin(own.phase, _COUNTED), own.dur_ns, 0)
        totals_s = np.bincount(index, counted_ns / 1e9, len(cells))
        for rank, total_s in zip((cells % max(world, 1)).tolist(), totals_s.tolist(), strict=True):
            seconds.setdefault(rank, []).append(total_s)
    return {
        host.host: float(np.median(seconds[host.rank]))
        * host.cpu_share
        * expected_efficiency(min(host.cpu_share, 1.0))
        for host in run.hosts
        if host.rank in seconds
    }
