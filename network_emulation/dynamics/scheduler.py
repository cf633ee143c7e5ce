"""Scheduler of timed changes: applies them when due, and records requested and real times."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from laggard.core.emulated_drive import DriveLimits
from laggard.core.errors import EmulationError
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.dynamics.changes import (
    Overlay,
    Quantity,
    Target,
    TimedChange,
    group_by_time,
)
from laggard.network_emulation.link_plan import Constraint, Pair, dilate_constraint
from laggard.network_emulation.links.backend import LinkBackend
from laggard.network_emulation.storage.plan import dilate_limits

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 10.0
"""Real seconds that `Scheduler.stop` waits for a change that is being applied."""


class ShareSetter(Protocol):
    """Interface of `ShareController` that the scheduler needs."""

    def set_share(self, host: str, share: float) -> int:
        """Change the real share of a host; return the CLOCK_MONOTONIC ns of the change."""


class DriveSetter(Protocol):
    """Interface of `DriveSet` that the scheduler needs."""

    def set_limits(self, host: str, limits: DriveLimits) -> int:
        """Change the real limits of a host's drive; return the CLOCK_MONOTONIC ns of it."""


@dataclass(frozen=True)
class EventRecord:
    """One row of `events.parquet`, in virtual units.

    Times are seconds after the first-step barrier.

    Attributes:
        kind: `begin`, `step` or `end` of an event.
        src: the host, or the sending end of the link.
        dst: the receiving end of the link; empty for a host.
        quantity: `cpu` (share of one core), `delay_ms`, `jitter_ms`, `rate_mbps`, `loss_percent`,
            `burst_packets`, or for a host's drive `read_mb_per_s`, `write_mb_per_s`,
            `read_latency_ms`, `write_latency_ms`.
        value: value from then on; NaN for an unlimited rate or bandwidth.
        requested_s: time at which the change was due.
        effective_s: time at which it took effect.
    """

    kind: Literal["begin", "step", "end"]
    src: str
    dst: str
    quantity: Quantity
    value: float
    requested_s: float
    effective_s: float


class Scheduler:
    """Thread that applies changes on time.

    Args:
        changes: changes in virtual units, in order of time.
        links: backend that applies link changes.
        shares: controller that applies CPU changes.
        dilation: conversion between virtual and real time.
        base_shares: virtual share of every host that a change names; restored at the end of
            events.
        base_links: virtual constraint of every link that a change names; a missing link is
            unconstrained.
        drives: drives that storage changes apply to; None if there are none.
        base_drives: virtual limits of every drive that a change names; a missing drive is
            unlimited.
    """

    def __init__(
        self,
        changes: Sequence[TimedChange],
        links: LinkBackend,
        shares: ShareSetter,
        dilation: Dilation,
        base_shares: Mapping[str, float],
        base_links: Mapping[Pair, Constraint],
        drives: DriveSetter | None = None,
        base_drives: Mapping[str, DriveLimits] = MappingProxyType({}),
    ) -> None:
        self._changes = tuple(changes)
        self._links = links
        self._shares = shares
        self._dilation = dilation
        self._drives = drives
        self._overlay = Overlay(base_shares, base_links, base_drives)
        self._base_links = base_links
        self._overlaying = threading.Lock()
        self._records: list[EventRecord] = []
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._zero_ns = 0

    def start(self, zero_ns: int) -> None:
        """Start the thread; time zero is the first-step barrier.

        Args:
            zero_ns: CLOCK_MONOTONIC nanoseconds of the barrier; changes that are already due are
                applied at once.
        """
        self._zero_ns = zero_ns
        self._thread = threading.Thread(target=self._run, name="laggard-dynamics", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[EventRecord, ...]:
        """Stop the thread; no further change is applied.

        Returns:
            Records of the applied changes, in order.

        Raises:
            EmulationError: if a change could not be applied.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        if self._failure is not None:
            raise EmulationError(
                f"a timed event could not be applied: {self._failure}"
            ) from self._failure
        return tuple(self._records)

    def constraints(self) -> dict[Pair, Constraint]:
        """Return the current virtual constraint of every link in the base."""
        with self._overlaying:
            return {pair: self._overlay.constraint(pair) for pair in self._base_links}

    @property
    def failure(self) -> Exception | None:
        """Return the error that ended the scheduler early; None if there was none."""
        return self._failure

    def _run(self) -> None:
        try:
            for at_s, changes in group_by_time(self._changes):
                due_ns = self._zero_ns + round(self._dilation.real_s(at_s) * 1e9)
                if self._stopping.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9)):
                    return
                self._apply(at_s, changes)
        # The error ends this thread, and `stop` raises it in the caller's thread.
        except Exception as error:  # noqa: BLE001
            _log.error("timed events stop after an error: %s", error)
            self._failure = error

    def _apply(self, at_s: float, changes: Sequence[TimedChange]) -> None:
        """Apply all changes of one moment, each target once."""
        touched: dict[Target, list[tuple[TimedChange, tuple[Quantity, ...]]]] = {}
        # `constraints` reads the overlay from another thread.
        with self._overlaying:
            for change in changes:
                for target in change.targets:
                    touched.setdefault(target, []).append(
                        (change, self._overlay.quantities(change, target))
                    )
                self._overlay.apply(change)
        pairs = [target for target in touched if not isinstance(target, str)]
        links_ns = 0
        if pairs:
            real = {
                pair: dilate_constraint(self._overlay.constraint(pair), self._dilation)
                for pair in pairs
            }
            # One call for all links of a moment, so that they change together.
            links_ns = self._links.change(real)
        for target, what in touched.items():
            quantities = {quantity for _, several in what for quantity in several}
            host_ns = self._change_host(target, quantities) if isinstance(target, str) else {}
            self._record(
                at_s,
                target,
                what,
                {quantity: host_ns.get(quantity, links_ns) for quantity in quantities},
            )

    def _change_host(self, host: str, quantities: AbstractSet[Quantity]) -> Mapping[Quantity, int]:
        """Apply the current values of a host; return when each quantity took effect."""
        effective: dict[Quantity, int] = {}
        if "cpu" in quantities:
            effective["cpu"] = self._shares.set_share(
                host, self._dilation.real_share(self._overlay.share(host))
            )
        storage = quantities - {"cpu"}
        if storage:
            if self._drives is None:
                raise EmulationError(
                    f"{host}: an event changes its drive, but the run has no emulated drives"
                )
            real = dilate_limits(self._overlay.drive(host), self._dilation)
            effective |= dict.fromkeys(storage, self._drives.set_limits(host, real))
        return effective

    def _record(
        self,
        at_s: float,
        target: Target,
        what: Sequence[tuple[TimedChange, tuple[Quantity, ...]]],
        effective_ns: Mapping[Quantity, int],
    ) -> None:
        src, dst = (target, "") if isinstance(target, str) else target
        for change, quantities in what:
            for quantity in quantities:
                effective_s = self._dilation.virtual_s(
                    (effective_ns[quantity] - self._zero_ns) / 1e9
                )
                value = self._overlay.value(target, quantity)
                shown = math.nan if math.isinf(value) else value
                self._records.append(
                    EventRecord(change.kind, src, dst, quantity, shown, at_s, effective_s)
                )
