"""Loading of a scenario folder: one immutable value, or a report of all its problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pydantic import BaseModel

from laggard.core.corrections.model_problems import validate_model
from laggard.core.emulated_drive import DriveLimits
from laggard.core.errors import Problem, ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.compile import compile_hosts
from laggard.layers_services.e2clab import workflow_env
from laggard.layers_services.e2clab.play_inputs import PlayInputs, find_input_problems
from laggard.layers_services.e2clab.services import own_classes
from laggard.layers_services.model import LayersServices, Workflow
from laggard.layers_services.validate import MAX_HOSTS, validate_workflow
from laggard.layers_services.validate import check_hosts as validate_layers
from laggard.network_emulation.compute.plan_shares import plan_shares
from laggard.network_emulation.dilation import ShareKind
from laggard.network_emulation.dynamics.changes import TimedChange, peak_shares
from laggard.network_emulation.dynamics.expand import expand_events
from laggard.network_emulation.links.link_matrix import MatrixCell
from laggard.network_emulation.links.link_warnings import link_warnings
from laggard.network_emulation.links.plan_links import LinkPlan, plan_links
from laggard.network_emulation.memory.plan import memory_problems, memory_warnings, plan_memory
from laggard.network_emulation.model import Heterogeneity, Network, TraceEvent
from laggard.network_emulation.storage.plan import plan_drives, storage_warnings
from laggard.network_emulation.validate import check_heterogeneity as validate_heterogeneity
from laggard.network_emulation.validate import validate_rules
from laggard.scenario.application import ApplicationWorkload, find_application
from laggard.scenario.cross_checks import ScenarioSources, find_late_entries
from laggard.scenario.csv_files import parse_cells, parse_points, read_csv_files
from laggard.scenario.files import (
    ScenarioFile,
    find_file_warnings,
    read_bounded,
    read_files,
)
from laggard.scenario.named_files.client_map import resolve_births
from laggard.scenario.named_files.drawn_churn import resolve_churn
from laggard.scenario.named_files.planned_blocks import resolve_plan
from laggard.scenario.named_files.recorded_churn import resolve_availability
from laggard.scenario.overrides import parse_override
from laggard.scenario.ring_topology import resolve_order
from laggard.workloads.plan import place
from laggard.workloads.specification.placement_problems import find_placement_problems
from laggard.workloads.validate import MAX_WORKERS, get_event_horizon_s
from laggard.workloads.validate import find_warnings as find_workload_warnings
from laggard.workloads.validate import validate as validate_workload
from laggard.workloads.workload import Workload

# A hostile or generated file may have thousands of problems; nobody reads more than these.
MAX_PROBLEMS = 100

_NO_TRAINING = Workload.model_validate({"model": "mlp", "dataset": "digits"})
"""Workload of a scenario that trains nothing.

