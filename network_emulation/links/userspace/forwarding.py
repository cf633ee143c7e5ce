"""Forwarding loop of the emulator process: moves frames between devices as the model says."""

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
"""Real-time priority of the emulator, above that of all other processes of a run."""

_FRAME_BYTES = (1 << 16) + frame.VNET_HEADER_BYTES
_FRAMES_PER_TURN = 16
"""Frames read from one device before the other devices get their turn."""


def run_emulator(
    end: socket.socket,
    namespaces: Sequence[Path],
    addresses: Sequence[Sequence[str]],
    topology: Topology,
    tally: EmulatorCounters,
    seed: int,
) -> int:
    """Run the emulator: open the devices, report, and forward until the caller disconnects.

    Args:
        end: this side of the control channel.
        namespaces: namespaces of the hosts, in order.
        addresses: IPv4 and IPv6 addresses of the hosts, in the same order.
        topology: routes between the hosts.
        tally: shared counters.
        seed: seed of losses and jitter.

    Returns:
        Exit status of the process.
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
    """Close all inherited descriptors except one.

    Otherwise a reader would wait for the end of a stream that only the emulator holds open.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor != kept:
            # closerange ignores what is closed already, such as the descriptor that listed these.
            os.closerange(descriptor, descriptor + 1)


class Forwarder:
    """Loop that reads frames from devices, asks the model and writes them to devices."""

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
        # The generator draws losses and jitter, not secrets.
        self._model = LinkModel(tally.counts, random.Random(seed))  # noqa: S311
        self._routes = [topology.routes[pair] for pair in topology.pairs]
        self._tables = dict(zip(devices, _route_tables(addresses, self._routes), strict=True))
        self._timer = MonotonicTimer()
        self._poll = select.epoll()
        for descriptor in (end.fileno(), self._timer.descriptor, *devices):
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        """Forward until the control channel closes."""
        # Local names save attribute look-ups in the loop.
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
                # The namespace has been removed, because the run is ending. Frames still sent there
                # count as undelivered.
                self._poll.unregister(device)
                return
            address = destination(data)
            route = table.get(address)
            if route is None:
                self._tally.gauges[UNROUTED if address else UNKNOWN] += 1
                continue
            packet = Packet(data, *weigh(data))
            # Fast path: nothing constrains the route, so the packet needs no events.
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
            # Like a real device, one that is down or removed loses the frame; it is counted.
            self._tally.gauges[UNDELIVERED] += 1

    def _obey(self) -> None:
        chunk = self._end.recv(1 << 16)
        self._open = bool(chunk)
        for message in self._inbox.feed(chunk):
            if isinstance(message, control.Change):
                self._change(message)

    def _change(self, change: control.Change) -> None:
        # Packets that are due now still leave under the old constraints.
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
    """Return, for each sender, the route to each destination address in packed form.

    Routes are ordered by sender, then receiver.
    """
    peers = len(addresses) - 1
    packed = [[ipaddress.ip_address(address).packed for address in own] for own in addresses]
    tables = []
    for sender in range(len(addresses)):
        own = routes[sender * peers : (sender + 1) * peers]
        tables.append({address: route for route in own for address in packed[route.port]})
    return tables
