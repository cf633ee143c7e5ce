"""Parameters of `federated`; imports nothing heavy.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-efficient learning
of deep networks from decentralized data", AISTATS 2017 (FedAvg). With `proximal`, T. Li et al.,
"Federated optimization in heterogeneous networks", MLSys 2020 (FedProx). With a server optimizer,
S. Reddi et al., "Adaptive federated optimization", ICLR 2021 (FedAdam). With `buffer`, J. Nguyen et
al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022 (FedBuff).

w <- w - server_lr * (sum of n_k (w - w_k) over the chosen clients) / (sum of n_k). Client k, with
n_k samples, begins with w and ends with w_k after `local_epochs` passes over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import remove_key
from laggard.core.hosts import Host, select_ranks
from laggard.core.run_schema import SyncMode
from laggard.core.units import DurationS
from laggard.workloads.specification.section import NameOrMapping, Section, named
from laggard.workloads.specification.training import (
    OPTIMIZER_NAMES,
    HostPattern,
    OptimizerSpec,
    to_list,
)
from laggard.workloads.strategies.base.parameters import RankProblem
from laggard.workloads.strategies.server.server_parameters import ServerParameters

if TYPE_CHECKING:
    from laggard.core.rules.federated_rounds import FederatedRule
    from laggard.core.selection.round_forecast import ClientProfile, RoundForecast
    from laggard.core.selection.selector import ClientSelector
    from laggard.workloads.datasets.partition import Partition
    from laggard.workloads.strategies.base.strategy import TrainingContext
    from laggard.workloads.strategies.federated.client import FederatedClient
    from laggard.workloads.strategies.federated.local_training import LocalTraining

SELECTIONS = ("random", "fastest", "oort", "utility_aware")


class SelectionSpec(Section):
    """Choice of the clients of each round."""

    name: Literal["random", "fastest", "oort", "utility_aware"] = Field(
        default="random",
        description=(
            "random (all alike), fastest (shortest rounds), oort (high losses, and not too slow;"
            " Lai et al., OSDI 2021), or utility_aware (clients of like speed together, and all"
            " about as often as `fairness` says)"
        ),
    )
    fairness: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description=(
            "Jain's index of participation that utility_aware aims at; 1 means all equally often,"
            " and less means shorter rounds"
        ),
    )
    energy: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description=(
            "exponent by which utility_aware prefers clients whose rounds take little energy, as"
            " given by `energy` of the strategy"
        ),
    )
    price: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description=(
            "exponent by which utility_aware prefers clients whose rounds have low prices, as given"
            " by `objective.prices`"
        ),
    )

    def create_selector(self, seed: int) -> ClientSelector:
        """Create the selection of a training."""
        from laggard.core.selection.oort import OortSelector
        from laggard.core.selection.simple_selection import FastestSelector, RandomSelector
        from laggard.core.selection.utility_aware import (
            UtilityAwareParameters,
            UtilityAwareSelector,
        )

        match self.name:
            case "random":
                return RandomSelector(seed)
            case "fastest":
                return FastestSelector()
            case "oort":
                return OortSelector(seed)
            case "utility_aware":
                return UtilityAwareSelector(
                    UtilityAwareParameters(self.fairness, self.energy, self.price)
                )


class TokensSpec(Section):
    """Tokens that clients pay for the model and get for what they contribute to it."""

    fee: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="tokens that a client pays in each of its rounds",
    )
    valuation: Literal["shapley", "leave_one_out"] = Field(
        default="shapley",
        description="contribution of a client: shapley (exact for up to eight), or leave_one_out",
    )
    orders: int = Field(
        default=20,
        ge=2,
        le=10_000,
        description="random orders, each with its reverse, if more than eight clients share a gain",
    )
    free_riders: Annotated[tuple[HostPattern, ...], BeforeValidator(to_list)] = Field(
        default=(), description="clients that answer without having trained"
    )
    claims: dict[HostPattern, int] = Field(
        default={}, description="tokens that clients claim in each round, by their pattern"
    )

    def list_free_riders(self, clients: Sequence[Host]) -> frozenset[int]:
        """Return the numbers of the clients that answer without having trained."""
        return frozenset(
            rank for pattern in self.free_riders for rank in select_ranks(pattern, clients)
        )

    def list_claims(self, clients: Sequence[Host]) -> Mapping[int, int]:
        """Return the tokens that clients claim in each round, by their numbers."""
        return {
            rank: claim
            for pattern, claim in self.claims.items()
            for rank in select_ranks(pattern, clients)
        }


class FederatedParameters(ServerParameters):
    """Parameters of `federated`: in each round, chosen clients train on their own samples."""

    reference: ClassVar[str] = "McMahan et al., AISTATS 2017"
    summary: ClassVar[str] = (
        "in each round, a server sends the model to chosen clients, which train on samples of their"
        " own, and averages what comes back"
    )
    compressions: ClassVar[tuple[str, ...]] = ()
    begins_with_server: ClassVar[bool] = True
    # A round is many steps of an optimizer, but one step of the trace.
    warm_up_steps: ClassVar[int] = 1
    name: Literal["federated"]
    clients: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="answers of clients that make a round; default: half as many as workers",
    )
    over_commitment: float = Field(
        default=1.0,
        ge=1,
        le=100,
        description="clients that a round asks, relative to the answers that it needs",
    )
    buffer: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description=(
            "answers that make an update while others still train: `clients` train at any time,"
            " without rounds (FedBuff); default: rounds"
        ),
    )
    deadline_s: DurationS | None = Field(
        default=None,
        gt=0,
        alias="deadline",
        description="time after which a round ends with the answers that it has; default: none",
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Euclidean norm to which longer changes of the model are shortened",
    )
    local_epochs: int = Field(
        default=1, ge=1, le=1000, description="passes of a client over its samples in a round"
    )
    local_batch: int = Field(
        default=32, ge=1, le=1_000_000, description="samples of a step within a client's round"
    )
    proximal: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="pull of a client's weights towards those that it was sent (FedProx's mu)",
    )
    selection: Annotated[SelectionSpec, BeforeValidator(named), NameOrMapping(*SELECTIONS)] = Field(
        default=SelectionSpec(), description="who takes part in a round; default: random"
    )
    energy: dict[HostPattern, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default={},
        description="joules that training on a sample takes a client, by the clients' pattern",
    )
    tokens: TokensSpec | None = Field(
        default=None, description="payments for contributions; default: none"
    )
    server: Annotated[OptimizerSpec, BeforeValidator(named), NameOrMapping(*OPTIMIZER_NAMES)] = (
        Field(
            default=OptimizerSpec(name="sgd", lr=1.0, momentum=0.0),
            description=(
                "optimizer with which the server follows the mean of the clients' changes; default:"
                " sgd with a learning rate of 1, which is averaging"
            ),
        )
    )

    @property
    def sync_mode(self) -> SyncMode:
        """Always `asynchronous`: a client is in the rounds that ask it."""
        return "asynchronous"

    def count_answers(self, workers: int) -> int:
        """Return the number of answers that make a round."""
        return -(-workers // 2) if self.clients is None else self.clients

    @model_validator(mode="after")
    def _a_buffer_has_no_rounds(self) -> Self:
        given = {
            "deadline": self.deadline_s is not None,
            "over_commitment": self.over_commitment > 1,
        }
        for key in [
            name for name, is_given in given.items() if is_given and self.buffer is not None
        ]:
            advice = remove_key((key,), f"remove {key}, or buffer")
            raise broken_rule(
                f"with a buffer there are no rounds, so {key} has no effect", advice, (key,)
            )
        return self

    def check_ranks(self, ranks: int) -> RankProblem | None:
        """Require that there are as many clients as a round or an update needs answers."""
        answers = self.count_answers(ranks)
        if answers > ranks:
            return RankProblem(
                "clients", f"a round cannot have more answers than {ranks} workers", ranks
            )
        if self.buffer is not None and self.buffer > answers:
            rule = f"{answers} clients train at a time, so no update can have more answers"
            return RankProblem("buffer", rule, answers)
        return None

    @property
    def server_optimizer(self) -> OptimizerSpec:
        """Optimizer with which the server follows the mean of the clients' changes."""
        return self.server

    def create_update_rule(self, partition: Partition, seed: int) -> FederatedRule:
        """Create the server's rule (see `ServerParameters`)."""
        from laggard.core.rules.federated_rounds import BufferedRule, FederatedRule

        clients = range(partition.world_size)
        samples = tuple(len(partition.share(0, client).indices) for client in clients)
        selector = self.selection.create_selector(seed)
        answers = self.count_answers(partition.world_size)
        if self.buffer is not None:
            return BufferedRule(samples, selector, self.buffer, answers)
        # Without the tolerance, 10 * 1.1 would ask twelve.
        asked = math.ceil(answers * self.over_commitment - 1e-9)
        return FederatedRule(samples, selector, answers, asked, self.deadline_s)

    def forecast_rounds(
        self, profiles: Sequence[ClientProfile], samples: Sequence[int], model_bytes: float
    ) -> RoundForecast | None:
        """Return the forecast of all clients' rounds; None if their profiles are not known.

        Args:
            profiles: profile of each client.
            samples: samples of each client.
            model_bytes: size of the model.
        """
        from laggard.core.selection.round_forecast import RoundForecast

        computed = [self.local_epochs * each for each in samples]
        return RoundForecast(profiles, computed, model_bytes) if profiles else None

    def create_worker(self, context: TrainingContext) -> FederatedClient:
        """Create one client's side (see `Parameters`)."""
        from laggard.workloads.strategies.federated.client import FederatedClient

        return FederatedClient(self, context, self.plan_local_training())

    def plan_local_training(self) -> LocalTraining:
        """Return the settings of a client's round."""
        from laggard.workloads.strategies.federated.local_training import LocalTraining

        return LocalTraining(self.local_epochs, self.local_batch, self.proximal)
