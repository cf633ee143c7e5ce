"""The agents of all nodes, as the controller sees them: ask one, ask all, hear what they tell
unasked.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from laggard.errors import DeploymentError, LaggardError
from laggard.experiments.remote.messages import (
    AgentPlan,
    Alive,
    Answer,
    Failed,
    FromAgent,
    Log,
    Request,
    line_of,
    parse_from_agent,
)
from laggard.layers_services.remote_processes import Heard, RemoteProcesses
from laggard.workloads.gate_relay import GATE_NEWS, GateHub, GateNews
from laggard.workloads.tally_relay import TALLY_NEWS, TallyHub, TallyNews

ALIVE_S = 2.0
_SLICE_S = 0.005
"""How long one thread listens at a time, so that another need not wait for it."""

SILENCE_S = 15.0
"""An agent tells of its ranks twice a second: one that is silent for so long is lost, or its node
is."""


@dataclass(frozen=True)
class Told:
    """A message that nobody asked for."""

    host: str
    message: FromAgent


@dataclass
class Crew:
    """All agents of a run.

    Args:
        processes: their SSH sessions.
        plans: what each is told, by host.
        hub: who must hear whose gate news.
        tallies: and whose news of the tally.
        logs: folder for what agents send of their logs.
    """

    processes: RemoteProcesses
    plans: Mapping[str, AgentPlan]
    hub: GateHub
    tallies: TallyHub
    logs: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _answers: dict[int, Answer] = field(default_factory=dict)
    _asked: dict[int, str] = field(default_factory=dict)
    _told: deque[Told] = field(default_factory=deque)
    _heard_s: dict[str, float] = field(default_factory=dict)
    _alive_s: float = 0.0
    _talking: bool = False
    _making_do: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _failure: LaggardError | None = None
    _lost: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start the agents and give each its plan."""
        self.processes.start()
        for host, plan in self.plans.items():
            self.processes.write(host, line_of(plan))

    def ask(self, host: str, do: str, argument: Mapping[str, JsonValue] | None = None) -> int:
        """Ask one agent to do something; returns the number to wait for the answer with."""
        number = next(self._numbers)
        self._asked[number] = host
        self.processes.write(
            host, line_of(Request(number=number, do=do, argument=dict(argument or {})))
        )
        return number

    def answer(self, number: int, timeout_s: float) -> JsonValue:
        """The result of a request.

        Raises:
            DeploymentError: the agent could not do it, is gone, or did not answer within
                `timeout_s` seconds.
        """
        host, deadline_s = self._asked[number], time.monotonic() + timeout_s
        while number not in self._answers:
            if host in self._lost:
                raise DeploymentError(self._lost[host])
            if time.monotonic() > deadline_s:
                raise DeploymentError(
                    f"{host}: no answer for {timeout_s:g} s; is the node still there?"
                )
            self._listen(_SLICE_S)
        answer = self._answers.pop(number)
        if answer.error:
            raise DeploymentError(
                answer.error if answer.error.startswith(host) else f"{host}: {answer.error}"
            )
        return answer.result

    def call(
        self,
        host: str,
        do: str,
        argument: Mapping[str, JsonValue] | None = None,
        timeout_s: float = 60.0,
    ) -> JsonValue:
        """Ask one agent, and wait for its answer; raises as `answer` does."""
        return self.answer(self.ask(host, do, argument), timeout_s)

    def call_all(
        self,
        do: str,
        arguments: Mapping[str, Mapping[str, JsonValue]] | None = None,
        timeout_s: float = 60.0,
    ) -> dict[str, JsonValue]:
        """Ask all agents (or those that `arguments` names) at once, and wait for all answers."""
        asked = {
            host: self.ask(host, do, (arguments or {}).get(host))
            for host in arguments or self.plans
        }
        return {host: self.answer(number, timeout_s) for host, number in asked.items()}

    def hear(self, timeout_s: float) -> Sequence[Told]:
        """What agents have told unasked since the last call, waiting at most `timeout_s` seconds
        for the first.

        Raises:
            DeploymentError: an agent is gone or silent.
        """
        deadline_s = time.monotonic() + timeout_s
        self._listen(0.0)
        while not self._told and (left_s := deadline_s - time.monotonic()) > 0:
            self._listen(min(left_s, _SLICE_S))
        with self._lock:
            told = tuple(self._told)
            self._told.clear()
        return told

    def watch_silence(self) -> None:
        """From now on agents are expected to tell of their ranks all the time."""
        self._heard_s = dict.fromkeys(self.plans, time.monotonic())
        self._talking = True

    def make_do(self) -> None:
        """From now on the loss of an agent is told only to who asks it for something: what is left
        is to be brought home.
        """
        self._talking, self._making_do, self._failure = False, True, None

    def tell(self, host: str, news: GateNews | TallyNews) -> None:
        """Hand news to one agent."""
        self.processes.write(host, line_of(news))

    def _listen(self, timeout_s: float) -> None:
        """Take in all that has come; any thread's listening serves all, and what ends the run is
        told to each.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                self._take_all(timeout_s)
            except LaggardError as error:
                self._failure = error
                raise

    def _take_all(self, timeout_s: float) -> None:
        self._keep_alive()
        heard = self.processes.hear(timeout_s)
        while heard is not None:
            self._take(heard)
            heard = self.processes.hear(0.0)
        if self._talking:
            self._check_silence()

    def _keep_alive(self) -> None:
        if time.monotonic() - self._alive_s >= ALIVE_S:
            self._alive_s = time.monotonic()
            for host in self.plans:
                self.processes.write(host, line_of(Alive()))

    def _take(self, heard: Heard) -> None:
        host = heard.machine
        if heard.line is None:
            self._lose(host, f"{host}: its agent is gone{_quoted(heard.last_words)}")
            return
        self._heard_s[host] = time.monotonic()
        message = parse_from_agent(heard.line)
        if isinstance(message, Answer):
            self._answers[message.number] = message
        elif isinstance(message, Failed):
            self._lose(host, f"{host}: {message.error.removeprefix(f'{host}: ')}")
        elif isinstance(message, Log):
            with (self.logs / message.name).open("a", encoding="utf-8") as log:
                log.write(message.text)
        elif isinstance(message, TALLY_NEWS):
            for target in self.tallies.route(host, message):
                self.tell(target, message)
        else:
            self._told.append(Told(host, message))
            self._pass_on(host, message)

    def _lose(self, host: str, reason: str) -> None:
        self._lost.setdefault(host, reason)
        if not self._making_do:
            raise DeploymentError(reason)

    def _pass_on(self, host: str, message: FromAgent) -> None:
        """Gate news reach the other nodes at once, whoever listens for what."""
        if isinstance(message, GATE_NEWS):
            for target, news in self.hub.route(host, message):
                self.tell(target, news)

    def _check_silence(self) -> None:
        now_s = time.monotonic()
        silent = [host for host, heard_s in self._heard_s.items() if now_s - heard_s > SILENCE_S]
        if silent:
            reason = (
                f"{', '.join(silent[:5])}: nothing heard for {SILENCE_S:g} s — the node, or the way"
                " to it, is gone"
            )
            self._lost |= dict.fromkeys(silent, reason)
            raise DeploymentError(reason)


def _quoted(words: str) -> str:
    return f"; its last words:\n{words}" if words else ""
