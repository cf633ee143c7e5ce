"""Requests of one device: admitted when they arrive, cut, asked around, and answered."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from laggard.core.serving.neighbor_choice import Neighbor, choose_neighbors, combine_answers
from laggard.core.serving.served_network import ServedNetwork
from laggard.core.serving.split_point import (
    PROBE_BYTES,
    LinkBelief,
    LinkState,
    QueueState,
    SplitChooser,
    is_feasible,
    predict_latencies,
)
from laggard.workloads.datasets.dataset import Batch, Data
from laggard.workloads.inference.block_executor import BlockExecutor, BlockWork, ServingClock
from laggard.workloads.inference.cut_model import Tensors
from laggard.workloads.inference.request_log import RequestRow, log_request
from laggard.workloads.inference.served_model import ServedModel, fetch
from laggard.workloads.inference.serving_messages import Question, Reply
from laggard.workloads.inference.serving_plan import ServingPlan

SHED = -1
MOST_UNSURE = 0.2
"""Largest uncertainty of an answer's time, as a part of it, from which a link is learned."""


@dataclass
class _Pending:
    """Request that is not answered yet.

    Attributes:
        number: its number at this device.
        network: number of its network.
        arrived_s: virtual time at which it arrived.
        batch: its samples.
        cut: number of blocks that the device computes.
        feasible: whether any cut was expected to meet its deadline.
        asked: nodes whose answers it waits for.
        answers: logits by node, [samples, classes] each.
        ready_s: virtual time of the answer of the own model; None before it.
        sent: what the server was sent, so that the device can go on without it.
    """

    number: int
    network: int
    arrived_s: float
    batch: Batch
    cut: int
    feasible: bool
    asked: set[int] = field(default_factory=set)
    answers: dict[int, torch.Tensor] = field(default_factory=dict)
    ready_s: float | None = None
    sent: Tensors | None = None
    computed_s: float = 0.0
    sent_s: float = 0.0
    link_s: float = 0.0
    server_s: float = 0.0


