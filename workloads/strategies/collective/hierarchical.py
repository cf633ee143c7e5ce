"""Hierarchical local SGD: frequent averages within a tier, rare averages across tiers.

It saves traffic on the slow links between tiers. T. Lin, S. U. Stich, K. K. Patel, M. Jaggi,
"Don't use large mini-batches, use local SGD", ICLR 2020, section 5 and appendix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import remove_key, write_value
from laggard.core.rules.deferral import DeferredSynchronization
from laggard.core.rules.synchronization import PeriodicSynchronization, group_ranks_by_tier
from laggard.core.span_schema import Phase
from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.base.group_connections import connect_collectives
from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.parameters import BalancedParameters, CompressibleParameters
from laggard.workloads.strategies.base.sample_weights import SampleWeights
from laggard.workloads.strategies.collective.compressed_deltas import CompressedDeltaAverage
from laggard.workloads.strategies.collective.deferral import (
    AfterBytes,
    ByteCounter,
    DeferralField,
    DeferralMeter,
    Drift,
    Measured,
    plan_deferral,
)
from laggard.workloads.tracing.step_result import StepResult

if TYPE_CHECKING:
    import torch

    from laggard.workloads.compress.codec import Codec
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class HierarchicalParameters(BalancedParameters, CompressibleParameters):
    """Parameters of `hierarchical`: local SGD on two levels (Lin et al., ICLR 2020).

    Models are averaged often within a tier and rarely across tiers.
    """

    reference: ClassVar[str] = "Lin et al., ICLR 2020"
    summary: ClassVar[str] = (
        "local SGD on two levels: averages models within a tier every `tier_steps` steps, and "
        "across tiers every `wan_steps` steps"
    )
    name: Literal["hierarchical"]
    tier_steps: StepCount = Field(
        default=1, description="steps between two averages of the models within one tier"
    )
    wan_steps: StepCount = Field(default=8, description="steps between two averages of all models")
    defer: DeferralField = Field(
        default=None,
        description=(
            "averages of all models under a stream, in place of `wan_steps`: task_ends, bytes (of"
            " samples), drift (of the tiers' models), or measured (by the time of an exchange and"
            " by what the tiers forget)"
        ),
    )

    @model_validator(mode="after")
    def _check_deferral(self) -> Self:
        if self.defer is None:
            return self
        if isinstance(self.defer, (Drift, Measured)) and self.compress is not None:
            rule = "the measurements travel with the average, and compression would change them"
            advice = remove_key(("compress",), "remove compress, or use `defer: task_ends`")
            raise broken_rule(rule, advice, ("compress",))
        return self

    @model_validator(mode="after")
    def _check_wan_steps(self) -> Self:
        if self.defer is None and self.wan_steps < self.tier_steps:
            rule = (
                f"wan_steps must be at least tier_steps ({self.tier_steps}): an average across"
                " tiers includes one within each tier"
            )
            key = "wan_steps" if "wan_steps" in self.model_fields_set else "tier_steps"
            least = self.tier_steps
            advice = write_value(("wan_steps",), least, f"write `wan_steps: {least}` or more")
            raise broken_rule(rule, advice, (key,))
        return self

    def describe(self) -> str:
        """Format name and parameters for people, without a period that does not apply."""
        text = super().describe()
        return text if self.defer is None else text.replace(f", wan_steps {self.wan_steps}", "")

    def create_worker(self, context: TrainingContext) -> Hierarchical:
        """Create one rank's side (see `Parameters`)."""
        return Hierarchical(self, context)


