"""One node that serves networks: a device, or the server."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from laggard.core.errors import TransportError
from laggard.core.process.inherited_state import reset_inherited_state
from laggard.core.serving.neighbor_choice import measure_errors
from laggard.core.serving.split_point import PROBE_BYTES, PROBE_S
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.inference.block_executor import BlockExecutor, BlockWork, ServingClock
from laggard.workloads.inference.device_requests import DeviceRequests
from laggard.workloads.inference.served_model import ServedModel, build_served_models, fetch
from laggard.workloads.inference.serving_messages import Question, Reply, ServingMessageKind
from laggard.workloads.inference.serving_plan import ServingPlan
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.tracing.full_speed import alone_on_core
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.frames import Message

LOGGER = logging.getLogger(__name__)
_POLL_S = 0.01
_LONGEST_WAIT_S, _LONGEST_DRAIN_S = 0.05, 10.0
_TRIED_SAMPLES = 400
_OTHERS_STEP = 1 << 24
"""First number in a node's trace of what it computes for others."""

Wrong = npt.NDArray[np.bool_]


def serve(plan: ServingPlan, hold: Callable[[], None]) -> None:
    """Serve as one node until all devices have their answers.

    Args:
        plan: plan of the node.
        hold: function that has this process held to the share of its host; it is called when the
            networks are built and measured at full speed.

    Raises:
        InputError: a model or the dataset is invalid.
    """
    reset_inherited_state()
    torch.set_num_threads(1)
    output_dir = WorkerOutputDir(plan.output_path)
    if plan.node == 0:
        prepare_data(plan.workload, plan.output_path)
    data = open_data(plan.workload, plan.output_path)
    with alone_on_core(output_dir.full_speed):
        models = _build_models(plan, data)
    if plan.has_own_models and plan.is_device:
        _write_errors(plan, models, data)
    opened = (
        nullcontext() if plan.endpoint is None else Endpoint(plan.endpoint, listens=_listens(plan))
    )
    with opened as endpoint, Recorder(output_dir, plan.node, len(plan.hosts)) as recorder:
        if endpoint is not None:
            for link in plan.links:
                endpoint.connect(link.node)
        hold()
        write_whole(output_dir.ready(plan.node), b"")
        clock = ServingClock(_wait_for_start(output_dir), plan.dilation)
        ServingNode(plan, models, data, endpoint, recorder, clock).run()


def _listens(plan: ServingPlan) -> bool:
    """Return whether others ask this node."""
    return not plan.is_device or plan.has_own_models


