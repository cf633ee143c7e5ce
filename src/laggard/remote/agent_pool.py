"""Controller's access to the agents of all nodes: requests, replies and unrequested messages."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from laggard.core.errors import DeploymentError, LaggardError
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

    Args:
        processes: SSH sessions of the agents.
        plans: plan of every agent, by host name.
        barrier_hub: router of barrier updates between agents.
        progress_hub: router of progress updates between agents.
        logs: folder for the parts of their logs that agents send.
    """

    processes: RemoteProcesses
    plans: Mapping[str, AgentPlan]
    barrier_hub: BarrierHub
    progress_hub: ProgressHub
    logs: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _replies: dict[int, AgentReply] = field(default_factory=dict)
    _request_hosts: dict[int, str] = field(default_factory=dict)
    _events: deque[AgentEvent] = field(default_factory=deque)
    _last_message_s: dict[str, float] = field(default_factory=dict)
    _last_keepalive_s: float = 0.0
    _expects_heartbeats: bool = False
    _tolerates_losses: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _failure: LaggardError | None = None
    _lost: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start the agents and send each its plan."""
        self.processes.start()
        for host, plan in self.plans.items():
            self.processes.write(host, format_line(plan))

    def send_request(
        self, host: str, operation: str, argument: Mapping[str, JsonValue] | None = None
    ) -> int:
        """Send a request to one agent and return its number, for `wait_for_reply`."""
        number = next(self._numbers)
        self._request_hosts[number] = host
        self.processes.write(
            host,
            format_line(
                AgentRequest(number=number, operation=operation, argument=dict(argument or {}))
            ),
        )
        return number

    def wait_for_reply(self, number: int, timeout_s: float) -> JsonValue:
        """Return the result of a request, waiting until it arrives.

        Raises:
            DeploymentError: the agent reported an error, was lost, or did not answer within
                `timeout_s` seconds.
        """
        host, deadline_s = self._request_hosts[number], time.monotonic() + timeout_s
        while number not in self._replies:
            if host in self._lost:
                raise DeploymentError(self._lost[host])
            if time.monotonic() > deadline_s:
                raise DeploymentError(
                    f"{host}: no reply to a request within {timeout_s:g} s — check that the node"
                    " is up and reachable by SSH"
                )
            self._receive(_POLL_SLICE_S)
        answer = self._replies.pop(number)
        if answer.error:
            raise DeploymentError(
                answer.error if answer.error.startswith(host) else f"{host}: {answer.error}"
            )
        return answer.result

    def call(
        self,
        host: str,
        operation: str,
        argument: Mapping[str, JsonValue] | None = None,
        timeout_s: float = 60.0,
    ) -> JsonValue:
        """Send a request to one agent and return its result; raises as `wait_for_reply` does."""
        return self.wait_for_reply(self.send_request(host, operation, argument), timeout_s)

    def call_all(
        self,
        operation: str,
        arguments: Mapping[str, Mapping[str, JsonValue]] | None = None,
        timeout_s: float = 60.0,
    ) -> dict[str, JsonValue]:
        """Send a request to several agents at once and return all results, by host name.

        Args:
            operation: name of the request.
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
        return {host: self.wait_for_reply(number, timeout_s) for host, number in pending.items()}

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
        line_event = self.processes.poll_events(timeout_s)
        while line_event is not None:
            self._handle_event(line_event)
            line_event = self.processes.poll_events(0.0)
        if self._expects_heartbeats:
            self._check_silence()

    def _send_keepalives(self) -> None:
        if time.monotonic() - self._last_keepalive_s >= KEEPALIVE_INTERVAL_S:
            self._last_keepalive_s = time.monotonic()
            for host in self.plans:
                self.processes.write(host, format_line(KeepAlive()))

    def _handle_event(self, line_event: OutputLine) -> None:
        host = line_event.machine
        if line_event.line is None:
            self._mark_lost(
                host,
                f"{host}: the connection to its agent was closed"
                f"{_format_last_words(line_event.last_words)}",
            )
            return
        self._last_message_s[host] = time.monotonic()
        message = parse_agent_message(line_event.line)
        if isinstance(message, AgentReply):
            self._replies[message.number] = message
        elif isinstance(message, AgentFailed):
            self._mark_lost(host, f"{host}: {message.error.removeprefix(f'{host}: ')}")
        elif isinstance(message, LogChunk):
            with (self.logs / message.name).open("a", encoding="utf-8") as log:
                log.write(message.text)
        elif isinstance(message, PROGRESS_UPDATE_TYPES):
            for target in self.progress_hub.route(host, message):
                self.send_update(target, message)
        else:
            self._events.append(AgentEvent(host, message))
            self._relay_barrier_update(host, message)

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
    return f"; its last error output:\n{words}" if words else ""
