"""E2Clab's managers (monitoring, provenance, kwollect), run through E2Clab's own classes.

A manager that a testbed cannot run is rejected by name before the run starts. A manager watches
the hosts whose services have the role of its agents (`roles: [monitoring]`). Some managers store
their data on a machine of their own. E2Clab reserves that machine in addition to the services'
machines. Here it is one of the scenario's services, with E2Clab's role for it (`roles:
[monitoring_service]`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from laggard.core.errors import DeploymentError, Problem
from laggard.core.run_schema import ReservedJob
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.e2clab.ansible_runs import failure_reason, working_in
from laggard.layers_services.e2clab.manager_support import ManagerSupport
from laggard.layers_services.e2clab.play_tasks import Stage
from laggard.layers_services.model import LayersServices, Metadata

if TYPE_CHECKING:
    from enoslib import Networks, Roles

UNPLACED = YamlSource("layers_services.yaml", None, {})

_log = logging.getLogger(__name__)
_WATCHED: Mapping[str, str] = {
    "provenance": "provenance",
    "monitoring": "monitoring",
    "kwollect": "k_monitor",
}
"""Role of the hosts that a manager watches, in the order in which E2Clab deploys managers."""

_KEEPERS: Mapping[str, str] = {
    "provenance": "provenance_service",
    "monitoring": "monitoring_service",
}
"""Role of the machine that stores a manager's data (monitoring of type `dstat` needs none)."""
# Downloads that a node without internet access cannot make; they are named in the error message.
_FETCHED: Mapping[str, str] = {
    "dstat": "dool from raw.githubusercontent.com, and tmux from Debian where it is missing",
    "tig": "Docker images from hub.docker.com",
    "tpg": "Docker images from hub.docker.com",
    "provenance": "Docker images from hub.docker.com and sources from github.com and gitlab.com",
}


class _KwollectJob(NamedTuple):
    """Fields of a Grid'5000 reservation that E2Clab's kwollect manager reads."""

    site: str
    uid: int


@dataclass(frozen=True)
class _KwollectJobs:
    """Stand-in for E2Clab's Grid'5000 provider, as far as its kwollect manager uses it."""

    jobs: Sequence[ReservedJob]

    def get_jobs(self) -> list[_KwollectJob]:
        return [_KwollectJob(job.site, job.job_id) for job in self.jobs]


class _Manager(Protocol):
    def init(
        self,
        *,
        roles: Roles,
        networks: Networks,
        artifacts_dir: Path,
        meta: object,
        provider: object,
    ) -> None: ...
    def deploy(self) -> None: ...
    def backup(self, output_dir: Path) -> None: ...
    def destroy(self) -> None: ...
    def get_extra_info(self) -> Mapping[str, Mapping[str, object]]: ...


def manager_problems(
    layers: LayersServices, support: ManagerSupport, source: YamlSource = UNPLACED
) -> tuple[Problem, ...]:
    """Return the reasons why managers of a scenario cannot run on a testbed.

    Only the file is checked. No manager is started or imported.

    Args:
        layers: the validated file
        support: features of the testbed that the scenario runs on
        source: location of `layers` in its file

    Returns:
        At least one problem per rejected manager. The scenario can run without these managers.
    """
    problems = []
    for name, settings in list_managers(layers).items():
        refusal = _find_refusal(name, support)
        if refusal:
            rule, fix = refusal
            problems.append(source.locate_problem((name,), rule, fix, value=name))
        else:
            problems += _setting_problems(name, settings, layers, source)
    return tuple(problems)


def list_managers(layers: LayersServices) -> Mapping[str, Metadata]:
    """Return the settings of every manager that a scenario asks for, by its key in the file."""
    written = {
        name: getattr(layers, name)
        for name in ("provenance", "monitoring", "monitoring_iotlab", "kwollect")
    }
    return {name: settings for name, settings in written.items() if settings is not None}


def _find_refusal(name: str, support: ManagerSupport) -> tuple[str, str] | None:
    """Return the rule that excludes a manager from a testbed and its fix; None if supported."""
    if name == "monitoring_iotlab":
        return (
            "only FIT IoT-LAB's nodes have this monitoring, and Laggard does not support them",
            "use `monitoring`",
        )
    if name == "kwollect" and not support.kwollect:
        return (
            f"kwollect measures Grid'5000 nodes only, and this run is on `{support.testbed}`",
            "run it on g5k",
        )
    if not support.own_machines:
        whose = (
            "every host is a namespace of this machine, so E2Clab's manager would install software"
            " and measure on the machine itself"
        )
        return f"not supported on `{support.testbed}`: {whose}", "run it on g5k or ssh"
    if name == "provenance" and not support.docker_cache:
        return (
            (
                "E2Clab's class pulls its images through docker-cache.grid5000.fr, which is"
                " reachable only from Grid'5000"
            ),
            "run it on g5k",
        )
    return None