class DeviceRequests:
    """Requests of one device.

    Args:
        plan: plan of the device.
        models: its networks.
        data: dataset, about whose test samples the requests ask.
        executor: executor of its blocks.
        clock: virtual time.
        send: function that sends a question to a node, and returns whether it could.
        wrong: which samples each device's model has got wrong, by network, [devices, samples].
    """

    def __init__(
        self,
        plan: ServingPlan,
        models: Sequence[ServedModel],
        data: Data,
        executor: BlockExecutor,
        clock: ServingClock,
        send: Callable[[int, Question], bool],
        wrong: Mapping[int, np.ndarray[tuple[int, int], np.dtype[np.bool_]]],
    ) -> None:
        self._plan, self._models, self._data = plan, models, data
        self._executor, self._clock, self._send, self._wrong = executor, clock, send, wrong
        server_share = None if plan.server is None else plan.shares[plan.server]
        self._networks: tuple[ServedNetwork, ...] = tuple(
            each.describe(plan.shares[plan.node], server_share) for each in models
        )
        self._links = {
            each.node: LinkBelief(LinkState(each.rate_mbps, each.round_trip_s))
            for each in plan.links
        }
        self._backlogs_s = dict.fromkeys(self._links, 0.0)
        link = None if plan.server is None else self._links[plan.server]
        self._chooser = SplitChooser(plan.workload.split, link)
        self._arrivals = deque(enumerate(plan.list_arrivals()))
        self._networks_drawn = np.random.default_rng((plan.workload.seed, plan.node, 4))
        self._pending: dict[int, _Pending] = {}
        self._absent: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Return whether all requests are answered or shed."""
        return not self._arrivals and not self._pending

    @property
    def next_s(self) -> float:
        """Return the virtual time at which the device must do something next."""
        times = [self._arrivals[0][1]] if self._arrivals else []
        ensemble = self._plan.workload.ensemble
        if ensemble is not None:
            times += [each.arrived_s + ensemble.budget_s for each in self._pending.values()]
        return min(times, default=math.inf)

    def admit_due(self) -> None:
        """Admit all requests whose time has come, and end those whose budget is used up."""
        now_s = self._clock.now_s
        while self._arrivals and self._arrivals[0][1] <= now_s:
            number, arrived_s = self._arrivals.popleft()
            self._admit(number, arrived_s)
        ensemble = self._plan.workload.ensemble
        if ensemble is not None:
            for each in list(self._pending.values()):
                if each.ready_s is not None and now_s >= each.arrived_s + ensemble.budget_s:
                    self._finish(each)

    def receive(self, reply: Reply, unsure_s: float) -> None:
        """Take the answer of a node: of the server, or of a neighbor.

        Args:
            reply: the answer.
            unsure_s: virtual seconds for which it may have been there before it was read.
        """
        pending = self._pending.get(reply.number)
        self._backlogs_s[reply.sender] = reply.backlog_us / 1e6
        if pending is None or (
            reply.sender not in pending.asked and reply.sender != self._plan.server
        ):
            return
        stayed_s = reply.stayed_us / 1e6
        took_s = self._clock.now_s - pending.sent_s - stayed_s
        size_bytes = self._networks[pending.network].cut_bytes[
            pending.cut if reply.sender == self._plan.server else 0
        ]
        self._learn(reply.sender, size_bytes, took_s, unsure_s)
        logits = reply.logits.view(len(pending.batch.labels), -1)
        if reply.sender == self._plan.server:
            self._chooser.note_answered(reply.number)
            pending.link_s, pending.server_s = took_s, stayed_s
            self._take_own(pending, logits)
            return
        pending.asked.discard(reply.sender)
        pending.answers[reply.sender] = logits
        self._finish_if_complete(pending)

    def take_echo(self, node: int, backlog_s: float, took_s: float, unsure_s: float) -> None:
        """Learn how the link to a node is from the answer to a probe.

        Args:
            node: the node.
            backlog_s: expected virtual seconds of the work that waits there.
            took_s: virtual seconds from the probe until its answer was read.
            unsure_s: virtual seconds for which the answer may have been there before.
        """
        self._backlogs_s[node] = backlog_s
        self._learn(node, PROBE_BYTES, took_s, unsure_s)

    def _learn(self, node: int, size_bytes: float, took_s: float, unsure_s: float) -> None:
        """Learn from a message, unless it is too uncertain when its answer came."""
        if unsure_s <= MOST_UNSURE * took_s:
            self._links[node].learn(size_bytes, took_s - unsure_s / 2)

    def lose(self, node: int) -> None:
        """Go on without a node that has left: its answers are not waited for any more.

        What the server had is computed by the device itself.
        """
        self._absent.add(node)
        for each in list(self._pending.values()):
            each.asked.discard(node)
            if node == self._plan.server and each.sent is not None and each.ready_s is None:
                self._compute(each, each.cut, self._networks[each.network].blocks, each.sent)
            else:
                self._finish_if_complete(each)
        if node == self._plan.server:
            self._chooser = SplitChooser("none")

    def _admit(self, number: int, arrived_s: float) -> None:
        network = int(self._networks_drawn.integers(len(self._models)))
        samples = self._plan.workload.requests.batch
        rng = np.random.default_rng((self._plan.workload.seed, self._plan.node, number, 5))
        if len(self._pending) >= self._plan.workload.requests.most_waiting:
            self._log_shed(number, network, arrived_s)
            return
        # The first half of the test samples told how the models differ.
        indices = rng.integers(len(self._data.test) // 2, len(self._data.test), samples)
        batch = fetch(self._data, indices)
        pace = self._executor.pace
        served = self._networks[network].paced(pace)
        queues = QueueState(
            pace * self._executor.backlog_s,
            self._chooser.predict_link_wait_s(self._clock.now_s),
            self._get_server_backlog_s(),
        )
        cut = self._chooser.choose(served, queues)
        pending = _Pending(
            number, network, arrived_s, batch, cut, self._is_feasible(served, queues)
        )
        self._pending[number] = pending
        self._consult_neighbors(pending)
        if cut:
            self._compute(pending, 0, cut, (batch.inputs,))
        else:
            self._send_to_server(pending, (batch.inputs,))

    def _is_feasible(self, served: ServedNetwork, queues: QueueState) -> bool:
        deadline_s = self._plan.workload.requests.deadline_s
        link = self._chooser.link
        if deadline_s is None:
            return True
        if link is None:
            return queues.device_s + served.alone_s <= deadline_s
        return is_feasible(predict_latencies(served, link.state, queues), deadline_s)

    def _get_server_backlog_s(self) -> float:
        return self._backlogs_s.get(-1 if self._plan.server is None else self._plan.server, 0.0)

    def _compute(self, pending: _Pending, first: int, last: int, values: Tensors) -> None:
        def leave(work: BlockWork) -> None:
            pending.computed_s += work.computed_s
            if last == self._networks[pending.network].blocks:
                self._take_own(pending, work.values[0])
            else:
                self._send_to_server(pending, work.values)

        step = self._get_step(pending.number)
        work = BlockWork(step, pending.network, first, last, values, leave)
        self._executor.add(work, pending.arrived_s, pending.arrived_s + self._get_deadline_s())

    def _get_step(self, number: int) -> int:
        """Return the number of a request in the trace: those of all devices differ."""
        return number * self._plan.devices + self._plan.node

    def _get_deadline_s(self) -> float:
        deadline_s = self._plan.workload.requests.deadline_s
        return math.inf if deadline_s is None else deadline_s

    def _send_to_server(self, pending: _Pending, values: Tensors) -> None:
        assert self._plan.server is not None
        pending.sent_s = self._clock.now_s
        question = self._make_question(pending, pending.cut, values)
        if self._plan.server not in self._absent and self._send(self._plan.server, question):
            pending.sent = values
            size_bytes = self._networks[pending.network].cut_bytes[pending.cut]
            self._chooser.note_sent(pending.number, size_bytes, pending.sent_s)
        else:
            last = self._networks[pending.network].blocks
            self._compute(pending, pending.cut, last, values)

    def _make_question(self, pending: _Pending, cut: int, values: Tensors) -> Question:
        deadline_s = pending.arrived_s + self._get_deadline_s()
        return Question(
            self._plan.node,
            pending.number,
            pending.network,
            cut,
            round(deadline_s * 1e6) if deadline_s < math.inf else -1,
            self._models[pending.network].pack(values),
        )

    def _consult_neighbors(self, pending: _Pending) -> None:
        ensemble = self._plan.workload.ensemble
        if ensemble is None:
            return
        served, wrong = self._networks[pending.network], self._wrong[pending.network]
        neighbors = [
            Neighbor(
                node,
                link.state.predict_s(served.cut_bytes[0])
                + self._backlogs_s[node]
                + sum(self._models[pending.network].block_s) / self._plan.shares[node],
                1.0 - float(wrong[node].mean()),
            )
            for node, link in self._links.items()
            if node != self._plan.server and node not in self._absent
        ]
        pending.sent_s = self._clock.now_s
        for node in choose_neighbors(
            self._plan.node, neighbors, wrong, ensemble.budget_s, ensemble.ask
        ):
            if self._send(node, self._make_question(pending, 0, (pending.batch.inputs,))):
                pending.asked.add(node)

    def _take_own(self, pending: _Pending, logits: torch.Tensor) -> None:
        pending.answers[self._plan.node] = logits
        pending.ready_s = self._clock.now_s
        self._finish_if_complete(pending)

    def _finish_if_complete(self, pending: _Pending) -> None:
        ensemble = self._plan.workload.ensemble
        is_late = (
            ensemble is not None and self._clock.now_s >= pending.arrived_s + ensemble.budget_s
        )
        if pending.ready_s is not None and (not pending.asked or is_late):
            self._finish(pending)

    def _finish(self, pending: _Pending) -> None:
        del self._pending[pending.number]
        votes = {node: each.double().numpy() for node, each in pending.answers.items()}
        labels = combine_answers(votes).argmax(axis=1)
        now_s, clock = self._clock.now_s, self._clock
        served = self._networks[pending.network]
        deadline_s = self._plan.workload.requests.deadline_s
        log_request(
            Path(self._plan.output_dir),
            RequestRow(
                pending.number,
                self._plan.node,
                pending.network,
                clock.to_ns(pending.arrived_s),
                clock.to_ns(now_s),
                pending.cut,
                clock.to_real_ns(pending.computed_s),
                clock.to_real_ns(pending.link_s),
                clock.to_real_ns(pending.server_s),
                -1 if deadline_s is None else clock.to_real_ns(deadline_s),
                clock.to_real_ns(self._predict_alone_s(served, pending.cut)),
                int((labels == pending.batch.labels.numpy()).sum()),
                len(labels),
                len(votes),
                pending.feasible,
            ),
        )

    def _predict_alone_s(self, served: ServedNetwork, cut: int) -> float:
        """Return the seconds of a request at a cut if no other one were there."""
        link = self._chooser.link
        if link is None or cut == served.blocks:
            return served.alone_s
        return predict_latencies(served, link.state, QueueState())[cut]

    def _log_shed(self, number: int, network: int, arrived_s: float) -> None:
        deadline_s = self._plan.workload.requests.deadline_s
        log_request(
            Path(self._plan.output_dir),
            RequestRow(
                number,
                self._plan.node,
                network,
                self._clock.to_ns(arrived_s),
                SHED,
                self._networks[network].blocks,
                deadline_ns=-1 if deadline_s is None else self._clock.to_real_ns(deadline_s),
                samples=self._plan.workload.requests.batch,
            ),
        )
