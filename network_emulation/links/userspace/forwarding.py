"""The loop that moves frames between the hosts' devices as the model says: the life of the emulator
process.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import random
import select
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from laggard.core.errors import LaggardError
from laggard.core.linux import MonotonicTimer
from laggard.network_emulation.forked import pack_error
from laggard.network_emulation.links.userspace import control, frame
from laggard.network_emulation.links.userspace.counters import (
    UNDELIVERED,
    UNKNOWN,
    UNROUTED,
    EmulatorCounters,
)
from laggard.network_emulation.links.userspace.queueing import LinkModel, Packet, Route
from laggard.network_emulation.links.userspace.topology import QUEUE_BYTES, Topology
from laggard.network_emulation.links.userspace.tun import open_tun, set_segmentation_offload
from laggard.network_emulation.realtime import become_punctual

PRIORITY = 50
"""Real-time priority of the emulator: above anything that a run starts."""

_FRAME_BYTES = (1 << 16) + frame.VNET_HEADER_BYTES
_FRAMES_PER_TURN = 16


def run_emulator(
    end: socket.socket,
    namespaces: Sequence[Path],
    addresses: Sequence[Sequence[str]],
    topology: Topology,
    tally: EmulatorCounters,
    seed: int,
) -> int:
    """Be the emulator: open the devices, report, forward until the caller closes its end.

    Args:
        end: this side of the control channel.
        namespaces: of the hosts, in order.
        addresses: of the hosts, in the same order, IPv4 and IPv6.
        topology: routes between them.
        tally: shared counters.
        seed: of losses and jitter.

    Returns:
        The process's exit status.
    """
    os.setsid()
    _close_all_but(end.fileno())
    try:
        devices = [open_tun(namespace) for namespace in namespaces]
        for device in devices:
            set_segmentation_offload(device, wanted=True)
    except LaggardError as error:
        control.send_message(end, pack_error(error))
        return 1
    forwarder = Forwarder(end, devices, addresses, topology, tally, seed)
    gc.disable()
    control.send_message(end, control.EmulatorReady(realtime=become_punctual(PRIORITY)))
    forwarder.run()
    return 0


def _close_all_but(kept: int) -> None:
    """Close what the fork inherited, so that nobody waits for the end of a stream that only the
    emulator holds.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor != kept:
            # closerange ignores what is closed already, such as the descriptor that listed these.
            os.closerange(descriptor, descriptor + 1)


class Forwarder:
    """Reads frames from devices, asks the model, writes them to devices."""

    def __init__(
        self,
        end: socket.socket,
        devices: Sequence[int],
        addresses: Sequence[Sequence[str]],
        topology: Topology,
        tally: EmulatorCounters,
        seed: int,
    ) -> None:
        self._end = end
        self._inbox = control.Inbox()
        self._open = True
        self._devices = list(devices)
        self._tally = tally
        # Losses, not secrets.
        self._model = LinkModel(tally.counts, random.Random(seed))  # noqa: S311
        self._routes = [topology.routes[pair] for pair in topology.pairs]
        self._tables = dict(zip(devices, _route_tables(addresses, self._routes), strict=True))
        self._timer = MonotonicTimer()
        self._poll = select.epoll()
        for descriptor in (end.fileno(), self._timer.descriptor, *devices):
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        """Forward until the control channel closes."""
        poll, timer, model, tables = self._poll, self._timer, self._model, self._tables
        now = time.monotonic_ns
        control_descriptor = self._end.fileno()
        while self._open:
            ready = poll.poll()
            self._deliver(now())
            for descriptor, _ in ready:
                table = tables.get(descriptor)
                if table is not None:
                    self._forward(descriptor, table)
                elif descriptor == control_descriptor:
                    self._obey()
            self._deliver(now())
            timer.set(model.next_ns())

    def _forward(self, device: int, table: Mapping[bytes, Route]) -> None:
        model, read, weigh, destination = (
            self._model,
            os.read,
            frame.measure_frame,
            frame.parse_destination,
        )
        for _ in range(_FRAMES_PER_TURN):
            try:
                data = read(device, _FRAME_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # The namespace is gone: a run is being torn down. What is still sent there counts
                # as undelivered.
                self._poll.unregister(device)
                return
            address = destination(data)
            route = table.get(address)
            if route is None:
                self._tally.gauges[UNROUTED if address else UNKNOWN] += 1
                continue
            packet = Packet(data, *weigh(data))
            if route.direct:
                model.count(route, packet)
                self._write(route, packet)
                continue
            now_ns = time.monotonic_ns()
            self._deliver(now_ns)
            if model.enter(route, packet, now_ns):
                self._write(route, packet)

    def _deliver(self, now_ns: int) -> None:
        model = self._model
        if model.next_ns() > now_ns:
            return
        for due_ns, route, packet in model.advance(now_ns):
            self._tally.note_late(time.monotonic_ns() - int(due_ns))
            self._write(route, packet)

    def _write(self, route: Route, packet: Packet) -> None:
        try:
            os.write(self._devices[route.port], packet.frame)
        except OSError:
            # A device that is down or gone takes nothing, as a real one would not; it is counted
            # and shown.
            self._tally.gauges[UNDELIVERED] += 1

    def _obey(self) -> None:
        chunk = self._end.recv(1 << 16)
        self._open = bool(chunk)
        for message in self._inbox.feed(chunk):
            if isinstance(message, control.Change):
                self._change(message)

    def _change(self, change: control.Change) -> None:
        self._deliver(time.monotonic_ns())
        for host, wanted in change.segmentation:
            set_segmentation_offload(self._devices[host], wanted)
        now_ns = time.monotonic_ns()
        for index, constraint in change.constraints:
            self._model.constrain(self._routes[index], constraint, QUEUE_BYTES, now_ns)
        control.send_message(self._end, control.Changed(time.monotonic_ns()))


def _route_tables(
    addresses: Sequence[Sequence[str]], routes: Sequence[Route]
) -> list[dict[bytes, Route]]:
    """By sender: the route to each destination address, as it stands in a frame. Routes are ordered
    by sender, then receiver.
    """
    peers = len(addresses) - 1
    packed = [[ipaddress.ip_address(address).packed for address in own] for own in addresses]
    tables = []
    for sender in range(len(addresses)):
        own = routes[sender * peers : (sender + 1) * peers]
        tables.append({address: route for route in own for address in packed[route.port]})
    return tables
