"""Base classes of the parameters of strategies; imports nothing heavy.

The parameters of a strategy are defined in its own module, beside its worker.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import write_value
from laggard.core.run_schema import SyncMode
from laggard.core.span_schema import WARM_UP_STEPS
from laggard.workloads.balancing.parameters import BalancedBatches, TrueOrMapping, parse_switch
from laggard.workloads.compress.parameters import CompressionField, format_compression
from laggard.workloads.specification.section import Section

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import StrategyWorker, TrainingContext


class RankProblem(NamedTuple):
    """Parameter that does not suit the number of ranks.

    Attributes:
        key: key of the parameter.
        rule: the rule that it breaks.
        most: largest value that suits.
    """

    key: str
    rule: str
    most: int

    @property
    def fix(self) -> str:
        """Return the advice in words."""
        return f"set {self.key} to {self.most} or less"


class Parameters(Section):
    """Base of every strategy's parameters.

    Attributes:
        uses_server: whether a parameter server keeps the model.
        peer_to_peer: whether every rank exchanges messages with every other, without collectives.
        background_exchange: whether a background thread exchanges models; each step then ends with
            a copy of the model.
        supports_churn: whether workers may be lost, or leave and join, while the others train.
        resumable: whether all ranks have the model and the optimizer that one of them writes into a
            checkpoint, so that a training can go on from there.
        begins_with_server: whether a worker takes its first step only when the server asks it to.
        divides_model: whether ranks have different parts of the model.
        warm_up_steps: number of a rank's first steps that are slower than its later ones.
        summary: description of the strategy in one sentence, for the documentation.
        reference: paper that introduced the strategy.
        name: name of the strategy in `workload.yaml`; each subclass declares its own.
    """

    uses_server: ClassVar[bool] = False
    peer_to_peer: ClassVar[bool] = False
    background_exchange: ClassVar[bool] = False
    supports_churn: ClassVar[bool] = False
    resumable: ClassVar[bool] = False
    begins_with_server: ClassVar[bool] = False
    divides_model: ClassVar[bool] = False
    warm_up_steps: ClassVar[int] = WARM_UP_STEPS
    summary: ClassVar[str]
    reference: ClassVar[str]
    if TYPE_CHECKING:
        name: str

    @property
    def sync_mode(self) -> SyncMode:
        """Synchronization mode of the ranks.

        `lockstep` means that all ranks take the same steps and synchronize in some of them.
        `asynchronous` means that each rank takes steps of its own.
        """
        return "lockstep"

    def describe(self) -> str:
        """Format name and parameters for people: `local_sgd, steps 8`."""
        values = self.model_dump(exclude={"compress"})
        name = str(values.pop("name"))
        # False and None mean that an option is off.
        parts = (
            _format_parameter(key, value)
            for key, value in values.items()
            if value is not False and value is not None
        )
        return ", ".join([name, *parts])

    @abstractmethod
    def create_worker(self, context: TrainingContext) -> StrategyWorker:
        """Create one rank's side of the strategy.

        All ranks call this at the same time, since it may open connections.

        Args:
            context: model, optimizer and connections of the rank.
        """

    # Most strategies suit any number of ranks, so the argument is unused here.
    def check_ranks(self, ranks: int) -> RankProblem | None:  # noqa: ARG002
        """Return the parameter that does not suit this number of ranks, if there is one."""
        return None


def _format_parameter(key: str, value: object) -> str:
    if not isinstance(value, dict):
        return f"{key} {value}"
    return f"{key} ({', '.join(f'{name} {each}' for name, each in value.items())})"


class BalancedParameters(Parameters):
    """Base of strategies whose ranks can share a batch in proportion to their speeds.

    Their ranks take the same steps, or a server knows the step of each rank.
    """

    balanced_batches: Annotated[
        BalancedBatches | None, BeforeValidator(parse_switch), TrueOrMapping()
    ] = Field(
        default=None,
        description="share each batch by the workers' measured speeds instead of equally",
    )


class CompressibleParameters(Parameters):
    """Base of the parameters of strategies that can compress what they send.

    Attributes:
        compressions: names of the compressions that the strategy supports.
        encodes_every_step: whether gradients are encoded in each step, not only when models are
            averaged.
    """

    compressions: ClassVar[tuple[str, ...]] = ("topk", "fp16")
    encodes_every_step: ClassVar[bool] = False
    compress: CompressionField = Field(
        default=None, description="compression of what workers send; no compression when absent"
    )

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        if self.compress is not None and self.compress.name not in self.compressions:
            rule = (
                f"{self.model_dump()['name']} sends the model as one vector, but powersgd needs"
                " the matrices of the layers"
            )
            fix = f"use {' or '.join(self.compressions)}, or `name: allreduce`"
            advice = write_value(("compress",), self.compressions[0], fix)
            raise broken_rule(rule, advice, ("compress",))
        return self

    def describe(self) -> str:
        """Format name, parameters and compression for people.

        Example: `local_sgd, steps 8, after 0, compress topk (fraction 0.01)`.
        """
        return super().describe() + (
            f", compress {format_compression(self.compress)}" if self.compress is not None else ""
        )


class PeerParameters(Parameters):
    """Base of strategies without a server whose ranks each take steps of their own."""

    peer_to_peer: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True

    @property
    def sync_mode(self) -> SyncMode:
        """Always `asynchronous`: each rank takes steps of its own."""
        return "asynchronous"


class BackgroundParameters(PeerParameters):
    """Base of strategies that exchange models in a background thread."""

    background_exchange: ClassVar[bool] = True
