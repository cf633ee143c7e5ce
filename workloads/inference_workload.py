"""Content of a `workload.yaml` of `kind: inference`: devices, requests, and who helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.host_patterns import check_pattern
from laggard.core.corrections.names import suggest_name
from laggard.core.edits import remove_key, write_value
from laggard.core.errors import InputError, Problem
from laggard.core.files.input_files import expand_home, read_bounded
from laggard.core.hosts import Host, select_hosts
from laggard.core.serving.arrivals import MAX_REQUESTS, read_arrivals
from laggard.core.serving.request_order import REQUEST_ORDERS, RequestOrderName
from laggard.core.serving.split_point import SPLITS, SplitName
from laggard.core.units import DurationS
from laggard.core.yaml_source import KeyPath, YamlSource, YamlValue
from laggard.workloads.models import MODEL_NAMES
from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.specification.churn import ChurnEntry
from laggard.workloads.specification.dataset_problems import find_dataset_problems
from laggard.workloads.specification.datasets import (
    DATASET_NAMES,
    Cifar10,
    DatasetSpec,
    ImageFolder,
    SampleSource,
)
from laggard.workloads.specification.placement_problems import find_placement_problems
from laggard.workloads.specification.section import NameOrMapping, Section, named
from laggard.workloads.specification.stream import Births, RehearsalSpec, StreamSpec
from laggard.workloads.specification.training import Placement, Stop, to_list

INFERENCE = "inference"
POISSON = "poisson"


class RequestSpec(Section):
    """Requests that arrive at every device."""

    arrivals: str = Field(
        default=POISSON,
        max_length=4096,
        description="`poisson`, or a CSV file in the scenario's folder with a column `seconds`",
    )
    rate: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="mean number of requests per second at each device, if they are drawn",
    )
    count: int = Field(
        default=100,
        ge=1,
        le=MAX_REQUESTS,
        description="number of requests at each device, if they are drawn",
    )
    deadline_s: DurationS | None = Field(
        default=None,
        alias="deadline",
        description="time within which a request should be answered, such as 200ms",
    )
    batch: int = Field(default=1, ge=1, le=10_000, description="number of samples of a request")
    most_waiting: int = Field(
        default=100,
        ge=1,
        le=1_000_000,
        description="requests that may wait at a device; further ones are shed",
    )

    @field_validator("deadline_s")
    @classmethod
    def _is_positive(cls, deadline_s: float | None) -> float | None:
        if deadline_s is not None and deadline_s <= 0:
            advice = write_value((), "200ms", "write for example 200ms, or remove the key")
            raise broken_rule("no request can be answered before it arrives", advice)
        return deadline_s


class EnsembleSpec(Section):
    """Neighbors whose models a device asks as well."""

    ask: int = Field(default=2, ge=1, le=64, description="largest number of neighbors asked")
    budget_s: DurationS = Field(
        alias="budget",
        description="time after a request's arrival until which answers of neighbors count",
    )


class InferenceWorkload(Section):
    """Content of a `workload.yaml` of `kind: inference`."""

    kind: Literal["inference"]
    models: Annotated[tuple[str, ...], BeforeValidator(to_list)] = Field(
        min_length=1,
        max_length=32,
        description=(
            "networks of every device, each of which gets the same part of the requests:"
            f" {', '.join(MODEL_NAMES)}, or package.module:callable"
        ),
        examples=[list(MODEL_NAMES[:2])],
    )
    dataset: Annotated[DatasetSpec, BeforeValidator(named), NameOrMapping(*DATASET_NAMES)] = Field(
        description="its test samples are what the requests ask about"
    )
    requests: RequestSpec = Field(RequestSpec(), description="requests that arrive at every device")
    placement: Placement = Field(
        Placement(), description="hosts that are devices, and the host of a server"
    )
    order: RequestOrderName = Field(
        default="fcfs",
        description=f"whose block a device computes next: {', '.join(REQUEST_ORDERS)}",
    )
    split: SplitName = Field(
        default="none",
        description=f"where a request leaves its device for the server: {', '.join(SPLITS)}",
    )
    ensemble: EnsembleSpec | None = Field(
        default=None, description="neighbors whose models are asked as well; default: none"
    )
    train_steps: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="steps that every device trains its networks before, on samples of its own",
    )
    churn: tuple[ChurnEntry, ...] = Field(
        default=(), description="devices or a server that leave while requests arrive"
    )
    seed: int = Field(
        default=1, ge=0, le=2**32 - 1, description="seed of weights, samples and arrivals"
    )

    @field_validator("models")
    @classmethod
    def _are_models(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for place, name in enumerate(names):
            if name not in MODEL_NAMES and not is_callable_name(name):
                advice = suggest_name(name, MODEL_NAMES, (place,), also="package.module:callable")
                raise broken_rule("no such model", advice, (place,))
        return names

    @model_validator(mode="after")
    def _have_a_server_to_split(self) -> Self:
        if self.split != "none" and self.placement.server is None:
            advice = write_value(("placement", "server"), "cloud.*", "name the host of the server")
            raise broken_rule(f"split {self.split} needs a server", advice, ("split",))
        if self.split != "none" and self.ensemble is not None:
            rule = "a device of an ensemble has models of its own, which the server does not have"
            advice = write_value(("split",), "none", "write `split: none`, or remove `ensemble`")
            raise broken_rule(rule, advice, ("split",))
        return self

    @field_validator("churn")
    @classmethod
    def _nobody_comes_back(cls, entries: tuple[ChurnEntry, ...]) -> tuple[ChurnEntry, ...]:
        for place, entry in enumerate(entries):
            if entry.joins is not None:
                advice = remove_key((place,), "remove this entry")
                raise broken_rule("a node that serves cannot join later", advice, (place,))
        return entries

    # What a dataset asks of every workload (`DataSettings`).

    @property
    def samples(self) -> SampleSource:
        """Return `stored`: samples come from where they are."""
        return "stored"

    @property
    def batch_size(self) -> int:
        """Return the number of samples in a request."""
        return self.requests.batch

    @property
    def stop(self) -> Stop:
        """Return the number of requests as steps."""
        return Stop(steps=self.requests.count)

    @property
    def stream(self) -> StreamSpec | None:
        """Return nothing: samples arrive in no tasks."""
        return None

    @property
    def births(self) -> Births | None:
        """Return nothing: nobody owns samples."""
        return None

    @property
    def local_batch(self) -> int | None:
        """Return nothing: nobody owns samples."""
        return None

    @property
    def rehearsal(self) -> RehearsalSpec | None:
        """Return nothing: no old samples are kept."""
        return None

    @property
    def arrivals_file(self) -> str | None:
        """Return the name of the file with the arrivals; None if they are drawn."""
        return None if self.requests.arrivals == POISSON else self.requests.arrivals

    @property
    def untrained_reason(self) -> str:
        """Return why its hosts have no ranks."""
        return "workload.yaml is an inference, which trains nothing"

    def find_problems(
        self, hosts: Sequence[Host], source: YamlSource, folder: Path
    ) -> Iterator[Problem]:
        """Yield what keeps the located workload from being run.

        Args:
            hosts: all hosts.
            source: the parsed `workload.yaml`.
            folder: scenario folder, to which the file of arrivals is relative.
        """
        before = list(find_placement_problems(self.placement, hosts, source))
        yield from before
        if not before:
            yield from self._check_hosts(hosts, source)
        for place, entry in enumerate(self.churn):
            yield from check_pattern(source, ("churn", place, "leaves"), entry.pattern, hosts)
        models: dict[KeyPath, str] = {
            ("models", place): name for place, name in enumerate(self.models)
        }
        yield from find_dataset_problems(self.dataset, models, source)
        if self.arrivals_file is not None:
            try:
                self.read_arrivals(folder)
            except InputError as error:
                yield source.locate_problem(
                    ("requests", "arrivals"),
                    str(error),
                    "write `poisson`, or the name of a CSV file in the scenario's folder",
                )

    def _check_hosts(self, hosts: Sequence[Host], source: YamlSource) -> Iterator[Problem]:
        devices = {
            host.name for each in self.placement.workers for host in select_hosts(each, hosts)
        }
        if self.placement.server is not None:
            devices -= {select_hosts(self.placement.server, hosts)[0].name}
        if not devices:
            yield source.locate_problem(
                ("placement",),
                "the only device is the server itself, and no requests arrive there",
                "name other hosts in placement.workers",
            )
        elif self.ensemble is not None and len(devices) < 2:
            yield source.locate_problem(
                ("ensemble",),
                "a device needs at least one neighbor, and there is none",
                "name more hosts in placement.workers, or remove the key",
            )

    def read_arrivals(self, folder: Path) -> tuple[float, ...] | None:
        """Read the times of the requests from their file; None if they are drawn.

        Raises:
            InputError: the file cannot be read, or its times are no times.
        """
        name = self.arrivals_file
        if name is None:
            return None
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{name} is outside of the scenario's folder — copy it there")
        return read_arrivals(read_bounded(path), name)

    def read_files(self, scenario_folder: Path) -> Mapping[str, bytes]:
        """Read the file of arrivals, by its path in the scenario's folder."""
        name = self.arrivals_file
        return {} if name is None else {name: read_bounded(scenario_folder / name)}

    def located(self, scenario_folder: Path) -> InferenceWorkload:
        """Return the workload with the folder of its dataset resolved against the scenario's."""
        if not isinstance(self.dataset, Cifar10 | ImageFolder):
            return self
        folder = (scenario_folder / expand_home(self.dataset.folder)).resolve()
        dataset = self.dataset.model_copy(update={"folder": str(folder)})
        return self.model_copy(update={"dataset": dataset})


def is_inference(content: YamlValue) -> bool:
    """Return whether the content of a `workload.yaml` is meant to be an inference."""
    return isinstance(content, Mapping) and content.get("kind") == INFERENCE
