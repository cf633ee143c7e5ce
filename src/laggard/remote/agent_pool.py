"""Controller's access to the agents of all nodes: requests, replies and unrequested messages."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from pydantic import JsonValue, ValidationError

from laggard.core.errors import DeploymentError, LaggardError
from laggard.core.node_values import describe_invalid
from laggard.layers_services.ssh.contained_files import open_contained
from laggard.layers_services.ssh.host_keys import explain_refusal
from laggard.layers_services.ssh.remote_processes import OutputLine, RemoteProcesses
from laggard.remote.agent.messages import (
    AgentFailed,
    AgentMessage,
    AgentPlan,
    AgentReply,
    AgentRequest,
    KeepAlive,
    LogChunk,
    format_line,
    parse_agent_message,
)
from laggard.remote.agent.operations import Operation, Result
from laggard.remote.node_authority import NodeRole, assign_roles
from laggard.workloads.coordination.barrier_relay import (
    BARRIER_UPDATE_TYPES,
    BarrierHub,
    BarrierUpdate,
)
from laggard.workloads.coordination.progress_relay import (
    PROGRESS_UPDATE_TYPES,
    ProgressHub,
    ProgressUpdate,
)

KEEPALIVE_INTERVAL_S = 2.0
"""Seconds between two signs of life of the controller, well below an agent's
`AgentPlan.lease_s`."""
_POLL_SLICE_S = 0.005
"""Longest time for which one thread holds the lock while it waits for messages, in seconds.
Another thread waits no longer than this."""

SILENCE_TIMEOUT_S = 15.0
"""Silence after which an agent or its node counts as lost, in seconds. Agents send heartbeats
twice a second."""

MOST_LOG_BYTES = 256 << 20
"""Most bytes of a node's logs that are kept here; the node keeps all of them."""

_MOST_EVENTS = 10_000
"""Most messages of a node that wait to be handled; an honest one sends about ten a second."""

