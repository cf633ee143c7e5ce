"""What changes while a run goes on: planned as values, applied on time, recorded as it happened."""

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
