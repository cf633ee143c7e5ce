"""Federated training in virtual time: its messages and computing are simulated, its steps real."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from laggard.core.errors import InputError
from laggard.core.rules.federated_rounds import FederatedRule
from laggard.core.rules.server_rule import Push, Reaction, ServerReply, Update
from laggard.core.run_schema import ChurnEvent, RoundResult, StopReason
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.core.simulation.strategies.server import ServerSimulation
from laggard.core.simulation.training import SimulationInput
from laggard.virtual.client_trace import ClientStep, ClientTrace
from laggard.virtual.server_model import ServerModel
from laggard.workloads.clients.round_record import write_round
from laggard.workloads.coordination.stopping import accuracy_reached
from laggard.workloads.models.one_thread import compute_on_one_thread
from laggard.workloads.output.training_end import TrainingEnd
from laggard.workloads.output.worker_output import append_line, write_whole
from laggard.workloads.serving.token_treasury import TokenTreasury
from laggard.workloads.specification.churn import Turn, absent_at_start
from laggard.workloads.specification.training import Stop
from laggard.workloads.tracing.step_result import UNKNOWN


@dataclass(frozen=True)
class Sent:
    """Model on its way to a client, or with it.

    Attributes:
        reply: answer of the rule.
        version: version of the model.
        model: its state, shape [parameters + buffers].
        at_s: time at which the server began to send it.
    """

    reply: ServerReply
    version: int
    model: torch.Tensor
    at_s: float


class FederatedSimulation(ServerSimulation):
    """Clients that the server selects in rounds.

    Args:
        sim_input: hosts, links and processor times.
        rule: rule of the server.
        model: model of the server, which also trains the clients.
        trace: trace of the clients.
        round_s: seconds that each client computes in a round, by rank.
        stop: end of the training.
        evaluate_every: samples between two evaluations.
        treasury: tokens of the clients; None without tokens.
        turns: departures and arrivals of clients, by time.
    """

    def __init__(
        self,
        sim_input: SimulationInput,
        rule: FederatedRule,
        model: ServerModel,
        trace: ClientTrace,
        round_s: tuple[float, ...],
        stop: Stop,
        evaluate_every: int,
        treasury: TokenTreasury | None = None,
        turns: Sequence[Turn] = (),
    ) -> None:
        super().__init__(sim_input, rule)
        self._federated, self.model, self._trace, self.round_s = rule, model, trace, round_s
        self._stop, self._evaluate_every, self._treasury = stop, evaluate_every, treasury
        self._output_dir = trace.output_dir
        self._sent: dict[int, Sent] = {}
        self._open: dict[int, ClientStep] = {}
        self._accuracies: list[float] = []
        self._samples, self._clock = 0, UNKNOWN
        self._stopped_by: StopReason | None = None
        self._carried: Counter[tuple[str, str]] = Counter()
        self._turns, self._absent = turns, absent_at_start(turns)
        self._left_s: dict[int, float] = {}
        self._joined_s: dict[int, float] = {}
        self.churn: list[ChurnEvent] = []

    def train(self) -> None:
        """Train to the end, and write what a training writes.

        Raises:
            InputError: no client can take part, or no answer could be used for ten rounds.
        """
        write_whole(self._output_dir.zero, json.dumps({"zero_ns": 0}).encode())
        if self._stop.time_s is not None:
            self.loop.schedule(self._stop.time_s, self._end_by_time)
        for turn in self._turns:
            self.loop.schedule(turn.at_s, partial(self._take_turn, turn))
        with compute_on_one_thread():
            self.simulate()
        if self._stopped_by is None:
            raise InputError(
                f"federated: after {self._clock + 1} rounds, no client can take part in another"
                " one; clients without samples and those that failed often are not selected — give"
                " clients samples with `births`, or take fewer rounds"
            )
        if self._clock == UNKNOWN:
            raise InputError(
                f"federated: no round ended within the {self._stop.time_s:g} s of stop.time — give"
                " more time, or let fewer clients make a round"
            )
        for rank, done in self._open.items():
            if done.handled_s:
                ended_s = self._left_s.get(rank, self.loop.now_s)
                self._trace.finish_step(done, ended_s, ended_s)
        self._trace.close()
        self._write_end()

    def begin(self, rank: int) -> None:
        """Let a client join that is there; the last one that does begins the first round."""
        is_absent = self.sim_input.hosts[rank] in self._absent
        rule = self._rule
        self.answer(rule.remove_member(rank) if is_absent else rule.add_member(rank))
        self.serve_queued()

    def _take_turn(self, turn: Turn) -> None:
        """Let the clients of a host leave or join."""
        for rank, host in enumerate(self.sim_input.hosts):
            if host == turn.host:
                (self.join if turn.joins else self.leave)(rank)
                self.churn.append(
                    ChurnEvent(
                        rank=rank,
                        host=host,
                        kind="joined" if turn.joins else "left",
                        requested_s=turn.at_s,
                        effective_s=self.loop.now_s,
                    )
                )

    def leave(self, rank: int) -> None:
        """Let a client leave, whose step is lost unless the server has handled its answer."""
        self._sent.pop(rank, None)
        if rank in self._open:
            if self._open[rank].handled_s:
                self._left_s[rank] = self.loop.now_s
            else:
                del self._open[rank]
        super().leave(rank)

    def join(self, rank: int) -> None:
        """Let a client join, which waits until a round selects it."""
        self._joined_s[rank] = self.loop.now_s
        super().join(rank)

    def compute_s(self, rank: int, step: int) -> float:
        """Return the seconds of a client's round, which begins now, outside slow periods."""
        sent, now_s = self._sent[rank], self.loop.now_s
        before, left_s = self._open.pop(rank, None), self._left_s.pop(rank, None)
        begun_s = self._joined_s.pop(rank, 0.0)
        if before is not None and left_s is not None:
            self._trace.finish_step(before, left_s, left_s)
        elif before is not None:
            begun_s = now_s
            self._trace.finish_step(before, sent.at_s, now_s, sent.reply.waited_for)
        samples = self._federated.samples[rank]
        self._open[rank] = ClientStep(rank, step, samples, begun_s, now_s, sent.version)
        return self.round_s[rank]

    def on_computed(self, rank: int) -> None:
        """Record the end of a client's computing."""
        packing_s = self.sim_input.packing_s(rank)
        self._open[rank].computed_s = self.loop.now_s - packing_s
        self._carry(self.sim_input.hosts[rank], self.sim_input.server)

    def create_push(self, rank: int, step: int) -> Push:
        """Train a client for real, when its answer is handled."""
        sent, now_s, opened = self._sent.pop(rank), self.loop.now_s, self._open[rank]
        answer = self.model.train(rank, step, sent.model)
        opened.handled_s, opened.loss = now_s, answer.loss
        push = replace(answer.push, took_s=now_s - sent.at_s)
        self.model.keeper.hold(push, answer.vector)
        return push

    def take_updates(self, reaction: Reaction, cause: Push) -> bool:
        """Update the model, evaluate it if that is due, and return whether training is over."""
        if reaction.ended is not None:
            self._end_round(reaction.ended, reaction.updates)
        for update in reaction.updates:
            self._apply_update(update, cause)
        for dropped in reaction.dropped:
            self.model.keeper.forget(dropped)
        self.loop.is_stopped = self._stopped_by is not None
        return self.loop.is_stopped

    def answer(self, reaction: Reaction) -> None:
        """Ask the clients of a round that begins, and end it at its deadline."""
        super().answer(reaction)
        deadline_s = self._federated.deadline_s
        if reaction.replies and deadline_s is not None:
            expire = partial(self._expire, self._federated.turn)
            self.loop.schedule(self.loop.now_s + deadline_s, expire)

    def _expire(self, turn: int) -> None:
        self.handle(self._federated.expire(turn))

    def send_model(self, reply: ServerReply) -> None:
        """Send the model to a client that a round selects."""
        keeper = self.model.keeper
        at_s = self.loop.now_s - self.sim_input.server_packing_s
        self._sent[reply.rank] = Sent(reply, keeper.version, keeper.read(), at_s)
        self._carry(self.sim_input.server, self.sim_input.hosts[reply.rank])
        super().send_model(reply)

    @property
    def carried_bytes(self) -> Mapping[tuple[str, str], int]:
        """Bytes that each link has carried, or was to carry when the training ended."""
        return self._carried

    def _carry(self, src: str, dst: str) -> None:
        if src != dst:
            self._carried[src, dst] += round(self.sim_input.message_bytes * FRAMING_OVERHEAD)

    def _end_round(self, ended: RoundResult, updates: tuple[Update, ...]) -> None:
        """Record a round, and pay its clients before its update changes the model."""
        write_round(self._output_dir, ended, round(self.loop.now_s * 1e9))
        if self._treasury is not None:
            update = updates[0] if updates else None
            self._treasury.pay_round(ended, update, self.model.compute_loss)

    def _apply_update(self, update: Update, cause: Push) -> None:
        before, keeper = self._samples, self.model.keeper
        keeper.apply(update)
        for push in update.pushes:
            self._open[push.rank].applied_version = keeper.version
        self._samples += update.new_samples
        self._clock = update.clock
        every = self._evaluate_every
        if self._stop.steps is not None and self._clock >= self._stop.steps - 1:
            self._stopped_by = "steps"
        elif self._samples // every > before // every:
            self._evaluate(cause.rank, cause.clock)
            if accuracy_reached(self._accuracies, self._stop):
                self._stopped_by = "accuracy"

    def _end_by_time(self) -> None:
        self._stopped_by, self.loop.is_stopped = "time", True

    def _evaluate(self, rank: int, step: int) -> None:
        self._accuracies.append(self.model.evaluate())
        append_line(
            self._output_dir.evaluations,
            {"step": step, "rank": rank, "accuracy": self._accuracies[-1]},
        )

    def _write_end(self) -> None:
        """Write `done.json`, after the last evaluation."""
        if self._stopped_by != "accuracy":
            with compute_on_one_thread():
                self._evaluate(UNKNOWN, UNKNOWN)
        assert self._stopped_by is not None
        done = TrainingEnd(
            stopped_by=self._stopped_by,
            steps=self._clock + 1,
            samples=self._samples,
            accuracy=self._accuracies[-1],
            evaluations=len(self._accuracies),
            zero_ns=0,
            end_ns=round(self.loop.now_s * 1e9),
            paused_ns=0,
            makespan_s=self.loop.now_s,
            versions=self.model.keeper.version,
        )
        write_whole(self._output_dir.done, done.model_dump_json().encode())