Its only property that is used is that it has no stopping rule.
"""

Model = TypeVar("Model", bound=BaseModel)
Planned = TypeVar("Planned")


@dataclass(frozen=True)
class Scenario:
    """Content of a scenario folder, checked and planned; independent of this machine.

    Attributes:
        name: name of the folder.
        folder: absolute path of the folder.
        plays: what the command line gives the plays of `workflow.yaml`.
        layers: content of `layers_services.yaml`.
        network: content of `network.yaml`.
        workflow: content of `workflow.yaml`.
        heterogeneity: content of `heterogeneity.yaml`, empty if the file is missing.
        trains: whether the scenario is used for training. If not, it has no ranks, and `workload`
            has no meaning.
        workload: content of `workload.yaml`, with the absolute path of the dataset's folder.
        application: content of a `workload.yaml` that trains nothing, else None; absolute paths.
        hosts: all hosts in order, with their addresses.
        links: plan of all links, in virtual units.
        shares: CPU share of every host, as a fraction of one core, in virtual units.
        memory: memory limit in bytes of every host that has one.
        drives: drive limits of every host that has any at some time, in virtual units.
        changes: all changes of `dynamic` within the run, in virtual seconds after the first-step
            barrier.
        ranks: host of every worker, in rank order.
        warnings: one line for each setting that is allowed but probably a mistake.
        sources: parsed files, in which later problems are located.
        resumed_run: id of the run whose training is to go on; None for a new training.
    """

    name: str
    folder: Path
    plays: PlayInputs
    layers: LayersServices
    network: Network
    workflow: Workflow
    heterogeneity: Heterogeneity
    trains: bool
    workload: Workload
    application: ApplicationWorkload | None
    hosts: tuple[Host, ...]
    links: LinkPlan
    shares: Mapping[str, float]
    memory: Mapping[str, int]
    drives: Mapping[str, DriveLimits]
    changes: tuple[TimedChange, ...]
    ranks: tuple[Host, ...]
    warnings: tuple[str, ...]
    sources: ScenarioSources
    _files: Mapping[str, ScenarioFile]
    _traces: Mapping[str, bytes]
    resumed_run: str | None = None

    @property
    def peak_shares(self) -> Mapping[str, float]:
        """Return the largest share of every host at any time of the run.

        The machine must be able to provide these shares.
        """
        return peak_shares(self.shares, self.changes)

    @property
    def share_kind(self) -> ShareKind:
        """Return what the shares count: only workers of a training count their work."""
        return ShareKind.SPEED if self.trains else ShareKind.TIME

    @property
    def reference_host(self) -> Host:
        """Return the host whose clock is the reference: that of the first rank, if there is one."""
        return (*self.ranks, *self.hosts)[0]

    @property
    def untrained_reason(self) -> str:
        """Return why a scenario without ranks has none."""
        if self.application is not None:
            return self.application.untrained_reason
        return "there is no workload.yaml, so nothing is trained"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the texts of all overrides; those of one file are in their order."""
        return tuple(each.text for file in self._files.values() for each in file.overrides)

    def with_hosts(self, hosts: Iterable[Host]) -> Scenario:
        """Return the same scenario on hosts of the same names with other addresses."""
        by_name = {host.name: host for host in hosts}
        return replace(
            self,
            hosts=tuple(by_name[host.name] for host in self.hosts),
            ranks=tuple(by_name[host.name] for host in self.ranks),
            links=replace(self.links, hosts=tuple(by_name[host.name] for host in self.links.hosts)),
        )

    def files(self) -> Mapping[str, bytes]:
        """Return every file as run, with overrides applied, by its path within the folder."""
        written = {f"{name}.yaml": file.as_run() for name, file in self._files.items()}
        # This file has no model of its own here, so its content is kept as it is.
        env_path = self.folder / workflow_env.FILE
        env_file = (
            {workflow_env.FILE: read_bounded(env_path, str(env_path))} if env_path.is_file() else {}
        )
        return (
            {name: data for name, data in written.items() if data is not None}
            | dict(self._traces)
            | env_file
            | dict({} if self.application is None else self.application.read_files(self.folder))
        )