class Hierarchical:
    """Worker of `hierarchical`: w_k <- w_k - lr * g_k in every step, then perhaps an average.

    Every `tier_steps` steps, w_k becomes the mean of its tier; every `wan_steps` steps, or when
    `defer` says so, the mean of all ranks. For the mean of all, each tier computes its sum, the
    first ranks of the tiers add these sums, and each first rank sends the result to its tier. So
    only one rank per tier uses the links between tiers.

    Args:
        parameters: periods of both averages, and compression of the changes.
        context: training context of the rank.
    """

    def __init__(self, parameters: HierarchicalParameters, context: TrainingContext) -> None:
        import torch.distributed as dist

        from laggard.workloads.compress.codec import create_vector_codec
        from laggard.workloads.models.flat_state import FlatState

        self.model, self.optimizer = context.model, context.optimizer
        self._context = context
        self._within = PeriodicSynchronization(parameters.tier_steps)
        self._across: PeriodicSynchronization | DeferredSynchronization = PeriodicSynchronization(
            parameters.wan_steps, context.last_step
        )
        self._gradient = LocalGradient(
            context, measures_old_loss=isinstance(parameters.defer, Measured)
        )
        self._state = FlatState(context.model)
        members = group_ranks_by_tier(context.tiers)
        self._tier = next(tier for tier, ranks in enumerate(members) if context.rank in ranks)
        self._members, self._tiers = members[self._tier], len(members)
        # torch requires every rank to create every group, in the same order.
        self._tier_group = [dist.new_group(ranks) for ranks in members][self._tier]
        leaders = [ranks[0] for ranks in members]
        self._leaders = dist.new_group(leaders)
        if context.backend == "gloo":
            connect_collectives(self._members, context.rank, self._tier_group)
            if context.rank in leaders:
                connect_collectives(leaders, context.rank, self._leaders)
        codec = create_vector_codec(parameters.compress)
        # Compressed averages divide by the number of ranks, so they cannot weight by samples.
        by_samples = codec is None and parameters.balanced_batches is not None
        self._tier_weights, self._global_weights = (
            SampleWeights(by_samples=by_samples),
            SampleWeights(by_samples=by_samples),
        )
        self._deltas = None if codec is None else self._create_deltas(codec)
        self._meter: DeferralMeter | None = None
        self._bytes: ByteCounter | None = None
        self._common = self._state.read() if isinstance(parameters.defer, Drift) else None
        if parameters.defer is not None:
            self._across = plan_deferral(parameters.defer, context.task_ends, context.last_step)
            if isinstance(parameters.defer, AfterBytes):
                self._bytes = ByteCounter(parameters.defer.every_mb * 1e6, self._across)
            if isinstance(parameters.defer, (Drift, Measured)):
                self._meter = DeferralMeter(
                    parameters.defer, self._across, self._tiers, self._tier, len(self._members)
                )

    def _create_deltas(self, codec: Codec) -> _TierDeltas:
        context, count, synchronize = (
            self._context,
            self._state.parameters,
            self._gradient.synchronize,
        )
        within = CompressedDeltaAverage(
            codec, context, count, synchronize, len(self._members), self._tier_group
        )
        across = CompressedDeltaAverage(
            codec, context, count, synchronize, self._tiers, self._leaders
        )
        last_mean = self._state.read()[:count]
        return _TierDeltas(within, across, last_mean, last_mean.clone())

    @property
    def weight(self) -> float:
        """Weight of this rank's model (see `Strategy`)."""
        return self._global_weights.weight

    def next_synchronization(self, step: int) -> int:
        """Return the next step with an average of all ranks (see `Strategy`)."""
        return self._across.next(step)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Run forward pass, backward pass and update, and an average if due (see `Strategy`)."""
        begun_s = time.monotonic()
        loss = self._gradient.learn(batch, share, self._tier_weights.loss_scale(share))
        self._tier_weights.add_samples(share)
        self._global_weights.add_samples(share)
        averages_all = self._is_due(step, batch, share)
        if not averages_all and self._within.is_due(step):
            self._average_tier()
        if self._meter is not None:
            self._meter.observe(time.monotonic() - begun_s, self._gradient.old_loss)
        if averages_all:
            self._average_all(step)
        self._context.recorder.enter(Phase.OTHER)
        return StepResult(loss)

    def _is_due(self, step: int, batch: Batch, share: Share) -> bool:
        """Return whether all tiers average in a step."""
        if self._bytes is not None:
            sample_bytes = batch.inputs.element_size() * math.prod(batch.inputs.shape[1:])
            self._bytes.count(step, share.batch_size * sample_bytes)
        return self._across.is_due(step)

    def _average_tier(self) -> None:
        if self._deltas is not None:
            self._write(self._average_deltas_in_tier(self._deltas))
            return
        mine = self._tier_weights.apply_weight(self._read())
        self._sum_within(mine)
        self._write(self._tier_weights.mean(mine, len(self._members)))

    def _average_all(self, step: int) -> None:
        import torch
        import torch.distributed as dist

        if self._deltas is not None:
            self._write(self._average_deltas_of_all(self._deltas))
            return
        state, meter = self._read(), self._meter
        mine = self._global_weights.apply_weight(state)
        if meter is not None:
            meter.drift = self._measure_drift(state)
            mine = torch.cat([mine, mine.new_tensor(meter.list_numbers())])
        # Numbers of a step's collectives: first the sums of the tiers, then their broadcasts, then
        # the sum of the first ranks.
        self._sum_within(mine)
        if self._context.rank == self._members[0]:
            begun_s = time.monotonic()
            self._collective(2 * self._tiers, lambda: dist.all_reduce(mine, group=self._leaders))
            if meter is not None:
                meter.exchange_s = time.monotonic() - begun_s
        if len(self._members) > 1:
            self._collective(
                self._tiers + self._tier,
                lambda: dist.broadcast(mine, self._members[0], group=self._tier_group),
            )
        if meter is not None:
            decision = meter.plan(step, mine[-meter.size :].tolist())
            mine = mine[: -meter.size]
            if self._context.rank == 0:
                self._context.record_decision(step, decision)
        # Only called to reset the samples counted since the last average within the tier.
        self._tier_weights.mean(mine, self._context.world_size)
        mean = self._global_weights.mean(mine, self._context.world_size)
        self._common = None if self._common is None else mean
        self._write(mean)

    def _measure_drift(self, state: torch.Tensor) -> float:
        """Return the distance of the parameters from the last common ones, relative to those.

        It is 0 if nothing is decided by it.
        """
        if self._common is None:
            return 0.0
        count = self._state.parameters
        common = self._common[:count]
        return float((state[:count] - common).norm() / common.norm())

    def _average_deltas_in_tier(self, deltas: _TierDeltas) -> torch.Tensor:
        """Return the tier's last mean plus the mean change of its ranks since then."""
        import torch

        count, vector = self._state.parameters, self._read()
        # Alone in its tier, the rank's own model is the exact mean: nothing to compress.
        if len(self._members) == 1:
            deltas.tier_mean = vector[:count].clone()
            return vector
        vector[:count] -= deltas.tier_mean
        mean = deltas.within.mean(vector, self._tier)
        deltas.tier_mean += mean[:count]
        return torch.cat([deltas.tier_mean, mean[count:]])

    def _average_deltas_of_all(self, deltas: _TierDeltas) -> torch.Tensor:
        """Return the last mean of all ranks plus the mean change of the tiers since then.

        Only the first rank of each tier exchanges with the other tiers; it then broadcasts the
        encoded changes within its tier.
        """
        import torch
        import torch.distributed as dist

        from laggard.workloads.compress.codec import count_tensor_bytes

        count, vector = self._state.parameters, self._average_deltas_in_tier(deltas)
        if self._tiers == 1:
            return vector
        exchanged, buffers = deltas.across.allocate_exchange(vector)
        if self._context.rank == self._members[0]:
            vector[:count] -= deltas.global_mean
            # `across` divides by the number of tiers; this factor weights tiers by their ranks.
            vector *= self._tiers * len(self._members) / self._context.world_size
            exchanged, buffers = deltas.across.exchange(vector, 2 * self._tiers)
        if len(self._members) > 1:
            self._collective(
                self._tiers + self._tier,
                lambda: [
                    dist.broadcast(each, self._members[0], group=self._tier_group)
                    for each in (exchanged, buffers)
                    if each.numel()
                ],
                count_tensor_bytes(exchanged) + count_tensor_bytes(buffers),
            )
        mean = deltas.across.decode(exchanged, buffers)
        deltas.global_mean += mean[:count]
        deltas.tier_mean = deltas.global_mean.clone()
        return torch.cat([deltas.global_mean, mean[count:]])

    def _sum_within(self, state: torch.Tensor) -> None:
        import torch.distributed as dist

        if len(self._members) > 1:
            self._collective(self._tier, lambda: dist.all_reduce(state, group=self._tier_group))

    def _collective(
        self, number: int, do: Callable[[], object], payload_bytes: int | None = None
    ) -> None:
        size = self._state.bytes if payload_bytes is None else payload_bytes
        self._context.recorder.enter(Phase.COMM, group=number, payload_bytes=size)
        do()
        self._gradient.synchronize()

    def _read(self) -> torch.Tensor:
        state = self._state.read()
        self._gradient.synchronize()
        return state

    def _write(self, state: torch.Tensor) -> None:
        self._context.recorder.enter(Phase.OPTIMIZER)
        self._state.write(state)
        self._gradient.synchronize()


@dataclass
class _TierDeltas:
    """State of compressed averages.

    Attributes:
        within: average within the tier.
        across: average across the tiers.
        tier_mean: parameters after the tier's last average.
        global_mean: parameters after the last average of all ranks.
    """

    within: CompressedDeltaAverage
    across: CompressedDeltaAverage
    tier_mean: torch.Tensor
    global_mean: torch.Tensor