def _build_models(plan: ServingPlan, data: Data) -> tuple[ServedModel, ...]:
    """Build all networks: the same ones at every node, unless their votes shall differ."""
    workload = plan.workload
    seed = workload.seed + (1000 * plan.node if plan.has_own_models else 0)
    shares = sorted(plan.shares[: plan.devices])
    typical = shares[len(shares) // 2]
    server_share = typical if plan.server is None else plan.shares[plan.server]
    return build_served_models(workload, data, seed, (typical, server_share))


def _write_errors(plan: ServingPlan, models: tuple[ServedModel, ...], data: Data) -> None:
    """Write which of the first test samples each network gets wrong, for the other devices."""
    indices = np.arange(max(min(_TRIED_SAMPLES, len(data.test) // 2), 1), dtype=np.int64)
    batch = fetch(data, indices)
    answers = [model.predict(batch.inputs).argmax(dim=1).numpy() for model in models]
    wrong = measure_errors(np.stack(answers), batch.labels.numpy())
    write_whole(_errors_path(plan, plan.node), json.dumps(wrong.tolist()).encode())


def _errors_path(plan: ServingPlan, node: int) -> Path:
    return plan.output_path / f"errors-{node}.json"


def _read_errors(plan: ServingPlan) -> Mapping[int, Wrong]:
    """Read which samples every device's networks get wrong, by network, [devices, samples]."""
    if not plan.has_own_models:
        return {}
    wrong = np.array(
        [json.loads(_errors_path(plan, node).read_text()) for node in range(plan.devices)],
        dtype=bool,
    )
    return {network: wrong[:, network] for network in range(wrong.shape[1])}


def _wait_for_start(output_dir: WorkerOutputDir) -> int:
    """Wait until all nodes are ready, and return the time of the start."""
    while not output_dir.zero.exists():
        time.sleep(_POLL_S)
    zero_ns = int(json.loads(output_dir.zero.read_text())["zero_ns"])
    while time.monotonic_ns() < zero_ns:
        time.sleep(max(zero_ns - time.monotonic_ns(), 0) / 1e9)
    return zero_ns


class ServingNode:
    """Node that computes blocks for its own requests and for those of others.

    Args:
        plan: plan of the node.
        models: its networks.
        data: dataset.
        endpoint: connections to other nodes; None if it has none.
        recorder: trace of the node.
        clock: virtual time.
    """

    def __init__(
        self,
        plan: ServingPlan,
        models: tuple[ServedModel, ...],
        data: Data,
        endpoint: Endpoint | None,
        recorder: Recorder,
        clock: ServingClock,
    ) -> None:
        self._plan, self._models, self._endpoint, self._clock = plan, models, endpoint, clock
        order = plan.workload.order if plan.is_device else "fcfs"
        self._executor = BlockExecutor(models, plan.shares[plan.node], order, recorder, clock)
        self._requests = (
            DeviceRequests(
                plan, models, data, self._executor, clock, self._consult, _read_errors(plan)
            )
            if plan.is_device
            else None
        )
        self._ended: set[int] = set()
        self._gone: set[int] = set()
        self._has_ended = False
        self._questions = 0
        # When no message was there last, and how long ago the present one may have come.
        self._empty_s = self._unsure_s = 0.0
        self._sent_s: dict[int, float] = {}
        self._probed_s: dict[int, float] = {}

    def run(self) -> None:
        """Serve until all devices have their answers."""
        # Who has heard from a node notices when it leaves.
        for link in self._plan.links:
            self._send_probe(link.node)
        while not self._is_over():
            self._receive(0.0)
            if self._requests is not None:
                self._requests.admit_due()
                self._end_if_over(self._requests)
                self._probe()
            if not self._executor.compute_block():
                self._executor.rest()
                self._receive(self._find_wait_s())

    def _find_wait_s(self) -> float:
        """Return the real seconds for which the node may wait for a message."""
        next_s = math.inf if self._requests is None else self._requests.next_s
        wait_s = min((next_s - self._clock.now_s) * self._plan.dilation, _LONGEST_WAIT_S)
        return max(wait_s, 0.0)

    def _is_over(self) -> bool:
        others = {each for each in range(self._plan.devices) if each != self._plan.node}
        own = self._requests is None or self._has_ended
        serves = _listens(self._plan)
        return own and (not serves or others <= self._ended | self._gone)

    def _end_if_over(self, requests: DeviceRequests) -> None:
        """End the nodes' service to this one when it has no more questions."""
        if self._has_ended or not requests.is_over:
            return
        self._has_ended = True
        for link in self._plan.links:
            self._send(link.node, Message(ServingMessageKind.END))
        if self._endpoint is not None:
            self._endpoint.drain(_LONGEST_DRAIN_S * self._plan.dilation)

    def _consult(self, node: int, question: Question) -> bool:
        self._sent_s[node] = self._clock.now_s
        return self._send(node, question.pack())

    def _send(self, node: int, message: Message) -> bool:
        """Send a message, and return whether the node is still there."""
        if self._endpoint is None or node in self._gone:
            return False
        try:
            self._endpoint.send(node, message)
        except TransportError:
            self._lose(node)
            return False
        return True

    def _probe(self) -> None:
        """Ask the server how the link is, if no request has told it for a while."""
        plan, server = self._plan, self._plan.server
        if server is None or plan.workload.split != "dynamic" or self._has_ended:
            return
        last_s = max(self._sent_s.get(server, 0.0), self._probed_s.get(server, 0.0))
        if self._clock.now_s - last_s >= PROBE_S:
            self._send_probe(server)

    def _send_probe(self, node: int) -> None:
        """Ask a node for an echo."""
        self._probed_s[node] = self._clock.now_s
        empty = torch.zeros(PROBE_BYTES, dtype=torch.uint8)
        self._send(node, Message(ServingMessageKind.PROBE, tensor=empty))

    def _receive(self, wait_s: float) -> None:
        """Take all messages, waiting for the first."""
        if self._endpoint is None:
            time.sleep(wait_s)
            return
        while (message := self._endpoint.take()) is not None:
            # It came while a block was computed, at some time since nothing was there.
            self._unsure_s = self._clock.now_s - self._empty_s
            self._handle(message)
        self._empty_s = self._clock.now_s
        if wait_s > 0 and (message := self._endpoint.take(wait_s)) is not None:
            self._unsure_s = 0.0
            self._handle(message)
        for node in self._endpoint.departed - self._gone:
            self._lose(node)

    def _lose(self, node: int) -> None:
        self._gone.add(node)
        if self._requests is not None:
            LOGGER.info("node %d has left", node)
            self._requests.lose(node)

    def _handle(self, message: Message) -> None:
        if message.kind == ServingMessageKind.ASK:
            self._take_question(Question.unpack(message))
        elif message.kind == ServingMessageKind.ANSWER:
            if self._requests is not None:
                self._requests.receive(Reply.unpack(message), self._unsure_s)
        elif message.kind == ServingMessageKind.PROBE:
            backlog_us = round(self._executor.backlog_s * 1e6)
            self._send(message.sender, Message(ServingMessageKind.ECHO, values=(backlog_us,)))
        elif message.kind == ServingMessageKind.ECHO:
            if self._requests is not None:
                took_s = self._clock.now_s - self._probed_s[message.sender]
                backlog_s = message.values[0] / 1e6
                self._requests.take_echo(message.sender, backlog_s, took_s, self._unsure_s)
        else:
            self._ended.add(message.sender)

    def _take_question(self, question: Question) -> None:
        """Compute what another node asks."""
        arrived_s = self._clock.now_s - self._unsure_s / 2
        model = self._models[question.network]
        self._questions += 1

        def answer(work: BlockWork) -> None:
            stayed_us = round((self._clock.now_s - arrived_s) * 1e6)
            backlog_us = round(self._executor.backlog_s * 1e6)
            logits = work.values[0].reshape(-1).clone()
            reply = Reply(self._plan.node, question.number, stayed_us, backlog_us, logits)
            self._send(question.sender, reply.pack())

        work = BlockWork(
            _OTHERS_STEP + self._questions,
            question.network,
            question.cut,
            model.blocks,
            model.unpack(question.values, question.cut),
            answer,
        )
        deadline_s = math.inf if question.deadline_us < 0 else question.deadline_us / 1e6
        self._executor.add(work, arrived_s, deadline_s)
