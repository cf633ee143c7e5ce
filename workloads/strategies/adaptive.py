"""Measures the continuum while it trains, and takes up the scheme that suits it and the objective best.

Ours. What is measured and decided is in `workloads/adaptive/`, pure; this does it. Every rank decides by itself from what all have told each other, which
is the same on all, so that nobody has to be asked. It reads nothing but its own clocks: neither the scenario nor the analysis.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.adaptive.choice import Rules, choose, worth_trying
from laggard.workloads.adaptive.measured import FLAT, KEPT, KINDS, TIER, WIDE, Diary, costs_of
from laggard.workloads.adaptive.scheme import EVERY_STEP, Scheme
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.allreduce import AllReduce
from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.hierarchical import Hierarchical
from laggard.workloads.strategies.local_sgd import LocalSGD
from laggard.workloads.strategies.parameters import (
    AdaptiveParameters,
    AllReduceParameters,
    HierarchicalParameters,
    LocalSGDParameters,
)
from laggard.workloads.strategies.strategy import Seat, Strategy

FIRST_STEPS = 2
"""Steps with an all-reduce before anything else is tried; the first of them is odd, since connections are new."""

PROBED_PERIOD = 2
PROBE_SHARE = 0.05
"""Averages by tiers are tried, once, when that is expected to cost no more than this part of the training so far."""

EXCHANGE_GROUP = 1 << 14
"""Number of the collective that exchanges what was measured; beyond those of the schemes."""

HOUR_S = 3600.0


class Adaptive:
    """All-reduce first, then whatever is best, looked at again now and then; averages by tiers are tried once the training has been long enough for that.

    Args:
        parameters: how often to look, and what an average left out costs.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: AdaptiveParameters, seat: Seat) -> None:
        self.model, self.optimizer = seat.model, seat.optimizer
        self._parameters, self._seat, self._recorder = parameters, seat, seat.recorder
        self._every_step = AllReduce(AllReduceParameters(), seat)
        has_tiers = 1 < len(set(seat.tiers)) < seat.world_size
        self._by_tiers = Hierarchical(self._tiered(PROBED_PERIOD), seat) if has_tiers else None
        self._model_bytes = FlatState(seat.model).bytes
        self._scheme, self._doing, self._diary = EVERY_STEP, self._take_up(EVERY_STEP), Diary()
        self._until_probed: Scheme | None = None
        self._tiers_tried = self._by_tiers is None
        self._expected_s, self._looked_at = 0.0, -1
        self._own_ns = self._batch_size = 0

    @property
    def weight(self) -> float:
        """As the present scheme says (see `Strategy`)."""
        return self._doing.weight

    def meets(self, step: int) -> int:
        """As the present scheme says (see `Strategy`); it changes only in such a step."""
        return self._doing.meets(step)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """A step of the present scheme; then perhaps take up another (see `Strategy`)."""
        before_ns = self._recorder.spent_ns[Phase.COMM.code]
        learnt = self._doing.step(step, batch, share)
        met = self._doing.meets(step) == step
        self._recorder.enter(Phase.OTHER)
        self._note(step, share, (self._recorder.spent_ns[Phase.COMM.code] - before_ns) * 1e-9, met=met)
        if met and (self._until_probed or step - self._looked_at >= self._patience):
            self._look(step)
        return learnt

    @property
    def _patience(self) -> int:
        """Steps between two looks."""
        return self._parameters.every if self._looked_at >= 0 else FIRST_STEPS

    def _look(self, step: int) -> None:
        """Tell and hear what was measured, and decide; all that is decided by is the same on all ranks."""
        costs = costs_of(self._exchange(), self._seat.tiers, self._model_bytes)
        if self._until_probed is not None and costs.tier_s is None:
            return  # the first step of the trial was one of all ranks: the next is not
        self._expected_s += (step - self._looked_at) * costs.step_s(self._scheme)
        before, self._until_probed, self._looked_at = self._until_probed or self._scheme, None, step
        choice = choose(costs, self._rules(), before)
        if choice.scheme != before:
            self._seat.note(step, choice.reason)
        if self._scheme != choice.scheme:
            self._follow(choice.scheme)
        if not self._tiers_tried and worth_trying(costs, choice.scheme, self._expected_s * PROBE_SHARE):
            self._tiers_tried, self._until_probed = True, choice.scheme
            self._follow(Scheme("hierarchical", PROBED_PERIOD))

    def _exchange(self) -> np.ndarray:
        """All ranks' diaries, shape [ranks, KINDS, KEPT]."""
        mine = torch.from_numpy(self._diary.table().reshape(1, -1))
        sent = mine.repeat(self._seat.world_size, 1).to(self._seat.device)
        everybodys = torch.empty_like(sent)
        self._recorder.enter(Phase.COMM, group=EXCHANGE_GROUP, payload_bytes=everybodys.nbytes)
        # An all-gather in one round trip: gloo's own goes around a ring, at a round trip for every rank.
        dist.all_to_all_single(everybodys, sent)
        self._recorder.enter(Phase.OTHER)
        return everybodys.cpu().numpy().reshape(-1, KINDS, KEPT)

    def _rules(self) -> Rules:
        objective, parameters = self._seat.objective, self._parameters
        rent = sum(objective.prices.get(tier, 0.0) for tier in self._seat.tiers)
        per_byte = objective.prices.get("gigabyte", 0.0) / 1e9
        return Rules(objective.name, parameters.drift, parameters.longest, rent / HOUR_S, per_byte)

    def _follow(self, scheme: Scheme) -> None:
        self._scheme, self._doing = scheme, self._take_up(scheme)

    def _take_up(self, scheme: Scheme) -> Strategy:
        if scheme.name == "local_sgd":
            return LocalSGD(self._local(scheme.period), self._seat)
        if scheme.name == "hierarchical":
            assert self._by_tiers is not None
            self._by_tiers.change(self._tiered(scheme.period))
            return self._by_tiers
        return self._every_step

    def _note(self, step: int, share: Share, comm_s: float, *, met: bool) -> None:
        """Put down what this step took by itself, and in which kind of collective."""
        own_ns, self._own_ns = self._own_ns, self._recorder.own_ns
        if not step:
            return
        work_s = (self._own_ns - own_ns) * 1e-9
        self._batch_size = max(self._batch_size, share.batch_size)
        if share.batch_size == self._batch_size:  # the last batch of an epoch is smaller
            self._diary.work(work_s, len(share.indices))
        if self._scheme.name == "hierarchical":
            self._diary.note(WIDE if met else TIER, comm_s)
        elif met:
            self._diary.note(FLAT, comm_s)

    def _local(self, period: int) -> LocalSGDParameters:
        return LocalSGDParameters(name="local_sgd", steps=period, balanced_batches=self._parameters.balanced_batches)

    def _tiered(self, period: int) -> HierarchicalParameters:
        return HierarchicalParameters(
            name="hierarchical", tier_steps=1, wan_steps=period, balanced_batches=self._parameters.balanced_batches
        )
