"""Content of `workload.yaml`: model, data, strategy, placement, objective and stopping rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.names import suggest_name
from laggard.core.files.input_files import expand_home
from laggard.workloads.compress.parameters import COMPRESSION_NAMES
from laggard.workloads.models import MODEL_NAMES
from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.specification.churn import ChurnEntry, DrawnChurn, RecordedChurn, name_form
from laggard.workloads.specification.datasets import (
    DATASET_NAMES,
    Cifar10,
    DatasetSpec,
    ImageFolder,
    SampleSource,
)
from laggard.workloads.specification.held_samples import HeldSamples
from laggard.workloads.specification.section import NameOrMapping, Section, named
from laggard.workloads.specification.stream import Births, RehearsalSpec, StreamSpec
from laggard.workloads.specification.training import (
    OPTIMIZER_NAMES,
    Objective,
    OptimizerSpec,
    Placement,
    Stop,
)
from laggard.workloads.strategies.collective.allreduce import AllReduceParameters
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.strategies.registry import (
    SHORTHANDS,
    STRATEGY_NAMES,
    StrategyParameters,
    parse_strategy,
)

MAX_SEED = 2**32 - 1


class Workload(Section):
    """Content of `workload.yaml`."""

    model: str = Field(
        description=f"{', '.join(MODEL_NAMES)}, or package.module:callable",
        examples=list(MODEL_NAMES),
    )
    dataset: Annotated[DatasetSpec, BeforeValidator(named), NameOrMapping(*DATASET_NAMES)] = Field(
        description="training and test data; some datasets need a folder"
    )
    stream: StreamSpec | None = Field(
        default=None,
        description="samples that arrive task by task; default: epochs over all of them",
    )
    births: Births | None = Field(
        default=None,
        description=(
            "workers that have the samples, if the strategy is `federated`; default: any, evenly"
        ),
    )
    rehearsal: RehearsalSpec | None = Field(
        default=None, description="old samples of a stream that each worker keeps and trains on"
    )
    samples: SampleSource = Field(
        "stored",
        description=(
            "source of the samples of a step: stored (the host's drive), cold (the drive, without"
            " the system's cache), warm (the cache, without the drive), or prepared (one batch in"
            " memory for all steps, to measure everything else)"
        ),
    )
    held_samples: HeldSamples | None = Field(
        default=None,
        description=(
            "each worker's host stores a part of the training set, and the worker trains on that"
            " part only; default: every worker has all samples"
        ),
    )
    batch_size: int = Field(
        128, ge=1, le=10_000_000, description="number of samples per step, over all workers"
    )
    optimizer: Annotated[OptimizerSpec, BeforeValidator(named), NameOrMapping(*OPTIMIZER_NAMES)] = (
        Field(OptimizerSpec(), description="optimizer of every worker; default: sgd")
    )
    strategy: Annotated[
        StrategyParameters,
        BeforeValidator(parse_strategy),
        NameOrMapping(*STRATEGY_NAMES, *SHORTHANDS, *COMPRESSION_NAMES),
    ] = Field(
        AllReduceParameters(),
        description="how the workers' updates become one model; default: allreduce",
    )
    placement: Placement = Field(
        Placement(), description="hosts of the workers and of a server; default: all hosts"
    )
    objective: Annotated[
        Objective, BeforeValidator(named), NameOrMapping("makespan", "cost", "fairness")
    ] = Field(
        Objective(), description="what `adaptive` optimizes, and the prices; default: makespan"
    )
    stop: Stop = Field(
        Stop(steps=1000), description="end of the training; default: after 1,000 steps"
    )
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="samples between two evaluations; default: one pass over the training data",
    )
    checkpoint_every: int | None = Field(
        default=None,
        ge=1,
        description=(
            "steps between two checkpoints, which the first worker writes; default: no checkpoints"
        ),
    )
    resume: str | None = Field(
        default=None,
        max_length=4096,
        description=(
            "checkpoint.pt of a run of the same workload, after whose step the training goes on;"
            " default: it begins with the first step"
        ),
    )
    initial_weights: str | None = Field(
        default=None,
        max_length=4096,
        description=(
            "weights.pt or checkpoint.pt of a run with the same model, whose weights the training"
            " begins with; default: weights drawn from the seed"
        ),
    )
    save_weights: bool = Field(
        default=False,
        description="whether the run folder gets weights.pt, the model of the last evaluation",
    )
    churn: Annotated[
        Annotated[tuple[ChurnEntry, ...], Tag("entries")]
        | Annotated[DrawnChurn, Tag("drawn")]
        | Annotated[RecordedChurn, Tag("recorded")],
        Discriminator(name_form),
    ] = Field(
        default=(),
        description=(
            "workers that leave or join while the others train: entries with their times, observed"
            " lives from which times are drawn, or observed times of availability"
        ),
    )
    seed: int = Field(
        default=1, ge=0, le=MAX_SEED, description="seed of weights, sample order and random events"
    )

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, name: str) -> str:
        if name not in MODEL_NAMES and not is_callable_name(name):
            advice = suggest_name(name, MODEL_NAMES, also="package.module:callable")
            raise broken_rule("no such model", advice)
        return name

    def count_worker_samples(self, workers: int) -> int:
        """Return the samples of a step of one of so many workers, old ones included.

        Workers differ by one sample at most.
        """
        old = 0 if self.rehearsal is None else self.rehearsal.sample
        return -(-self.batch_size // workers) + old

    @property
    def local_batch(self) -> int | None:
        """Samples of a local step, if each worker has samples of its own; None without such."""
        strategy = self.strategy
        return strategy.local_batch if isinstance(strategy, FederatedParameters) else None

    @property
    def churn_entries(self) -> tuple[ChurnEntry, ...]:
        """Return the entries of `churn`; there are none before the lives of machines are drawn."""
        return self.churn if isinstance(self.churn, tuple) else ()

    def located(self, scenario_folder: Path) -> Workload:
        """Return the workload with the paths in it resolved against the scenario's folder."""
        located: dict[str, object] = {}
        if isinstance(self.dataset, Cifar10 | ImageFolder):
            folder = (scenario_folder / expand_home(self.dataset.folder)).resolve()
            located["dataset"] = self.dataset.model_copy(update={"folder": str(folder)})
        for key, file in (("resume", self.resume), ("initial_weights", self.initial_weights)):
            if file is not None:
                located[key] = str((scenario_folder / expand_home(file)).resolve())
        return self.model_copy(update=located)
