"""Controller of the userspace emulator: starts the process and sends it changes."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import EmulationError
from laggard.core.hosts import Host
from laggard.core.linux import inside_network
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.forked import (
    PackedError,
    companion_is_alive,
    end_companion,
    fork_companion,
    run_forked,
)
from laggard.network_emulation.link_plan import Constraint, LinkPlan, Pair
from laggard.network_emulation.links.backend import LinkCounters, LinkHealth
from laggard.network_emulation.links.tcp_settings import TcpSettings, apply_tcp
from laggard.network_emulation.links.userspace import control
from laggard.network_emulation.links.userspace.counters import (
    UNDELIVERED,
    UNKNOWN,
    UNROUTED,
    WORST_LATE_NS,
    EmulatorCounters,
)
from laggard.network_emulation.links.userspace.forwarding import run_emulator
from laggard.network_emulation.links.userspace.queueing import BYTES, DROPPED, PACKETS, TALLY_FIELDS
from laggard.network_emulation.links.userspace.topology import (
    Topology,
    build_topology,
    lossy_senders,
)
from laggard.network_emulation.links.userspace.tun import DEVICE

PREFIX_LENGTH = 16
PREFIX_LENGTH6 = 64
MTU_BYTES = 1500
_QUEUE_FRAMES = 1000
"""Frames that a host's device may queue towards the emulator."""
_ANSWER_S = 30.0
"""Real seconds to wait for the emulator's answer."""
_UNDILATED = Dilation()
_IFA_F_NODAD = 0x02
"""Flag of an IPv6 address that is used at once, without a search for duplicates."""
_NO_ADDRESSES = "1"
"""Value of `addr_gen_mode` that disables generated link-local addresses."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Discarded:
    """Frames that no link carried.

    Attributes:
        unrouted: frames to an unknown host.
        unknown: frames that are neither IPv4 nor IPv6.
        undelivered: frames that the receiver's device refused.
    """

    unrouted: int
    unknown: int
    undelivered: int


class UserspaceBackend:
    """All links of a continuum in one emulator process (a `LinkBackend`).

    Attributes:
        realtime: True if the emulator has real-time priority; without it, links are less exact.
        pid: the emulator process, a child that ends with this process.
        tcp: TCP settings of the hosts.
    """

    name = "userspace"

    def __init__(
        self,
        plan: LinkPlan,
        topology: Topology,
        tally: EmulatorCounters,
        end: socket.socket,
        pid: int,
        realtime: bool,
    ) -> None:
        self.realtime = realtime
        self.pid = pid
        self.tcp: Mapping[str, TcpSettings] = {}
        self._hosts = {host.name: i for i, host in enumerate(plan.hosts)}
        self._pairs = topology.pairs
        self._indices = {pair: i for i, pair in enumerate(topology.pairs)}
        self._constraints: dict[Pair, Constraint] = {}
        self._lossy: frozenset[str] = frozenset()
        self._tally = tally
        self._end = end

    @classmethod
    def start(
        cls,
        plan: LinkPlan,
        namespaces: Mapping[str, Path],
        dilation: Dilation = _UNDILATED,
        seed: int = 0,
    ) -> UserspaceBackend:
        """Create `eth0` in every host's namespace and start to emulate all links.

        Args:
            plan: the links in real (dilated) units; hosts carry their addresses.
            namespaces: network namespace of every host, by name.
            dilation: dilation of the run, for the hosts' TCP.
            seed: seed of losses and jitter.

        Raises:
            PrerequisiteError: if the TUN driver is not accessible.
            EmulationError: if a device could not be created or set up.
        """
        topology = build_topology(plan)
        tally = EmulatorCounters(len(topology.pairs))
        paths = [namespaces[host.name] for host in plan.hosts]
        addresses = [(host.address, *host.ipv6) for host in plan.hosts]
        ours, theirs = socket.socketpair()
        pid = fork_companion(
            "laggard-links", lambda: run_emulator(theirs, paths, addresses, topology, tally, seed)
        )
        theirs.close()
        try:
            ours.settimeout(_ANSWER_S)
            ready = _receive_answer(ours)
            assert isinstance(ready, control.EmulatorReady)
            backend = cls(plan, topology, tally, ours, pid, ready.realtime)
            backend.tcp = run_forked(
                "laggard-devices", lambda: _set_up_hosts(plan, namespaces, dilation)
            )
            backend.change(plan.pairs)
        except BaseException:
            ours.close()
            end_companion(pid)
            raise
        return backend

    def change(self, changes: Mapping[Pair, Constraint]) -> int:
        """Change the constraints of links while traffic flows (see `LinkBackend.change`).

        Packets in the delay line keep their delay and order. Packets still in a queue are served
        at the new rate.

        Raises:
            EmulationError: if a pair is unknown, or the emulator has exited.
        """
        unknown = [pair for pair in changes if pair not in self._indices]
        if unknown:
            raise EmulationError(
                f"there is no link from {unknown[0][0]} to {unknown[0][1]}: both must be hosts of"
                " the plan"
            )
        self._constraints.update(changes)
        lossy = lossy_senders(self._constraints)
        # Only hosts that become lossy, or stop being so, change their segmentation.
        segmentation = tuple(
            (self._hosts[host], host not in lossy) for host in sorted(lossy ^ self._lossy)
        )
        constraints = tuple(
            (self._indices[pair], constraint) for pair, constraint in changes.items()
        )
        try:
            control.send_message(self._end, control.Change(constraints, segmentation))
            changed = _receive_answer(self._end)
        except OSError as error:
            raise EmulationError(f"the connection to the link emulator failed: {error}") from error
        assert isinstance(changed, control.Changed)
        self._lossy = lossy
        return changed.effective_ns

    def counters(self) -> Mapping[Pair, LinkCounters]:
        """Return the traffic of every ordered pair of hosts, constrained or not."""
        counts = list(self._tally.counts)
        return {
            pair: LinkCounters(counts[at + BYTES], counts[at + PACKETS], counts[at + DROPPED])
            for pair, at in zip(self._pairs, range(0, len(counts), TALLY_FIELDS), strict=True)
        }

    def discarded(self) -> Discarded:
        """Return the number of frames that no link carried."""
        gauges = self._tally.gauges
        return Discarded(gauges[UNROUTED], gauges[UNKNOWN], gauges[UNDELIVERED])

    def lateness_ms(self) -> float:
        """Return the emulator's worst lateness so far, in real milliseconds."""
        return self._tally.gauges[WORST_LATE_NS] / 1e6

    def lateness_quantile_ms(self, quantile: float) -> float | None:
        """Return a quantile (0 to 1) of the packets' lateness; None before the first packet.

        The value is an upper bound within a factor of two.
        """
        late_ns = self._tally.late_ns(quantile)
        return None if late_ns is None else late_ns / 1e6

    def health(self) -> LinkHealth:
        """Return the values that can be monitored; see `LinkBackend.health`."""
        counts = self._tally.counts
        carried = {
            pair: counts[self._indices[pair] * TALLY_FIELDS + BYTES] for pair in self._constraints
        }
        return LinkHealth(tuple(self._tally.lateness), self._tally.gauges[UNDELIVERED], carried)

    def check_alive(self) -> None:
        """Raise an error if the emulator has exited; see `LinkBackend.check_alive`."""
        if not companion_is_alive(self.pid):
            raise EmulationError(
                f"the link emulator (process {self.pid}) has exited, and all links with it; see its"
                " error output on stderr"
            )

    def close(self) -> None:
        """Stop emulating; the hosts' devices vanish. A second call does nothing."""
        self._end.close()
        end_companion(self.pid)


