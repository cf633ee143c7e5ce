"""Timed events during a run: planned as values, applied on time, recorded with their real times.

Read `changes.py` first (values and overlapping events), then `expand.py` (entries of
`heterogeneity.yaml` to changes) and `scheduler.py` (the thread that applies them). Modules here
import the core, the room's root modules, `links/backend` and `storage/plan`.
"""

from laggard.network_emulation.dynamics.changes import (
    Overlay,
    Quantity,
    TimedChange,
    peak_rates,
    peak_shares,
)
from laggard.network_emulation.dynamics.expand import expand_events
from laggard.network_emulation.dynamics.scheduler import EventRecord, Scheduler
from laggard.network_emulation.dynamics.traces import TracePoint, parse_trace, read_traces

__all__ = [
    "EventRecord",
    "Overlay",
    "Quantity",
    "Scheduler",
    "TimedChange",
    "TracePoint",
    "expand_events",
    "parse_trace",
    "peak_rates",
    "peak_shares",
    "read_traces",
]
