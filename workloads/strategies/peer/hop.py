"""Hop: decentralized training that tolerates slow workers.

Models of neighbors may be old, some neighbors are not waited for, and slow workers skip steps. Q.
Luo, J. Lin, Y. Zhuo, X. Qian, "Hop: Heterogeneity-aware Decentralized Training", ASPLOS 2019;
`hop_rule.py` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import remove_key, write_value
from laggard.core.rules.graph import Graph, find_neighbors
from laggard.core.rules.hop import HopBounds, HopRule, HopStepEnd
from laggard.core.span_schema import Phase
from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.base.parameters import PeerParameters, RankProblem
from laggard.workloads.strategies.base.peer_connections import build_stamped_message
from laggard.workloads.strategies.base.peer_strategy_base import RuleDrivenPeerStrategy
from laggard.workloads.strategies.peer.message_wait import MessageWait
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


BEGUN_MESSAGE = 2
"""Kind of a message that announces a step. Version: the step that the sender has begun. Tensor: its
model, if sent.
"""


class HopParameters(PeerParameters):
    """Parameters of `hop`: `gossip` that does not wait for neighbors that are late within bounds.

    Hop: Luo et al., ASPLOS 2019.
    """

    reference: ClassVar[str] = "Hop: Luo et al., ASPLOS 2019"
    summary: ClassVar[str] = (
        "as `gossip`, but accepts neighbors' models up to `staleness` steps old and does not "
        "wait for `backups` of the neighbors; a worker that is behind skips up to `skip` steps, "
        "and no worker is more than `max_iteration_gap` steps ahead of a neighbor"
    )
    RENAMED: ClassVar[Mapping[str, str]] = {"ahead": "max_iteration_gap"}

    name: Literal["hop"]
    graph: Graph = Field(default="ring", description="graph of the neighbors")
    staleness: int = Field(
        default=4, ge=0, le=10_000, description="largest age of a neighbor's model, in steps"
    )
    backups: int = Field(
        default=0, ge=0, le=10_000, description="neighbors that a step does not wait for"
    )
    skip: int = Field(
        default=4,
        ge=0,
        le=10_000,
        description="largest number of steps that a worker that is behind skips at once",
    )
    max_iteration_gap: StepCount = Field(
        default=8, description="largest number of steps that a worker may be ahead of a neighbor"
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        chosen = self.model_fields_set
        if self.max_iteration_gap <= self.staleness:
            rule = (
                f"staleness {self.staleness} has no full effect: a worker is at most"
                f" {self.max_iteration_gap} steps ahead of a neighbor, so no model gets that old"
            )
            key = "max_iteration_gap" if "max_iteration_gap" in chosen else "staleness"
            least = self.staleness + 1
            text = f"set max_iteration_gap to {least} or more"
            raise broken_rule(rule, write_value(("max_iteration_gap",), least, text), (key,))
        if (
            self.skip
            and "skip" in chosen
            and not self.staleness
            and (not self.backups or self.max_iteration_gap == 1)
        ):
            rule = (
                "skip has no effect: with these bounds no worker is ever two steps behind all its"
                " neighbors"
            )
            text = "remove it, or raise staleness, or backups and max_iteration_gap"
            raise broken_rule(rule, remove_key(("skip",), text), ("skip",))
        if self.backups > 1 and self.graph == "ring":
            rule = "in a ring each worker has two neighbors and must wait for at least one"
            advice = write_value(("backups",), 1, "set backups to 1 or less")
            raise broken_rule(rule, advice, ("backups",))
        return self

    def create_worker(self, context: TrainingContext) -> HopStrategy:
        """Create one rank's side (see `Parameters`)."""
        return HopStrategy(self, context)

    def check_ranks(self, ranks: int) -> RankProblem | None:
        """Require that each rank waits for at least one neighbor."""
        neighbor_count = len(find_neighbors(self.graph, range(ranks), 0))
        if not self.backups or self.backups < neighbor_count:
            return None
        rule = (
            f"each of {ranks} workers has {neighbor_count} neighbors and must wait for at least"
            " one of them"
        )
        return RankProblem("backups", rule, max(neighbor_count - 1, 0))


class HopStrategy(RuleDrivenPeerStrategy):
    """Worker of `hop` and `gossip`: x_i <- (weighted mean of models) - lr * g_i(x_i before).

    The mean includes the rank's own model. Without staleness and backups it is that of the matrix
    W: x_i <- (sum over neighbors j of W_ij x_j) - lr * g_i, where W is symmetric and its rows sum
    to 1. Models are sent before the gradient is computed, so they travel in the meantime. When a
    rank is lost or joins, the graph is rebuilt from the present ranks.

    A rank that is behind all its neighbors skips steps; its gradient still counts. In
    `steps.parquet`, `staleness` is the age in steps of the oldest model in the average. After a
    skip it may be the age of the rank's own gradient.

    Args:
        bounds: graph and bounds.
        context: training context of the rank.
    """

    def __init__(self, bounds: HopBounds, context: TrainingContext) -> None:
        self._rule: HopRule[torch.Tensor] = HopRule(context.rank, context.world_size, bounds)
        super().__init__(context, self._rule)
        self._message_wait = MessageWait(self._peers, context.recorder)
        self._peers.join_handler = self
        self._skipped_steps = 0

    # The rank announces its step to its neighbors itself.
    def add_member(self, rank: int, step: int) -> None:  # noqa: ARG002
        """Add a rank to the graph (see `JoinHandler`)."""
        self._rule.add_member(rank)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Send, compute, wait within the bounds, average and update (see `AsyncStrategy`)."""
        assert step == self._rule.step
        recorder, skipped = self._context.recorder, self._skipped_steps
        self._mine = self._state.read().cpu()
        self._send_notices()
        loss = self._gradient.compute(batch, share)
        can_end, waited_for = self._message_wait.wait(self._can_end, self._on_message)
        recorder.enter(Phase.OPTIMIZER)
        staleness = 0
        if can_end:
            ending = self._rule.end()
            staleness, self._skipped_steps = ending.staleness, ending.skipped
            self._mix(ending)
        self.optimizer.step()
        self._gradient.synchronize()
        recorder.enter(Phase.OTHER)
        return StepResult(loss, staleness=staleness, skipped=skipped, waited_for=waited_for)

    def _send_notices(self) -> None:
        self._remove_lost_members()
        for notice in self._rule.build_notices():
            model = self._mine if notice.with_model else None
            self._peers.send(
                notice.rank, build_stamped_message(BEGUN_MESSAGE, self._rule.step, model)
            )

    def _on_message(self, message: Message) -> None:
        if message.tensor is None:
            self._rule.announce(message.sender, message.version)
        else:
            self._rule.receive(message.sender, message.version, message.tensor)

    def _can_end(self) -> bool:
        # Ranks that became neighbors during the wait must learn of this step, too.
        self._send_notices()
        return self._rule.can_end()

    def _remove_lost_members(self) -> None:
        for rank in (
            set(range(self._context.world_size)) - self._peers.present - {self._context.rank}
        ):
            self._rule.remove_member(rank)

    def _mix(self, ending: HopStepEnd[torch.Tensor]) -> None:
        mixed = self._mine * ending.weights[self._context.rank]
        for rank, model in sorted(ending.models.items()):
            mixed += model * ending.weights[rank]
        self._state.write_average(mixed, self._mine)
