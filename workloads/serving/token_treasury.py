"""Treasury of a federated training: it measures contributions, pays rounds, keeps the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from laggard.core.contribution.client_contributions import (
    ClientContribution,
    add_contributions,
    measure_contributions,
)
from laggard.core.contribution.ledger import LedgerEntry, TransferKind, append_entry
from laggard.core.contribution.payments import compute_payments
from laggard.core.hosts import Host
from laggard.core.rules.server_rule import Push, Update
from laggard.core.run_schema import RoundResult
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line
from laggard.workloads.strategies.federated.parameters import TokensSpec

ComputeLoss = Callable[[Sequence[Push], Update], float]


@dataclass
class TokenTreasury:
    """Tokens of the clients of a training.

    Attributes:
        spec: fee, valuation and claims.
        claims: tokens that clients claim in each round, by rank.
        output_dir: folder of the ledger.
        seed: seed of the random orders.
    """

    spec: TokensSpec
    claims: Mapping[int, int]
    output_dir: WorkerOutputDir
    seed: int
    _last: LedgerEntry | None = field(default=None, init=False)
    _so_far: dict[int, ClientContribution] = field(default_factory=dict, init=False)

    @classmethod
    def create(
        cls, spec: TokensSpec, clients: Sequence[Host], output_dir: WorkerOutputDir, seed: int
    ) -> Self:
        """Create the treasury of a training.

        Args:
            spec: section of `workload.yaml`.
            clients: host of each client, in rank order.
            output_dir: folder of the ledger.
            seed: seed of the training.
        """
        return cls(spec, spec.list_claims(clients), output_dir, seed)

    def pay_round(
        self, ended: RoundResult, update: Update | None, compute_loss: ComputeLoss
    ) -> None:
        """Pay the clients of a round and append that to the ledger.

        Clients are paid for what they have contributed so far: the gains of late rounds are small,
        and the noise in them is as large as they are.

        Args:
            ended: result of the round.
            update: update that it made; None if no answer could be used.
            compute_loss: function that returns the loss on test samples of the model with some
                answers of an update, whose others count as no change.
        """
        measured = {} if update is None else self._measure(ended.round, update, compute_loss)
        for rank, contribution in measured.items():
            self._so_far[rank] = add_contributions(self._so_far.get(rank), contribution)
        contributions = {rank: self._so_far[rank] for rank in measured}
        selected = [answer.rank for answer in ended.answers]
        claims = {rank: claim for rank, claim in self.claims.items() if rank in contributions}
        paid_out = compute_payments(selected, contributions, self.spec.fee, claims)
        for rank in selected:
            self._append(ended.round, rank, "fee", self.spec.fee)
            self._append(
                ended.round,
                rank,
                "payment",
                paid_out.payments[rank],
                paid_out.remarks.get(rank, ""),
            )

    def _measure(
        self, number: int, update: Update, compute_loss: ComputeLoss
    ) -> Mapping[int, ClientContribution]:
        pushes = {push.rank: push for push in update.pushes}
        begun = compute_loss((), update)

        def gain(coalition: frozenset[int]) -> float:
            if not coalition:
                return 0.0
            return begun - compute_loss([pushes[rank] for rank in sorted(coalition)], update)

        rng = np.random.default_rng((self.seed, number))
        return measure_contributions(
            gain, sorted(pushes), self.spec.valuation, rng, self.spec.orders
        )

    def _append(
        self, number: int, rank: int, kind: TransferKind, tokens: int, remark: str = ""
    ) -> None:
        self._last = append_entry(self._last, number, rank, kind, tokens, remark)
        append_line(self.output_dir.ledger, self._last.model_dump())
