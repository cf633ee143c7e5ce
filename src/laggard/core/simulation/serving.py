"""Simulation of inference: devices that answer requests, and a server that may compute a part.

It runs the same rules as the processes of an emulation (`core/serving`), and its links are those of
every other simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from laggard.core.serving.block_queue import BlockJob, BlockQueue
from laggard.core.serving.outcome import AnsweredRequest
from laggard.core.serving.request_order import RequestOrderName
from laggard.core.serving.served_network import ServedNetwork
from laggard.core.serving.split_point import PROBE_BYTES, QueueState
from laggard.core.simulation.event_loop import Action, EventLoop
from laggard.core.simulation.message_flows import MessageFlows
from laggard.core.simulation.network import SimulatedNetwork


class CutChooser(Protocol):
    """Rule of a device that decides where a request leaves it (see `SplitChooser`)."""

    def choose(self, network: ServedNetwork, queues: QueueState) -> int:
        """Return the cut of a request."""

    def learn(self, size_bytes: float, took_s: float) -> None:
        """Learn from a message that was answered."""

    def note_sent(self, number: int, size_bytes: float, now_s: float) -> None:
        """Note that the message of a request is on the link from now on."""

    def note_answered(self, number: int) -> None:
        """Note that a request that was sent is answered."""

    def predict_link_wait_s(self, now_s: float) -> float:
        """Return the seconds until the messages that are not answered have passed the link."""


@dataclass(frozen=True)
class SimulatedRequest:
    """Request of a simulation.

    Attributes:
        device: name of the device at which it arrives.
        network: number of the device's network that answers it.
        arrived_s: time at which it arrives.
        deadline_s: seconds within which it should be answered; infinite without a deadline.
        pace: seconds of each block as parts of the network's, [blocks]; empty for exactly these.
    """

    device: str
    network: int
    arrived_s: float
    deadline_s: float = math.inf
    pace: tuple[float, ...] = ()


@dataclass
class ServingDevice:
    """Device of a simulation.

    Attributes:
        name: name of its host.
        networks: its networks.
        order: rule that decides whose block comes next.
        chooser: rule that decides where requests leave it.
        server: name of the server's host; None without one.
        most_waiting: number of requests beyond which further ones are shed.
        probe_s: seconds without a message after which it asks the server how the link is.
    """

    name: str
    networks: tuple[ServedNetwork, ...]
    order: RequestOrderName = "fcfs"
    chooser: CutChooser | None = None
    server: str | None = None
    most_waiting: int = 1000
    probe_s: float = math.inf


@dataclass
class _ServingPlace:
    """Device or server with the jobs that wait there."""

    queue: BlockQueue
    is_busy: bool = False
    jobs: dict[int, _PlacedJob] = field(default_factory=dict)


@dataclass
class _PlacedJob:
    """Job with the seconds that its blocks really take, and what happens when they are computed."""

    job: BlockJob
    real_s: Sequence[float]
    on_done: Action


class ServingSimulation:
    """Simulation of some devices and their servers.

    Args:
        devices: all devices.
        network: links between the hosts.
    """

    def __init__(self, devices: Sequence[ServingDevice], network: SimulatedNetwork) -> None:
        self._loop = EventLoop()
        self._flows = MessageFlows(self._loop, network)
        self._devices: Mapping[str, ServingDevice] = {each.name: each for each in devices}
        self._places = {each.name: _ServingPlace(BlockQueue(each.order)) for each in devices}
        for each in devices:
            if each.server is not None:
                self._places.setdefault(each.server, _ServingPlace(BlockQueue()))
        self._server_backlog_s = dict.fromkeys(self._devices, 0.0)
        self._heard_s = dict.fromkeys(self._devices, 0.0)
        self._waiting = dict.fromkeys(self._devices, 0)
        self._answers: dict[int, float] = {}
        self.cuts: dict[int, int] = {}

    @property
    def now_s(self) -> float:
        """Return the simulated time."""
        return self._loop.now_s

    def run(self, requests: Sequence[SimulatedRequest]) -> tuple[AnsweredRequest, ...]:
        """Answer all requests, and return what became of each."""
        for number, request in enumerate(requests):
            self._loop.schedule(request.arrived_s, partial(self._arrive, number, request))
        last_s = max((each.arrived_s for each in requests), default=0.0)
        for device in self._devices.values():
            if device.server is not None and device.probe_s < math.inf:
                self._schedule_probe(device, last_s)
        self._loop.run()
        return tuple(
            AnsweredRequest(
                each.arrived_s,
                self._answers.get(number),
                sum(self._list_real_s(each)),
                each.deadline_s,
            )
            for number, each in enumerate(requests)
        )

    def _list_real_s(self, request: SimulatedRequest) -> Sequence[float]:
        """Return the seconds that each block of a request takes at its device, [blocks]."""
        network = self._devices[request.device].networks[request.network]
        pace = request.pace or (1.0,) * network.blocks
        return [own * part for own, part in zip(network.device_s, pace, strict=True)]

    def _arrive(self, number: int, request: SimulatedRequest) -> None:
        device = self._devices[request.device]
        if self._waiting[device.name] >= device.most_waiting:
            return
        self._waiting[device.name] += 1
        network = device.networks[request.network]
        cut = network.blocks
        if device.chooser is not None:
            queues = QueueState(
                self._places[device.name].queue.backlog_s,
                device.chooser.predict_link_wait_s(self.now_s),
                self._server_backlog_s[device.name],
            )
            cut = device.chooser.choose(network, queues)
        self.cuts[number] = cut
        if cut == 0:
            self._send(number, request, 0)
            return
        real_s = self._list_real_s(request)[:cut]

        def leave() -> None:
            if cut == network.blocks:
                self._answer(number, device)
            else:
                self._send(number, request, cut)

        self._add(device.name, number, request, network.device_s[:cut], real_s, leave)

    def _send(self, number: int, request: SimulatedRequest, cut: int) -> None:
        """Send what a request needs to its server, which computes the rest of it."""
        device = self._devices[request.device]
        network = device.networks[request.network]
        assert device.server is not None
        server, sent_s, arrived_s = device.server, self.now_s, 0.0
        pace = (request.pace or (1.0,) * network.blocks)[cut:]

        def compute() -> None:
            nonlocal arrived_s
            arrived_s = self.now_s
            expected_s = network.server_s[cut:]
            real_s = [own * part for own, part in zip(expected_s, pace, strict=True)]
            self._add(server, number, request, expected_s, real_s, reply)

        def reply() -> None:
            stayed_s = self.now_s - arrived_s
            backlog_s = self._places[server].queue.backlog_s

            def receive() -> None:
                if device.chooser is not None:
                    device.chooser.note_answered(number)
                self._learn_from_answer(
                    device, network.cut_bytes[cut], self.now_s - sent_s - stayed_s, backlog_s
                )
                self._answer(number, device)

            self._flows.send(server, device.name, network.answer_bytes, receive)

        if device.chooser is not None:
            device.chooser.note_sent(number, network.cut_bytes[cut], self.now_s)
        self._flows.send(device.name, server, network.cut_bytes[cut], compute)

    def _learn_from_answer(
        self, device: ServingDevice, size_bytes: float, took_s: float, backlog_s: float
    ) -> None:
        """Let a device learn from an answer."""
        self._server_backlog_s[device.name] = backlog_s
        self._heard_s[device.name] = self.now_s
        if device.chooser is not None:
            device.chooser.learn(size_bytes, took_s)

    def _schedule_probe(self, device: ServingDevice, last_s: float) -> None:
        """Ask the server how the link is, if nothing was heard for a while."""
        due_s = self._heard_s[device.name] + device.probe_s
        if due_s > last_s:
            return

        def probe() -> None:
            if self.now_s < self._heard_s[device.name] + device.probe_s:
                self._schedule_probe(device, last_s)
                return
            sent_s, size_bytes = self.now_s, float(PROBE_BYTES)
            server = device.server or ""
            self._heard_s[device.name] = self.now_s

            def receive() -> None:
                self._learn_from_answer(
                    device, size_bytes, self.now_s - sent_s, self._places[server].queue.backlog_s
                )
                self._schedule_probe(device, last_s)

            def turn() -> None:
                self._flows.send(server, device.name, 0.0, receive)

            self._flows.send(device.name, server, size_bytes, turn)

        self._loop.schedule(max(due_s, self.now_s), probe)

    def _answer(self, number: int, device: ServingDevice) -> None:
        self._answers[number] = self.now_s
        self._waiting[device.name] -= 1

    def _add(
        self,
        name: str,
        number: int,
        request: SimulatedRequest,
        expected_s: Sequence[float],
        real_s: Sequence[float],
        on_done: Action,
    ) -> None:
        place = self._places[name]
        job = BlockJob(number, self.now_s, request.arrived_s + request.deadline_s, expected_s)
        place.queue.add(job)
        place.jobs[number] = _PlacedJob(job, real_s, on_done)
        if not place.is_busy:
            self._go_on(place)

    def _go_on(self, place: _ServingPlace) -> None:
        """Compute the next block of the job that the order chooses."""
        chosen = place.queue.choose(self.now_s)
        place.is_busy = chosen is not None
        if chosen is None:
            return
        job = place.jobs[chosen.number]
        took_s = job.real_s[chosen.done]

        def finish() -> None:
            if place.queue.finish_block(chosen, took_s, self.now_s):
                del place.jobs[chosen.number]
                job.on_done()
            self._go_on(place)

        self._loop.schedule(self.now_s + took_s, finish)
