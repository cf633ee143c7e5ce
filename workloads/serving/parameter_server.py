"""Process of the parameter server: keeps the model by the strategy's rule and ends training."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from laggard.core.errors import TransportError
from laggard.core.process.inherited_state import reset_inherited_state
from laggard.core.rules.federated_rounds import FederatedRule
from laggard.core.rules.server_rule import (
    Push,
    Reaction,
    ServerReply,
    ServerUpdateRule,
    Update,
)
from laggard.workloads.balancing.cost_monitor import CostReport
from laggard.workloads.balancing.server_balancer import ServerBalancer
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.clients.round_record import write_round
from laggard.workloads.coordination.start_barrier import START_BARRIER, Reason, StartBarrier
from laggard.workloads.datasets import open_data
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.models.model_state import save_state
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.output.decisions import note_decision
from laggard.workloads.output.worker_output import (
    WorkerOutputDir,
    append_line,
    read_lines,
    write_whole,
)
from laggard.workloads.plan import ServerPlan
from laggard.workloads.serving.model_keeper import ModelKeeper
from laggard.workloads.serving.update_record import record_update, write_update
from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.federated.message_utility import from_message_utility
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.strategies.server.push_pull import ServerMessageKind
from laggard.workloads.strategies.server.server_parameters import ServerParameters
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.tracing.batch_loader import fewest_samples
from laggard.workloads.tracing.step_result import UNKNOWN
from laggard.workloads.tracing.traffic import write_traffic
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.frames import Message
from laggard.workloads.workload_model import build_workload_model

LOGGER = logging.getLogger(__name__)
POLL_S = 0.05
PROGRESS_NS = 100_000_000
DRAIN_S = 1.0
_NEVER_NS = 1 << 62
STAY_S = 5.0
"""Real seconds that the server waits, after the stop message, until the workers have recorded
their traffic and closed their connections."""


def main(argument: str) -> None:
    """Serve a training to its end.

    Args:
        argument: `ServerPlan` as JSON.

    Raises:
        InputError: the model or the dataset is invalid.
        TransportError: no worker is left, and none will join.
    """
    plan = ServerPlan.model_validate_json(argument)
    reset_inherited_state()
    torch.set_num_threads(1)
    output_dir = WorkerOutputDir(plan.output_path)
    data = open_data(plan.workload, plan.output_path)
    workload = plan.workload
    model = build_workload_model(workload, data)
    partition = plan_partition(workload, data, plan.world_size, plan.tiers)
    strategy = workload.strategy
    assert isinstance(strategy, ServerParameters)
    optimizer = build_optimizer(strategy.server_optimizer or workload.optimizer, model)
    keeper = ModelKeeper(model, optimizer, plan.world_size, strategy.compress)
    with Endpoint(plan.endpoint, listens=True) as endpoint:
        rule = strategy.create_update_rule(partition, workload.seed)
        if isinstance(rule, FederatedRule) and isinstance(strategy, FederatedParameters):
            size = keeper.read().nbytes
            rule.forecast = strategy.forecast_rounds(plan.profiles, rule.samples, size)
        server = Server(
            plan,
            rule,
            keeper,
            partition,
            endpoint,
            _create_balancer(plan, Shares(partition, fewest_samples(model))),
        )
        write_whole(output_dir.ready(plan.world_size), b"")
        server.run()


def _create_balancer(plan: ServerPlan, shares: Shares) -> ServerBalancer | None:
    """Create the balancer, if the strategy balances batches."""
    strategy = plan.workload.strategy
    if not isinstance(strategy, BalancedParameters) or strategy.balanced_batches is None:
        return None
    return ServerBalancer(
        strategy.balanced_batches, shares, partial(note_decision, WorkerOutputDir(plan.output_path))
    )


@dataclass
class Server:
    """Parameter server of one training.

    Attributes:
        plan: plan of the server.
        rule: rule that decides when gradients are applied and workers answered.
        keeper: model and optimizer.
        partition: number of samples of each step.
        endpoint: connections to the workers.
        balancer: balancer of the workers' shares by speed; None for even shares.
        samples: number of samples that the model was trained on so far, without rehearsed ones.
    """

    plan: ServerPlan
    rule: ServerUpdateRule
    keeper: ModelKeeper
    partition: Partition
    endpoint: Endpoint
    balancer: ServerBalancer | None = None
    samples: int = 0
    _reads: dict[int, int] = field(default_factory=dict)
    _push_outcomes: dict[int, tuple[int, int]] = field(default_factory=dict)
    _arrival_ns: dict[int, int] = field(default_factory=dict)
    _sent_ns: dict[int, int] = field(default_factory=dict)
    _evaluations: int = 0
    _progress_ns: int = 0
    _zero_ns: int = 0
    _clock: int = UNKNOWN
    _turn: int = 0
    _deadline_ns: int = _NEVER_NS

    def __post_init__(self) -> None:
        self._output_dir = WorkerOutputDir(self.plan.output_path)
        self._start_barrier = StartBarrier(self._output_dir.start_barrier, self.plan.world_size)
        self._present_ranks = set(range(self.plan.world_size)) - set(self.plan.absent)
        # These join once because they begin, not because they come back.
        begins = self.plan.workload.strategy.begins_with_server
        self._not_begun = set(self._present_ranks) if begins else set[int]()
        self._blocked: set[int] = set()
        strategy = self.plan.workload.strategy
        self._clip = strategy.clip if isinstance(strategy, FederatedParameters) else None
        for rank in self.plan.absent:
            self.rule.remove_member(rank)

    def run(self) -> None:
        """Serve until the stopping rule, stop all workers and write `done.json`.

        The last snapshot is evaluated before `done.json` is written.
        """
        reason = Reason.NONE
        while not reason:
            reason = self._handle_next_message()
        end_ns = time.monotonic_ns()
        LOGGER.info(
            "training stopped by %s at version %d", reason.name.lower(), self.keeper.version
        )
        # The tasks of a stream end with certain steps, so the last evaluation names its own.
        step = UNKNOWN if self.partition.last_step is None else self._clock
        self._snapshot(UNKNOWN, step, end_ns, final=True)
        self.endpoint.drain(DRAIN_S)
        # The traffic must be read before workers leave: the kernel forgets closed connections.
        write_traffic(self._output_dir, self.plan.world_size, self.endpoint)
        stopped_ranks = self._stop_all_workers()
        self._write_done(reason, end_ns)
        stay_for(self.endpoint, stopped_ranks, STAY_S)

    def _handle_next_message(self) -> Reason:
        """Handle one message, or lost workers, and return the reason to end training, if any."""
        message = self.endpoint.take(POLL_S)
        if (
            message is not None
            and message.kind == ServerMessageKind.PUSH
            and message.sender in self._present_ranks
        ):
            return self._handle_push(message)
        if message is not None and message.kind in (ServerMessageKind.JOIN, ServerMessageKind.PUSH):
            return self._add_joining_worker(message.sender)
        for rank in sorted(self.endpoint.departed & self._present_ranks):
            reason = self._remove_lost_worker(rank)
            if reason:
                return reason
        if time.monotonic_ns() >= self._deadline_ns and (reason := self._expire_round()):
            return reason
        # A requested stop waits for the first samples: a training without any has no result.
        if self._start_barrier.is_stop_requested and self.samples:
            return self._start_barrier.is_stop_requested
        return Reason.TIME if self._time_is_up() else Reason.NONE

    def _handle_push(self, message: Message) -> Reason:
        clock, samples, batch_size, rehearsed, *more = message.values
        assert message.tensor is not None
        push = Push(message.sender, clock, samples, batch_size, rehearsed)
        if self.balancer is not None:
            self.balancer.record_cost(message.sender, clock, CostReport.from_integers(more))
        elif more:
            push = self._measure_client(push, from_message_utility(more[0]), message.tensor)
        self.keeper.hold(push, message.tensor)
        self._reads[push.rank] = message.version
        self._wait_for_answer(push.rank)
        return self._apply_reaction(self.rule.push(push), push)

    def _measure_client(self, push: Push, utility: float, answer: torch.Tensor) -> Push:
        """Return the answer of a client with its time and its utility; NaN if it is not finite."""
        took_s = (time.monotonic_ns() - self._sent_ns[push.rank]) / 1e9 / self.plan.dilation
        if not bool(torch.isfinite(answer).all()):
            LOGGER.warning("rank %d answered with numbers that are not finite", push.rank)
            utility = math.nan
        clipped = self._clip is not None and self.keeper.clip(push, answer, self._clip)
        return replace(push, took_s=took_s, utility=utility, clipped=clipped)

    def _remove_lost_worker(self, rank: int) -> Reason:
        """Continue without a worker that was lost."""
        LOGGER.warning("lost the connection to rank %d; the other ranks continue", rank)
        self._present_ranks.discard(rank)
        self._blocked.discard(rank)
        if self.balancer is not None:
            self.balancer.remove_member(rank)
        if not self._present_ranks and not self.plan.workload.churn_entries:
            raise TransportError("no worker is left: all connections were reset by peers")
        return self._apply_reaction(self.rule.remove_member(rank), Push(rank, UNKNOWN, 0, 0))

    def _add_joining_worker(self, rank: int) -> Reason:
        """Add a worker that joins.

        A worker that pushes after it was counted as lost is handled in the same way.
        """
        # The worker may have come back before the server noticed its loss.
        is_known = rank in self._present_ranks and rank not in self._not_begun
        self._not_begun.discard(rank)
        if is_known and (reason := self._remove_lost_worker(rank)):
            return reason
        LOGGER.info("rank %d joins at version %d", rank, self.keeper.version)
        self._present_ranks.add(rank)
        self._wait_for_answer(rank)
        return self._apply_reaction(self.rule.add_member(rank), Push(rank, UNKNOWN, 0, 0))

    def _wait_for_answer(self, rank: int) -> None:
        """Note that a worker waits for an answer, and since when."""
        self._push_outcomes[rank] = (UNKNOWN, 0)
        self._blocked.add(rank)
        self._arrival_ns[rank] = time.monotonic_ns()

    def _apply_reaction(self, reaction: Reaction, cause: Push) -> Reason:
        """Apply the rule's updates and send its replies; return the reason to end, if any."""
        self._record_deadline()
        if reaction.ended is not None:
            write_round(self._output_dir, reaction.ended, time.monotonic_ns())
        for update in reaction.updates:
            before = self.samples
            for push in update.pushes:
                self._push_outcomes[push.rank] = (
                    self.keeper.version + 1,
                    self.keeper.version - self._reads[push.rank],
                )
            self._record_update(update)
            self.keeper.apply(update)
            self.samples += update.new_samples
            self._clock = max(self._clock, update.clock)
            self._report_progress()
            reason = self._over()
            if reason:
                return reason
            if self._is_evaluation_due(update, before):
                self._snapshot(cause.rank, cause.clock, time.monotonic_ns(), final=False)
        for dropped in reaction.dropped:
            self.keeper.forget(dropped)
        for answer in reaction.replies:
            self._answer(answer, cause)
        return Reason.NONE

    def _record_update(self, update: Update) -> None:
        """Record an update whose clients will be paid."""
        strategy, world_size = self.plan.workload.strategy, self.plan.world_size
        if isinstance(strategy, FederatedParameters) and strategy.tokens is not None:
            recorded = record_update(self.keeper, update, world_size)
            write_update(self._output_dir, recorded)

    def _expire_round(self) -> Reason:
        """End a round whose deadline has come; return the reason to end training, if any."""
        assert isinstance(self.rule, FederatedRule)
        self._deadline_ns = _NEVER_NS
        return self._apply_reaction(self.rule.expire(self._turn), Push(UNKNOWN, UNKNOWN, 0, 0))

    def _record_deadline(self) -> None:
        """Record when the round that has begun must end, if one has begun."""
        rule = self.rule
        if isinstance(rule, FederatedRule) and rule.turn != self._turn:
            self._turn = rule.turn
            if rule.deadline_s is not None:
                duration_ns = round(rule.deadline_s * self.plan.dilation * 1e9)
                self._deadline_ns = time.monotonic_ns() + duration_ns

    def _is_evaluation_due(self, update: Update, before: int) -> bool:
        """Return whether an update, before which there were so many samples, is evaluated."""
        if self.partition.last_step is not None:
            return self.partition.evaluates_after(update.clock, self._evaluate_every)
        return self.samples // self._evaluate_every > before // self._evaluate_every

    def _answer(self, answer: ServerReply, cause: Push) -> None:
        if self._push_outcomes[answer.rank][0] == UNKNOWN and answer.rank == cause.rank:
            self.keeper.forget(cause)
        outcome = self._push_outcomes[answer.rank]
        values: tuple[int, ...] = (
            answer.clock,
            answer.waited_for,
            answer.skipped,
            *outcome,
            self._held_ns(answer.rank),
        )
        if self.balancer is not None:
            part = self.balancer.assign_range(answer.rank, answer.clock)
            values = (*values, part.start, len(part))
        self._blocked.discard(answer.rank)
        self._sent_ns[answer.rank] = time.monotonic_ns()
        self._send(
            answer.rank,
            Message(ServerMessageKind.MODEL, self.keeper.version, values, self.keeper.read()),
        )

    def _send(self, rank: int, message: Message) -> None:
        with suppress(TransportError):  # the loss of the worker is handled with the next message
            self.endpoint.send(rank, message)

    def _held_ns(self, rank: int) -> int:
        """Return the time since the rank's last message arrived, in ns."""
        return time.monotonic_ns() - self._arrival_ns[rank]

    def _over(self) -> Reason:
        """Return the reason to end training after an update; NONE if there is none."""
        if self._start_barrier.is_stop_requested:
            return self._start_barrier.is_stop_requested
        steps, end = self.plan.workload.stop.steps, self.partition.last_step
        if self.partition.ends_with_step:
            # However many samples a lost worker has left untrained.
            lasts = ([] if end is None else [end]) + ([] if steps is None else [steps - 1])
            if lasts and self._clock >= min(lasts):
                return Reason.STEPS
        elif steps is not None and self.samples >= self.partition.samples_through(steps - 1):
            return Reason.STEPS
        return Reason.TIME if self._time_is_up() else Reason.NONE

    def _time_is_up(self) -> bool:
        if not self._zero_ns and self._start_barrier.announced[0] >= START_BARRIER:
            self._zero_ns = self._start_barrier.announced[1].open_ns
        limit_s = self.plan.workload.stop.time_s
        elapsed_s = (time.monotonic_ns() - self._zero_ns) / 1e9 / self.plan.dilation
        return self._zero_ns > 0 and limit_s is not None and elapsed_s >= limit_s

    @property
    def _evaluate_every(self) -> int:
        return self.plan.workload.evaluate_every or self.partition.samples

    def _snapshot(self, rank: int, step: int, time_ns: int, *, final: bool) -> None:
        """Write the current model and request its evaluation by the evaluator.

        `rank` and `step` are those of the last push.
        """
        save_state(self.keeper.model.state_dict(), self._output_dir.snapshot(self._evaluations))
        request = {
            "time_ns": time_ns,
            "rank": rank,
            "step": step,
            "samples": self.samples,
            "final": int(final),
        }
        append_line(self._output_dir.evaluation_requests, request)
        self._evaluations += 1

    def _report_progress(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._progress_ns >= PROGRESS_NS:
            self._progress_ns = now_ns
            step = self._clock
            if not self.partition.ends_with_step:
                step = self.samples // self.partition.batch_size - 1
            append_line(
                self._output_dir.progress,
                {"time_ns": now_ns, "step": step, "samples": self.samples},
            )

    def _stop_all_workers(self) -> set[int]:
        """Send the stop message to all workers and return the notified ranks.

        Workers that wait get it at once. The others get it as the answer to their next push, whose
        gradient is not used any more.
        """
        notified: set[int] = set()
        deadline_s = time.monotonic() + self.endpoint.plan.timeout_s
        while self._present_ranks and time.monotonic() < deadline_s:
            for rank in self._blocked & self._present_ranks:
                values = (UNKNOWN, UNKNOWN, 0, *self._push_outcomes[rank], self._held_ns(rank))
                self._send(rank, Message(ServerMessageKind.STOP, self.keeper.version, values))
                notified.add(rank)
            self._present_ranks -= self._blocked | self.endpoint.departed
            message = self.endpoint.take(POLL_S) if self._present_ranks else None
            if message is not None and message.kind in (
                ServerMessageKind.PUSH,
                ServerMessageKind.JOIN,
            ):
                self._present_ranks.add(message.sender)
                self._wait_for_answer(message.sender)
        return notified

    def _write_done(self, reason: Reason, end_ns: int) -> None:
        """Write `done.json` when all evaluations have arrived."""
        while len(read_lines(self._output_dir.evaluations)) < self._evaluations:
            time.sleep(POLL_S)
        requests, evaluations = (
            read_lines(self._output_dir.evaluation_requests),
            read_lines(self._output_dir.evaluations),
        )
        last, samples, clock = evaluations[-1], self.samples, self._clock
        if reason is Reason.ACCURACY:
            last = next(line for line in evaluations if line["reached"])
            request = requests[int(last["evaluation"] or 0)]
            # Training ended with the first snapshot that reached the accuracy, not after its
            # evaluation.
            end_ns, samples = int(request["time_ns"] or 0), int(request["samples"] or 0)
            clock = int(request["step"] or 0)
        counts_steps = self.partition.ends_with_step
        done = {
            "stopped_by": reason.name.lower(),
            "steps": clock + 1 if counts_steps else -(-samples // self.partition.batch_size),
            "samples": samples,
            "accuracy": last["accuracy"],
            "evaluations": len(evaluations),
            "zero_ns": self._zero_ns,
            "end_ns": end_ns,
            "paused_ns": 0,
            "makespan_s": (end_ns - self._zero_ns) / 1e9 / self.plan.dilation,
            "versions": self.keeper.version,
        }
        write_whole(self._output_dir.done, json.dumps(done).encode())


def stay_for(endpoint: Endpoint, nodes: Collection[int], seconds: float) -> None:
    """Keep connections open until these nodes have closed theirs, or for `seconds` real seconds.

    A kernel forgets the count of acknowledged bytes with a connection, whichever end closes it.
    """
    deadline_s = time.monotonic() + seconds
    while not endpoint.departed.issuperset(nodes) and time.monotonic() < deadline_s:
        endpoint.take(POLL_S)