def _receive_answer(end: socket.socket) -> control.Message:
    try:
        message = control.receive_message(end)
    except TimeoutError as error:
        raise EmulationError(f"the link emulator did not answer within {_ANSWER_S:g} s") from error
    if isinstance(message, PackedError):
        raise message.unpacked()
    return message


def _set_up_hosts(
    plan: LinkPlan, namespaces: Mapping[str, Path], dilation: Dilation
) -> dict[str, TcpSettings]:
    settings = {}
    for host in plan.hosts:
        _set_up_device(namespaces[host.name], host)
        settings[host.name] = apply_tcp(namespaces[host.name], dilation)
    return settings


def _set_up_device(namespace: Path, host: Host) -> None:
    from pyroute2 import IPRoute, NetlinkError

    try:
        with inside_network(namespace):
            _let_ipv6(wanted=bool(host.ipv6))
            with IPRoute() as netlink:
                (device,) = netlink.link_lookup(ifname=DEVICE)
                netlink.link("set", index=device, mtu=MTU_BYTES, txqlen=_QUEUE_FRAMES)
                netlink.addr("add", index=device, address=host.address, prefixlen=PREFIX_LENGTH)
                for address in host.ipv6:
                    netlink.addr(
                        "add",
                        index=device,
                        address=address,
                        prefixlen=PREFIX_LENGTH6,
                        flags=_IFA_F_NODAD,
                    )
                netlink.link("set", index=device, state="up")
    except (NetlinkError, ValueError, OSError) as error:
        given = " and ".join((host.address, *host.ipv6))
        raise EmulationError(
            f"cannot assign the address {given} to {DEVICE} in {namespace}: {error}"
        ) from error


def _let_ipv6(*, wanted: bool) -> None:
    """Enable or disable IPv6 on the device, without addresses that the kernel generates.

    A link-local address would be probed and advertised across the links.
    """
    settings = Path("/proc/sys/net/ipv6/conf", DEVICE)
    if settings.is_dir():
        (settings / "addr_gen_mode").write_text(_NO_ADDRESSES, encoding="ascii")
        (settings / "disable_ipv6").write_text("0" if wanted else "1", encoding="ascii")