class _ProblemCollector:
    """Collector of problems, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.collected: list[Problem] = []

    def add(self, problems: Iterable[Problem]) -> bool:
        """Add problems, and return whether there were any."""
        before = len(self.collected)
        self.collected.extend(problems)
        return len(self.collected) > before

    def try_call(self, function: Callable[[], Planned]) -> Planned | None:
        """Return the result of `function`, or None if it found problems."""
        try:
            return function()
        except ScenarioError as error:
            self.add(error.problems)
            return None

    def to_error(self) -> ScenarioError:
        """Return an error with all distinct problems, in the order of files and lines."""
        known = sorted(
            dict.fromkeys(self.collected), key=lambda p: (p.path, p.line, p.column, p.rule)
        )
        if len(known) > MAX_PROBLEMS:
            rest = Problem(
                known[-1].path,
                0,
                0,
                "",
                f"and {len(known) - MAX_PROBLEMS} more problems",
                "fix these first",
            )
            known = [*known[:MAX_PROBLEMS], rest]
        return ScenarioError(tuple(known))


@dataclass(frozen=True)
class _ScenarioModels:
    """Models of the five files; None for a file that could not be read."""

    layers: LayersServices | None
    network: Network | None
    workflow: Workflow | None
    heterogeneity: Heterogeneity | None
    workload: Workload | None
    application: ApplicationWorkload | None


def load_scenario(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    training: bool = True,
    plays: PlayInputs | None = None,
    most_hosts: int = MAX_HOSTS,
) -> Scenario:
    """Read, check and plan a scenario; nothing is started.

    Args:
        folder: folder with the five files. Without `workload.yaml`, nothing is trained.
        overrides: texts `file.key=value`, as for `--set`.
        training: whether the workload is used. If not, no workers are placed.
        plays: what the command line gives the plays of `workflow.yaml`; the files that they read
            must then exist. None if no play will be run.
        most_hosts: number of hosts that the testbed can have.

    Raises:
        ScenarioError: every problem of every file, in the order of files and lines.

    Examples:
        >>> scenario = load_scenario(Path("my-continuum"), ["workload.batch_size=64"])
        >>> scenario.workload.batch_size
        64
        >>> scenario.shares["edge.trainer.1.1"]
        0.1
    """
    problems = _ProblemCollector()
    parsed = [problems.try_call(partial(parse_override, text)) for text in overrides]
    files, unreadable = read_files(
        folder, [override for override in parsed if override is not None]
    )
    problems.add(unreadable)
    sources = _collect_sources(folder, files)
    runs_app = find_application(sources.workload.value) is not None
    trains = training and _has_content(files, "workload") and not runs_app
    models = _validate_models(files, folder, problems)
    hosts = () if models.layers is None else compile_hosts(models.layers)
    # Every further check needs the hosts, so the collected problems are reported here.
    if not hosts or problems.add(validate_layers(hosts, sources.layers_services, most_hosts)):
        raise problems.to_error()
    if models.workflow is not None and models.layers is not None:
        own = own_classes(models.layers)
        problems.add(validate_workflow(models.workflow, hosts, sources.workflow, own))
    if plays is not None:
        problems.add(find_input_problems(sources.workflow, folder, plays))
    traces, missing = read_csv_files(models.heterogeneity, models.workload, folder, sources)
    problems.add(missing)
    models = _resolve_files(models, hosts, traces, sources, problems)
    if training and models.application is not None:
        problems.add(models.application.find_problems(hosts, sources.workload, folder))
    ranks = _place_ranks(models, hosts, sources, problems, most_hosts) if trains else ()
    network = _plan_network(models, hosts, sources, problems, traces)
    if network is not None and models.heterogeneity is not None:
        workers = [host.name for host in ranks]
        problems.add(memory_problems(models.heterogeneity, workers, hosts, sources.heterogeneity))
    # Events can only be expanded for correct hosts, links and stopping rules.
    changes = None
    if network is not None and models.workload is not None and not problems.collected:
        links = network[0]
        if trains and models.workload.placement.order == "topology":
            ordered = resolve_order(models.workload, hosts, links)
            models, ranks = replace(models, workload=ordered), place(ordered.placement, hosts)
        changes = problems.try_call(
            lambda: _expand_changes(models, hosts, links, folder, traces, sources)
        )
    if problems.collected or network is None or changes is None:
        raise problems.to_error()
    scenario = _create_scenario(folder, files, models, hosts, ranks, (*network, changes), traces)
    return replace(scenario, trains=trains, plays=plays or scenario.plays)


def _has_content(files: Mapping[str, ScenarioFile], name: str) -> bool:
    """Return whether a file exists or has overrides; one that could not be read exists."""
    return name not in files or files[name].has_content


def _collect_sources(folder: Path, files: Mapping[str, ScenarioFile]) -> ScenarioSources:
    names = [field.name for field in fields(ScenarioSources)]
    empty_sources = {name: YamlSource(str(folder / f"{name}.yaml"), None, {}) for name in names}
    return ScenarioSources(
        **{name: files[name].source if name in files else empty_sources[name] for name in names}
    )


def _validate_models(
    files: Mapping[str, ScenarioFile], folder: Path, problems: _ProblemCollector
) -> _ScenarioModels:
    """Validate every file that could be read; a missing optional file gives an empty model."""

    def model(name: str, kind: type[Model]) -> Model | None:
        return (
            problems.try_call(lambda: validate_model(files[name].source, kind))
            if name in files
            else None
        )

    kind = find_application(files["workload"].source.value) if "workload" in files else None
    trains = _has_content(files, "workload") and kind is None
    workload = model("workload", Workload) if trains else _NO_TRAINING
    application = None if kind is None else model("workload", kind)
    return _ScenarioModels(
        model("layers_services", LayersServices),
        model("network", Network),
        model("workflow", Workflow),
        model("heterogeneity", Heterogeneity),
        None if workload is None else workload.located(folder.absolute()),
        None if application is None else application.located(folder.absolute()),
    )


def _resolve_files(
    models: _ScenarioModels,
    hosts: tuple[Host, ...],
    csv_files: Mapping[str, bytes],
    sources: ScenarioSources,
    problems: _ProblemCollector,
) -> _ScenarioModels:
    """Draw the lives of machines, and read who has which samples.

    This needs a valid placement; an invalid one is reported later.
    """
    workload, source = models.workload, sources.workload
    if workload is None or any(find_placement_problems(workload.placement, hosts, source)):
        return models
    for resolve in (resolve_churn, resolve_availability, resolve_births, resolve_plan):
        resolved = problems.try_call(partial(resolve, workload, hosts, csv_files, source))
        workload = resolved or workload
    return replace(models, workload=workload)


def _place_ranks(
    models: _ScenarioModels,
    hosts: tuple[Host, ...],
    sources: ScenarioSources,
    problems: _ProblemCollector,
    most_hosts: int,
) -> tuple[Host, ...]:
    workload, source = models.workload, sources.workload
    if workload is None or problems.add(find_placement_problems(workload.placement, hosts, source)):
        return ()
    ranks = place(workload.placement, hosts)
    most_workers = max(MAX_WORKERS, most_hosts)
    problems.add(validate_workload(workload, ranks, hosts, source, most_workers))
    return ranks


def _plan_network(
    models: _ScenarioModels,
    hosts: tuple[Host, ...],
    sources: ScenarioSources,
    problems: _ProblemCollector,
    csv_files: Mapping[str, bytes],
) -> tuple[LinkPlan, Mapping[str, float]] | None:
    """Check the rules, and plan links and CPU shares; None if there are problems."""
    network, heterogeneity = models.network, models.heterogeneity
    if network is None or heterogeneity is None:
        return None
    if problems.add(
        validate_rules(network, heterogeneity, hosts, sources.network, sources.heterogeneity)
    ):
        return None
    horizon_s = None if models.workload is None else get_event_horizon_s(models.workload)
    problems.add(validate_heterogeneity(heterogeneity, hosts, horizon_s, sources.heterogeneity))
    shares = problems.try_call(lambda: plan_shares(heterogeneity, hosts, sources.heterogeneity))
    folder = Path(sources.heterogeneity.path).parent
    cells: dict[str, tuple[MatrixCell, ...]] = {}
    for name in heterogeneity.matrices.keys() & csv_files.keys():
        parse = partial(parse_cells, csv_files[name], str(folder / name), hosts)
        cells[name] = problems.try_call(parse) or ()
    if len(cells) < len(heterogeneity.matrices):
        return None
    sources_of_links = sources.network, sources.heterogeneity
    links = problems.try_call(
        lambda: plan_links(network, heterogeneity, hosts, *sources_of_links, cells)
    )
    return None if links is None or shares is None else (links, shares)


def _expand_changes(
    models: _ScenarioModels,
    hosts: tuple[Host, ...],
    links: LinkPlan,
    folder: Path,
    traces: Mapping[str, bytes],
    sources: ScenarioSources,
) -> tuple[TimedChange, ...]:
    assert models.heterogeneity is not None
    assert models.workload is not None
    events = models.heterogeneity.events
    names = {event.trace for event in events if isinstance(event, TraceEvent)}
    points = {name: parse_points(traces[name], str(folder / name)) for name in sorted(names)}
    horizon_s = get_event_horizon_s(models.workload)
    return expand_events(
        models.heterogeneity, hosts, links, horizon_s, points, sources.heterogeneity
    )


def _find_storage_warnings(
    heterogeneity: Heterogeneity,
    workload: Workload,
    ranks: Sequence[Host],
    hosts: Sequence[Host],
    source: YamlSource,
) -> Iterable[Problem]:
    workers = [host.name for host in ranks]
    writers = workers[:1] if workload.checkpoint_every else []
    return storage_warnings(heterogeneity, workers, writers, hosts, source)


def _create_scenario(
    folder: Path,
    files: Mapping[str, ScenarioFile],
    models: _ScenarioModels,
    hosts: tuple[Host, ...],
    ranks: tuple[Host, ...],
    network: tuple[LinkPlan, Mapping[str, float], tuple[TimedChange, ...]],
    traces: Mapping[str, bytes],
) -> Scenario:
    """Create the scenario when no problem was found."""
    assert models.layers is not None
    assert models.network is not None
    assert models.workflow is not None
    assert models.heterogeneity is not None
    assert models.workload is not None
    links, shares, changes = network
    sources = _collect_sources(folder, files)
    warnings = (
        *find_file_warnings(folder, files),
        *link_warnings(
            links,
            models.network,
            models.heterogeneity,
            [host.name for host in ranks],
            sources.network,
            sources.heterogeneity,
        ),
        *memory_warnings(
            models.heterogeneity, [host.name for host in ranks], hosts, sources.heterogeneity
        ),
        *_find_storage_warnings(
            models.heterogeneity, models.workload, ranks, hosts, sources.heterogeneity
        ),
        *find_workload_warnings(models.workload, ranks, hosts, sources.workload),
        *find_late_entries(models.workload, models.heterogeneity, sources),
    )
    return Scenario(
        name=folder.resolve().name or "scenario",
        folder=folder.absolute(),
        plays=PlayInputs(folder.absolute()),
        layers=models.layers,
        network=models.network,
        workflow=models.workflow,
        heterogeneity=models.heterogeneity,
        trains=bool(ranks),
        workload=models.workload,
        application=models.application,
        hosts=hosts,
        links=links,
        shares=MappingProxyType(dict(shares)),
        memory=MappingProxyType(dict(plan_memory(models.heterogeneity, hosts))),
        drives=MappingProxyType(dict(plan_drives(models.heterogeneity, hosts))),
        changes=changes,
        ranks=ranks,
        warnings=tuple(dict.fromkeys(str(problem) for problem in warnings)),
        sources=sources,
        _files=files,
        _traces=traces,
    )
