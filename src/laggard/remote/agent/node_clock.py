"""Clock of a node relative to the head's, measured in bursts throughout the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.core.clocks.clock_fit import ClockExchange, ClockFit, fit_clock
from laggard.core.errors import RunFolderError
from laggard.layers_services.ssh.clock_exchange import (
    CLOCK_PORT,
    Exchanger,
    Responder,
    exchange_clocks,
)

if TYPE_CHECKING:
    from io import TextIOWrapper

EXCHANGES_FILE = "clock.jsonl"
"""File with a node's clock exchanges, one JSON line each; absent on the head, whose clock is the
reference."""

_REFIT_INTERVAL = 40
"""Number of new exchanges after which the map is fitted again."""

_MOST_BYTES = 256 << 20
"""Largest file of exchanges, which is that of several weeks."""


class NodeClock:
    """Map between this node's CLOCK_MONOTONIC and the head's.

    Args:
        reference: address of the head on the experiment network.
        address: address of this node on the experiment network; equal to `reference` on the head.
        folder: folder that gets `EXCHANGES_FILE`.
    """

    def __init__(self, reference: str, address: str, folder: Path) -> None:
        self._reference, self._address = reference, address
        self._exchanges: list[ClockExchange] = []
        self._fit = ClockFit.identity()
        self._fitted_count = 0
        self._responder: Responder | None = None
        self._exchanger: Exchanger | None = None
        self._file: TextIOWrapper | None = None
        if self.is_reference:
            self._responder = Responder(address)
        else:
            self._file = (folder / EXCHANGES_FILE).open("a", encoding="utf-8", buffering=1)

    @property
    def is_reference(self) -> bool:
        """Return whether this node is the head."""
        return self._reference == self._address

    def compare(self) -> int:
        """Compare the clocks thoroughly (half a second) and return the bound on the error, in ns.

        Raises:
            DeploymentError: the head does not answer.
        """
        if self.is_reference:
            return 0
        self._record_exchanges(exchange_clocks(self._reference, CLOCK_PORT, address=self._address))
        self._refit()
        last_ns = np.array([self._exchanges[-1].returned_ns], dtype=np.int64)
        return int(self._fit.error_ns(last_ns)[0])

    def start_periodic_exchanges(self) -> None:
        """Let `step` send a burst of exchanges every second from now on."""
        if not self.is_reference:
            self._exchanger = Exchanger(self._reference, CLOCK_PORT, address=self._address)

    def finalize(self) -> None:
        """Compare the clocks once more and close the file of exchanges.

        Raises:
            DeploymentError: the head does not answer.
        """
        if self._file is None:
            return
        if self._exchanger is not None:
            self._exchanger.close()
            self._exchanger = None
        try:
            self._record_exchanges(
                exchange_clocks(self._reference, CLOCK_PORT, address=self._address)
            )
        finally:
            self._file.close()
            self._file = None

    def descriptors(self) -> list[int]:
        """Return the descriptors that are readable when `step` has something to do."""
        return [each.fileno() for each in (self._responder, self._exchanger) if each is not None]

    def step(self) -> None:
        """Send and answer the exchanges that are due, without blocking."""
        if self._responder is not None:
            self._responder.answer()
        if self._exchanger is not None:
            self._record_exchanges(self._exchanger.step())
            if len(self._exchanges) >= self._fitted_count + _REFIT_INTERVAL:
                self._refit()

    def to_reference(self, local_ns: int) -> int:
        """Convert a time of this node to the head's time, in ns."""
        return int(self._fit.to_reference(np.array([local_ns], dtype=np.int64))[0])

    def to_local(self, reference_ns: int) -> int:
        """Convert a time of the head to this node's time, in ns."""
        return int(self._fit.to_local(np.array([reference_ns], dtype=np.int64))[0])

    def close(self) -> None:
        """Close the sockets and the file of exchanges."""
        for each in (self._responder, self._exchanger, self._file):
            if each is not None:
                each.close()

    def _record_exchanges(self, exchanges: tuple[ClockExchange, ...]) -> None:
        self._exchanges += exchanges
        if self._file is not None:
            self._file.writelines(f"{each.to_json()}\n" for each in exchanges)

    def _refit(self) -> None:
        self._fit = fit_clock(self._exchanges)
        self._fitted_count = len(self._exchanges)


def load_clock_fit(folder: Path) -> ClockFit:
    """Return the final clock map of a node whose data lies in `folder`.

    The map is the identity if the node kept no exchanges: its clock is the reference.

    Raises:
        RunFolderError: a line is not a clock exchange, or the file is too large.
    """
    path = folder / EXCHANGES_FILE
    if not path.exists():
        return ClockFit.identity()
    if path.stat().st_size > _MOST_BYTES:
        raise RunFolderError(f"{path} has more than {_MOST_BYTES >> 20} MiB of clock exchanges")
    # A kill may have cut the last line, so only lines with a line end count.
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return fit_clock([ClockExchange.from_json(line) for line in whole.splitlines()])