def _setting_problems(
    name: str, settings: Metadata, layers: LayersServices, source: YamlSource
) -> Iterator[Problem]:
    """Yield settings of a manager that E2Clab's schema rejects or its class silently ignores."""
    yield from _type_problems(name, settings, source)
    roles = {
        role for layer in layers.layers for service in layer.services for role in service.roles
    }
    watched = _WATCHED[name]
    if watched not in roles:
        rule = f"it watches the hosts with the role `{watched}`, and no service has this role"
        yield source.locate_problem(
            (name,), rule, f"add `roles: [{watched}]` to the services to watch", value=name
        )
    if name in _KEEPERS and settings.get("type") != "dstat" and _KEEPERS[name] not in roles:
        rule = (
            f"it stores its data on a machine with the role `{_KEEPERS[name]}`, and no service"
            " has this role"
        )
        fix = (
            f"add a service with `roles: [{_KEEPERS[name]}]`; Laggard reserves no machines other"
            " than those of services"
        )
        yield source.locate_problem((name,), rule, fix, value=name)


def _type_problems(name: str, settings: Metadata, source: YamlSource) -> Iterator[Problem]:
    if name == "monitoring":
        yield from _monitoring_problems(settings, source)
    elif name == "provenance":
        for key in ("provider", "dataflow_spec"):
            if not isinstance(settings.get(key), str):
                yield source.locate_problem(
                    (name, key),
                    f"`{key}` is missing or not a string",
                    "see the documentation of E2Clab's provenance manager",
                )
    else:
        yield from _kwollect_problems(settings, source)


def _monitoring_problems(settings: Metadata, source: YamlSource) -> Iterator[Problem]:
    if settings.get("type") not in ("dstat", "tig", "tpg"):
        yield source.locate_problem(
            ("monitoring", "type"), "the type must be dstat, tig or tpg", "write `type: dstat`"
        )
    if settings.get("network") == "private":
        rule = "only E2Clab's own reservation can create a separate monitoring network"
        yield source.locate_problem(("monitoring", "network"), rule, "write `network: shared`")


def _kwollect_problems(settings: Metadata, source: YamlSource) -> Iterator[Problem]:
    metrics = settings.get("metrics")
    if not isinstance(metrics, list) or not all(isinstance(metric, str) for metric in metrics):
        fix = "write `metrics: [wattmetre_power_watt]`, or [all]"
        yield source.locate_problem(
            ("kwollect", "metrics"), "`metrics` must be a list of metric names", fix
        )
    if "start" in settings and "end" not in settings:
        rule = (
            "`start` is set and `end` is not: E2Clab's class would only log this, and collect"
            " nothing"
        )
        yield source.locate_problem(("kwollect", "start"), rule, "add `end: finalize`")


@dataclass
class RunningManagers:
    """Managers that E2Clab's classes have deployed and that run until `finish`.

    Attributes:
        output_dir: folder that receives `monitoring-data/` and `provenance-data/`
        information: information that the managers report about themselves, by role, such as the
            address and URL of a dashboard
    """

    output_dir: Path
    information: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    _running: Mapping[str, tuple[_Manager, str]] = field(default_factory=dict)
    _workspace: Path | None = None
    _failed_tasks: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the keys of `layers_services.yaml` whose managers run."""
        return tuple(self._running)

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Record the start and end times of a workflow stage, which bound the data of kwollect."""
        if "kwollect" not in self._running:
            yield
            return
        from e2clab.probe import TaskProbe

        probe = TaskProbe.get_probe()
        probe.set_start(name)
        try:
            yield
        finally:
            probe.set_end(name)

    def finish(self) -> None:
        """Fetch the data of every manager and remove the managers from the nodes.

        A failure of one manager does not stop the others.

        Raises:
            DeploymentError: some data could not be fetched or some managers could not be removed;
                the message names each with the reason
        """
        failed: list[str] = []
        with working_in(self._workspace):
            for name, (manager, kind) in self._running.items():
                home = (
                    f"{name}: its data could not be fetched",
                    partial(manager.backup, self.output_dir),
                )
                away = f"{name}: it could not be removed from the nodes", manager.destroy
                # dool must end before its file is fetched: a file that grows during the transfer
                # fails Ansible's checksum. The file remains on the node. The removal of the other
                # managers deletes their data, so it is fetched before.
                for what, action in (away, home) if kind == "dstat" else (home, away):
                    _attempt_action(failed, what, action, self._failed_tasks)
        self._running = {}
        if failed:
            raise DeploymentError("E2Clab's managers:\n" + "\n".join(failed))


