"""Prober of round trips while a continuum runs: one process, forked before threads exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Self

from laggard.core.errors import EmulationError
from laggard.network_emulation.fidelity.measure import PRIORITY
from laggard.network_emulation.fidelity.probes.echo import EchoProbe, measure_echoes
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import Pair
from laggard.network_emulation.realtime import become_punctual

_ANSWER_TIMEOUT_S = 60.0

RoundTrips = dict[Pair, float | None]


class Prober:
    """Process that measures round trips on request; use it as a context manager.

    Args:
        hosts: every host by name.
    """

    def __init__(self, hosts: Mapping[str, ProbeEndpoint]) -> None:
        self._control, theirs = Pipe()
        ours = self._control
        self._pid = fork_companion("laggard-prober", lambda: _serve_probes(theirs, ours, hosts))
        theirs.close()

    def round_trips(self, probes: Sequence[EchoProbe]) -> RoundTrips:
        """Measure all probes at once; return the median round-trip time of each, in real ms.

        The time is None if nothing came back.

        Raises:
            EmulationError: if the process has exited or does not answer.
        """
        try:
            self._control.send(tuple(probes))
            if not self._control.poll(_ANSWER_TIMEOUT_S):
                raise EmulationError(
                    f"the round-trip prober has not answered within {_ANSWER_TIMEOUT_S:g} s"
                )
            measured: RoundTrips = self._control.recv()
        except (EOFError, OSError) as error:
            raise EmulationError(
                f"the round-trip prober (process {self._pid}) has exited; see its error output on"
                " stderr"
            ) from error
        return measured

    def close(self) -> None:
        """End the process."""
        self._control.close()
        end_companion(self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve_probes(
    control: Connection, callers: Connection, hosts: Mapping[str, ProbeEndpoint]
) -> int:
    callers.close()
    become_punctual(PRIORITY)
    while True:
        try:
            probes: tuple[EchoProbe, ...] = control.recv()
        except EOFError:
            return 0
        control.send(measure_echoes(probes, hosts) if probes else {})