_MOST_LINES_AT_ONCE = 1000
"""Lines after which the controller gives signs of life again, however many more wait."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingReply(Generic[Result]):
    """Request whose reply may not have arrived yet."""

    number: int
    host: str
    operation: Operation[Result]


@dataclass(frozen=True)
class AgentEvent:
    """Message that an agent sent without a request."""

    host: str
    message: AgentMessage


@dataclass
class AgentPool:
    """Agents of all nodes of a run.

    Several threads may send requests and wait for replies: the scheduler of timed events changes
    nodes while the main thread watches the training.

    Nothing that a node says is believed. A line that is not a message of its type and bounds, or
    that only another node may send, makes the node garbled: its session is ended, and it counts as
    lost.

    Args:
        processes: SSH sessions of the agents.
        plans: plan of every agent, by host name.
        barrier_hub: router of barrier updates between agents.
        progress_hub: router of progress updates between agents.
        logs: folder for the parts of their logs that agents send.

    Attributes:
        garbled: reason for each garbled node, by host name.
    """

    processes: RemoteProcesses
    plans: Mapping[str, AgentPlan]
    barrier_hub: BarrierHub
    progress_hub: ProgressHub
    logs: Path
    garbled: dict[str, str] = field(default_factory=dict)
    _roles: Mapping[str, NodeRole] = field(init=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _pending: dict[int, str] = field(default_factory=dict)
    _replies: dict[int, AgentReply] = field(default_factory=dict)
    _log_bytes: Counter[str] = field(default_factory=Counter)
    _events: deque[AgentEvent] = field(default_factory=deque)
    _last_message_s: dict[str, float] = field(default_factory=dict)
    _last_keepalive_s: float = 0.0
    _expects_heartbeats: bool = False
    _tolerates_losses: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _failure: LaggardError | None = None
    _lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._roles = assign_roles(self.plans)

    def start(self) -> None:
        """Start the agents and send each its plan."""
        self.processes.start()
        for host, plan in self.plans.items():
            self.processes.write(host, format_line(plan))

    def send_request(
        self,
        host: str,
        operation: Operation[Result],
        argument: Mapping[str, JsonValue] | None = None,
    ) -> PendingReply[Result]:
        """Send a request to one agent and return it, for `wait_for_reply`."""
        pending = PendingReply(next(self._numbers), host, operation)
        # Any thread may receive the reply, so the request is known before it is sent.
        self._pending[pending.number] = host
        request = AgentRequest(
            number=pending.number, operation=operation.name, argument=dict(argument or {})
        )
        self.processes.write(host, format_line(request))
        return pending

    def wait_for_reply(self, pending: PendingReply[Result], timeout_s: float) -> Result:
        """Return the result of a request, waiting until it arrives.

        Raises:
            DeploymentError: the agent reported an error, was lost, or did not answer within
                `timeout_s` seconds, or its result does not have the operation's type.
        """
        host, deadline_s = pending.host, time.monotonic() + timeout_s
        while pending.number not in self._replies:
            if host in self._lost:
                raise DeploymentError(self._lost[host])
            if time.monotonic() > deadline_s:
                raise DeploymentError(
                    f"{host}: no reply to a request within {timeout_s:g} s — check that the node"
                    " is up and reachable by SSH"
                )
            self._receive(_POLL_SLICE_S)
        answer = self._replies.pop(pending.number)
        if answer.error:
            raise DeploymentError(
                answer.error if answer.error.startswith(host) else f"{host}: {answer.error}"
            )
        try:
            return pending.operation.result.validate_python(answer.result)
        except ValidationError as error:
            reason = f"its reply to {pending.operation.name}: {describe_invalid(error)}"
            with self._lock:
                self._mark_garbled(host, reason)
            raise DeploymentError(self._lost[host]) from error

    def call(
        self,
        host: str,
        operation: Operation[Result],
        argument: Mapping[str, JsonValue] | None = None,
        timeout_s: float = 60.0,
    ) -> Result:
        """Send a request to one agent and return its result; raises as `wait_for_reply` does."""
        return self.wait_for_reply(self.send_request(host, operation, argument), timeout_s)

    def call_all(
        self,
        operation: Operation[Result],
        arguments: Mapping[str, Mapping[str, JsonValue]] | None = None,
        timeout_s: float = 60.0,
    ) -> dict[str, Result]:
        """Send a request to several agents at once and return all results, by host name.

        Args:
            operation: requested operation.
            arguments: argument for each host; only these hosts get the request. All hosts get it,
                without an argument, if this is None.
            timeout_s: longest wait for each reply.

        Raises:
            DeploymentError: as in `wait_for_reply`.
        """
        chosen = dict.fromkeys(self.plans) if arguments is None else arguments
        pending = {
            host: self.send_request(host, operation, argument) for host, argument in chosen.items()
        }
        return {host: self.wait_for_reply(each, timeout_s) for host, each in pending.items()}

    def poll_events(self, timeout_s: float) -> Sequence[AgentEvent]:
        """Return the unrequested messages since the last call, waiting for the first if necessary.

        The wait ends after `timeout_s` seconds.

        Raises:
            DeploymentError: an agent is lost or silent.
        """
        deadline_s = time.monotonic() + timeout_s
        self._receive(0.0)
        while not self._events and (left_s := deadline_s - time.monotonic()) > 0:
            self._receive(min(left_s, _POLL_SLICE_S))
        with self._lock:
            events = tuple(self._events)
            self._events.clear()
        return events

    def expect_heartbeats(self) -> None:
        """Require heartbeats from all agents from now on."""
        self._last_message_s = dict.fromkeys(self.plans, time.monotonic())
        self._expects_heartbeats = True

    def tolerate_losses(self) -> None:
        """Report the loss of an agent only to callers that request something of it, from now on.

        The remaining agents' data can then still be fetched.
        """
        self._expects_heartbeats, self._tolerates_losses, self._failure = False, True, None

    def send_update(self, host: str, update: BarrierUpdate | ProgressUpdate) -> None:
        """Send an update of the start barrier or the progress board to one agent."""
        self.processes.write(host, format_line(update))

    def _receive(self, timeout_s: float) -> None:
        """Process all messages that have arrived.

        Each thread that waits for messages also processes those for other threads. An error that
        ends the run is raised in every thread.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                self._receive_all(timeout_s)
            except LaggardError as error:
                self._failure = error
                raise

    def _receive_all(self, timeout_s: float) -> None:
        self._send_keepalives()
        for number in range(_MOST_LINES_AT_ONCE):
            line_event = self.processes.poll_events(0.0 if number else timeout_s)
            if line_event is None:
                break
            self._handle_event(line_event)
        if self._expects_heartbeats:
            self._check_silence()

    def _send_keepalives(self) -> None:
        if time.monotonic() - self._last_keepalive_s >= KEEPALIVE_INTERVAL_S:
            self._last_keepalive_s = time.monotonic()
            for host in self.plans:
                self.processes.write(host, format_line(KeepAlive()))

    def _handle_event(self, line_event: OutputLine) -> None:
        host = line_event.machine
        if host in self.garbled:
            return
        if line_event.fault:
            self._mark_garbled(host, line_event.fault)
            return
        if line_event.line is None:
            self._mark_lost(
                host,
                f"{host}: the connection to its agent was closed"
                f"{_format_last_words(line_event.last_words)}",
            )
            return
        try:
            message = parse_agent_message(line_event.line)
        except ValueError as error:
            self._mark_garbled(host, str(error))
            return
        if violation := self._roles[host].find_violation(message):
            self._mark_garbled(host, violation)
            return
        self._last_message_s[host] = time.monotonic()
        self._handle_message(host, message)

    def _handle_message(self, host: str, message: AgentMessage) -> None:
        if isinstance(message, AgentReply):
            if self._pending.get(message.number) != host:
                self._mark_garbled(host, f"it replies to request {message.number}, not sent to it")
            else:
                del self._pending[message.number]
                self._replies[message.number] = message
        elif isinstance(message, AgentFailed):
            self._mark_lost(host, f"{host}: {message.error.removeprefix(f'{host}: ')}")
        elif isinstance(message, LogChunk):
            self._append_to_log(host, message)
        elif isinstance(message, PROGRESS_UPDATE_TYPES):
            for target in self.progress_hub.route(host, message):
                self.send_update(target, message)
        elif self._has_too_many_events(host):
            self._mark_garbled(host, f"more than {_MOST_EVENTS} of its messages wait")
        else:
            self._events.append(AgentEvent(host, message))
            self._relay_barrier_update(host, message)

    def _has_too_many_events(self, host: str) -> bool:
        return (
            len(self._events) >= _MOST_EVENTS
            and sum(event.host == host for event in self._events) >= _MOST_EVENTS
        )

    def _append_to_log(self, host: str, chunk: LogChunk) -> None:
        content = chunk.text.encode(errors="backslashreplace")
        if self._log_bytes[host] > MOST_LOG_BYTES:
            return
        self._log_bytes[host] += len(content)
        if self._log_bytes[host] > MOST_LOG_BYTES:
            _log.warning(
                "%s: its logs have more than %d MiB; the rest remains on the node",
                host,
                MOST_LOG_BYTES >> 20,
            )
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with os.fdopen(open_contained(self.logs, chunk.name, flags), "ab") as log:
                log.write(content)
        except OSError as error:
            _log.warning("%s: its log %s cannot be written: %s", host, chunk.name, error)

    def _mark_garbled(self, host: str, reason: str) -> None:
        """End the session of a node that sends something that no agent sends."""
        text = f"{host}: the node sends garbled messages, so its data is not used: {reason}"
        if host not in self.garbled:
            self.garbled[host] = text
            _log.warning("%s", text)
            self.processes.end(host, text)
        self._mark_lost(host, text)

    def _mark_lost(self, host: str, reason: str) -> None:
        self._lost.setdefault(host, reason)
        if not self._tolerates_losses:
            raise DeploymentError(reason)

    def _relay_barrier_update(self, host: str, message: AgentMessage) -> None:
        """Send a barrier update to the other nodes at once."""
        if isinstance(message, BARRIER_UPDATE_TYPES):
            for target, update in self.barrier_hub.route(host, message):
                self.send_update(target, update)

    def _check_silence(self) -> None:
        now_s = time.monotonic()
        silent = [
            host
            for host, last_message_s in self._last_message_s.items()
            if now_s - last_message_s > SILENCE_TIMEOUT_S
        ]
        if silent:
            reason = (
                f"{', '.join(silent[:5])}: no message for {SILENCE_TIMEOUT_S:g} s — check that the"
                " node is up and reachable by SSH"
            )
            self._lost |= dict.fromkeys(silent, reason)
            raise DeploymentError(reason)


def _format_last_words(words: str) -> str:
    if refusal := explain_refusal(words):
        return f": {refusal}"
    return f"; its last error output:\n{words}" if words else ""