def start_managers(
    layers: LayersServices,
    roles: Roles,
    networks: Networks,
    scenario_dir: Path,
    artifacts_dir: Path,
    output_dir: Path,
    *,
    jobs: Sequence[ReservedJob] = (),
    workspace: Path | None = None,
    log: Path | None = None,
) -> RunningManagers:
    """Deploy the managers that a scenario asks for, as E2Clab does after its services.

    Args:
        layers: the validated file, in which `manager_problems` found no problem for this testbed
        roles: EnOSlib roles of the hosts
        networks: EnOSlib networks of the hosts
        scenario_dir: folder of the scenario; its name is part of folder names on the nodes
        artifacts_dir: folder that contains `agent_conf` and `dataflow_spec`
        output_dir: folder that `finish` writes data to; its name is the name of the run
        jobs: reservations on Grid'5000, for kwollect
        workspace: folder that EnOSlib writes its playbooks to; None selects the sandbox's own
        log: file to which the full records of failed tasks are appended; None keeps none

    Raises:
        DeploymentError: a manager could not be deployed; those deployed before it have been
            removed
    """
    asked = {name: settings for name, settings in list_managers(layers).items() if name in _WATCHED}
    if not asked:
        return RunningManagers(output_dir)
    from e2clab.objs import ExperimentMeta

    meta = ExperimentMeta(id=output_dir.name, scenario=scenario_dir.name)
    running: dict[str, tuple[_Manager, str]] = {}
    information: dict[str, Mapping[str, object]] = {}
    with working_in(workspace), contextlib.ExitStack() as undo:
        for name, settings in asked.items():
            manager = _configure_manager(name, settings)
            try:
                manager.init(
                    roles=roles,
                    networks=networks,
                    artifacts_dir=artifacts_dir,
                    meta=meta,
                    provider=_KwollectJobs(jobs),
                )
                # Registered before `deploy`, so that a partial deployment is removed too.
                undo.callback(_remove_manager, name, manager)
                manager.deploy()
            except Exception as error:  # E2Clab and EnOSlib raise arbitrary exceptions
                raise DeploymentError(_not_deployed(name, settings, error, log)) from error
            running[name] = manager, str(settings.get("type", name))
            information.update(manager.get_extra_info())
        # Every manager runs: keep them instead of removing them when the block ends.
        undo.pop_all()
    return RunningManagers(output_dir, information, running, workspace, log)


def _configure_manager(name: str, settings: Metadata) -> _Manager:
    from e2clab.errors import E2clabConfigError
    from e2clab.managers import Managers

    try:
        manager: _Manager = Managers[name.upper()].value(config=settings)
    except E2clabConfigError as error:
        raise DeploymentError(
            f"E2Clab's `{name}` manager rejects its settings in layers_services.yaml: {settings}"
        ) from error
    return manager


def _not_deployed(name: str, settings: Metadata, error: Exception, log: Path | None) -> str:
    what = f"E2Clab's `{name}` manager could not be deployed: {failure_reason(error, log)}"
    fetched = _FETCHED.get(str(settings.get("type", name)), "")
    needs = f"\nIt downloads {fetched}; nodes need internet access for it." if fetched else ""
    return f"{what}{needs}\nTo run without it, remove `{name}` from layers_services.yaml."


def _remove_manager(name: str, manager: _Manager) -> None:
    failed: list[str] = []
    _attempt_action(failed, f"{name}: it could not be removed from the nodes", manager.destroy)
    for line in failed:
        _log.warning("E2Clab's managers: %s", line)


def _attempt_action(
    failed: list[str], what: str, action: Callable[[], None], log: Path | None = None
) -> None:
    try:
        action()
    # One failure must not prevent fetching from or removing the remaining managers.
    except Exception as error:  # noqa: BLE001
        failed.append(f"{what}: {failure_reason(error, log)}")
