"""Strategies with a server, simulated message by message.

Workers push gradients. A rule decides when gradients count and which workers get the model. The
server handles one request at a time; together with a worker on its host it has one share of a
core.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from laggard.core.rules.server_rule import Push, Reaction, ServerReply, ServerUpdateRule
from laggard.core.simulation.event_loop import Action
from laggard.core.simulation.event_training import EventTraining
from laggard.core.simulation.message_flows import MessageFlows
from laggard.core.simulation.processor import Processor
from laggard.core.simulation.recorded_durations import create_constant_duration
from laggard.core.simulation.training import SimulationInput
from laggard.core.span_schema import NOBODY


class ServerSimulation(EventTraining):
    """Ranks that push gradients to a server and wait for its answers.

    Args:
        sim_input: training to simulate.
        rule: rule of the server.
    """

    def __init__(self, sim_input: SimulationInput, rule: ServerUpdateRule) -> None:
        super().__init__(sim_input)
        self._rule = rule
        self._flows = MessageFlows(self.loop, sim_input.network)
        self._processors = [Processor(self.loop, rank) for rank in sim_input.work.ranks]
        host_index = (
            sim_input.hosts.index(sim_input.server) if sim_input.server in sim_input.hosts else None
        )
        # A server on a host of its own has constant speed: the run has no record of that host.
        self._server = (
            Processor(self.loop, create_constant_duration(0.0))
            if host_index is None
            else self._processors[host_index]
        )
        self._to_serve: deque[tuple[float, Action]] = deque()
        self._is_serving = False
        self._lives = [0] * sim_input.world

    def begin(self, rank: int) -> None:
        """Begin the first step of a rank."""
        self._begin(rank, 0)

    def leave(self, rank: int) -> None:
        """Let a rank leave; what it computes, sends or is sent is lost."""
        self._lives[rank] += 1
        if self._processors[rank] is not self._server:
            self._processors[rank] = Processor(self.loop, self.sim_input.work.ranks[rank])
        self.handle(self._rule.remove_member(rank))

    def join(self, rank: int) -> None:
        """Let a rank that is absent join; the rule says when it gets the model."""
        self.handle(self._rule.add_member(rank))

    def handle(self, reaction: Reaction) -> None:
        """Handle a reaction that no push has caused."""
        if not self.take_updates(reaction, Push(NOBODY, NOBODY, 0, 0)):
            self.answer(reaction)
            self.serve_queued()

    def compute_s(self, rank: int, step: int) -> float:
        """Return the seconds of a rank's step that begins now, outside slow periods."""
        work = self.sim_input.work
        return work.ranks[rank].seconds(self.steps[rank], work.rank_samples(step))

    def create_push(self, rank: int, step: int) -> Push:
        """Return what a rank pushes after a step.

        The samples that it carries do not matter here: all ranks have equal shares.
        """
        return Push(rank, step, samples=1, batch_size=self.sim_input.world)

    def take_updates(self, reaction: Reaction, _cause: Push) -> bool:
        """Count the samples of a reaction's updates, and return whether the training is over."""
        clocks = [push.clock for update in reaction.updates for push in update.pushes]
        return self.learn(sum(self.sim_input.work.rank_samples(clock) for clock in clocks))

    def _begin(self, rank: int, step: int) -> None:
        seconds = self.compute_s(rank, step) + self.sim_input.packing_s(rank)
        self.steps[rank] += 1
        self._processors[rank].submit(
            seconds, self._while_here(rank, partial(self._push, rank, step))
        )

    def on_computed(self, rank: int) -> None:
        """Handle that a rank has computed its step and begins to send; nothing to do here."""

    def serve_queued(self) -> None:
        """Let the server handle what is queued, if it does nothing now."""
        if not self._is_serving:
            self._serve_next()

    def _push(self, rank: int, step: int) -> None:
        self.on_computed(rank)
        sim_input = self.sim_input
        apply = self._while_here(rank, partial(self._apply, rank, step))
        come = self._while_here(rank, partial(self._serve, sim_input.server_packing_s, apply))
        self._flows.send(sim_input.hosts[rank], sim_input.server, sim_input.message_bytes, come)

    def _while_here(self, rank: int, action: Action) -> Action:
        """Return an action that does nothing once a rank has left, even if it has joined again."""
        life = self._lives[rank]

        def act() -> None:
            if self._lives[rank] == life:
                action()

        return act

    def _serve(self, seconds: float, on_done: Action) -> None:
        """Queue a request, since the server handles one at a time."""
        self._to_serve.append((seconds, on_done))
        self.serve_queued()

    def _serve_next(self) -> None:
        self._is_serving = bool(self._to_serve)
        if self._is_serving:
            seconds, on_done = self._to_serve.popleft()
            self._server.submit(seconds, partial(self._finish_service, on_done))

    def _finish_service(self, on_done: Action) -> None:
        on_done()
        if not self.loop.is_stopped:
            self._serve_next()

    def _apply(self, rank: int, step: int) -> None:
        push = self.create_push(rank, step)
        reaction = self._rule.push(push)
        if not self.take_updates(reaction, push):
            self.answer(reaction)

    def answer(self, reaction: Reaction) -> None:
        """Send the answers of a reaction, after the time that its updates take."""
        applying_s = self.sim_input.applying_s * len(reaction.updates)
        answers = [
            (
                self.sim_input.server_packing_s,
                self._while_here(reply.rank, partial(self.send_model, reply)),
            )
            for reply in reaction.replies
        ]
        # The update and the answers go before the requests that already wait. `extendleft`
        # reverses its argument.
        self._to_serve.extendleft(reversed([(applying_s, _do_nothing), *answers]))

    def send_model(self, reply: ServerReply) -> None:
        """Send the model to a rank, which then begins its next step."""
        sim_input = self.sim_input
        self._flows.send(
            sim_input.server,
            sim_input.hosts[reply.rank],
            sim_input.message_bytes,
            self._while_here(reply.rank, partial(self._on_model, reply.rank, reply.clock)),
        )

    def _on_model(self, rank: int, step: int) -> None:
        begin = self._while_here(rank, partial(self._begin, rank, step))
        self._processors[rank].submit(self.sim_input.packing_s(rank), begin)


def _do_nothing() -> None:
    """Do nothing: no request waits for the end of an update."""
