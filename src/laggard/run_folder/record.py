"""First record of a run, its origin, and its failure; the same for every testbed."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import laggard
from laggard.core.errors import EXIT_INTERRUPTED, FidelityError, LaggardError, OutputError
from laggard.core.files.disk_space import describe_os_error
from laggard.core.files.output_files import write_text
from laggard.core.provenance import fingerprint
from laggard.core.provenance.git_repository import RepositoryState, read_repository
from laggard.core.run_schema import (
    NO_TRAINING,
    RepositoryRecord,
    RunRecord,
    RunSettings,
    RunStatus,
    StrategyRecord,
)
from laggard.network_emulation.model import RandomHostEvent, RandomLinkEvent
from laggard.network_emulation.probe import BackendName
from laggard.run_folder.journal import Journal
from laggard.scenario.load import Scenario
from laggard.supervision.interrupts import describe_interrupt
from laggard.workloads.plan import place_server
from laggard.workloads.specification.callables import is_callable_name

_log = logging.getLogger(__name__)


def create_record(
    scenario: Scenario,
    testbed: str,
    backend: BackendName | None,
    command: Sequence[str],
    warnings: Sequence[str],
    settings: RunSettings | None = None,
) -> RunRecord:
    """Create the record of a run that begins now.

    Args:
        scenario: loaded scenario, whose own warnings come first.
        testbed: name of the testbed, as on the command line.
        backend: backend that shapes the links; None if nothing does.
        command: command line.
        warnings: further warnings.
        settings: other options of the command; those that the scenario has are added: the
            artifacts and the set of variables of the plays, and the run to go on with.
    """
    own, plays = scenario.folder, scenario.plays
    return RunRecord(
        id="",
        scenario=scenario.name,
        status="running",
        command=tuple(command),
        settings=(settings or RunSettings()).model_copy(
            update={
                "artifacts": None if plays.artifacts == own else str(plays.artifacts),
                "app_conf": plays.app_conf,
                "resume": scenario.resumed_run,
            }
        ),
        overrides=scenario.overrides,
        seed=scenario.workload.seed,
        seeds=dict(_list_seeds(scenario)),
        strategy=_record_strategy(scenario) if scenario.trains else NO_TRAINING,
        versions=fingerprint.list_versions(modules=_list_own_modules(scenario)),
        git=None,
        testbed=testbed,
        backend=backend,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=(*scenario.warnings, *warnings),
    )


def _list_own_modules(scenario: Scenario) -> Sequence[str]:
    """Return the modules of the user's own model and dataset."""
    if not scenario.trains:
        return ()
    names = (scenario.workload.model, scenario.workload.dataset.name)
    return [name.partition(":")[0] for name in names if is_callable_name(name)]


def _list_seeds(scenario: Scenario) -> Iterator[tuple[str, int]]:
    """Yield the key and the value of every seed."""
    if scenario.trains:
        yield "workload.seed", scenario.workload.seed
    for i, event in enumerate(scenario.heterogeneity.events):
        if isinstance(event, RandomHostEvent | RandomLinkEvent):
            yield f"heterogeneity.dynamic.{i}.random.seed", event.random.seed


def record_origin(journal: Journal, scenario: Scenario) -> None:
    """Write what the run is made of: the scenario's files, and the state of the repositories.

    Args:
        journal: journal of the run.
        scenario: loaded scenario.

    Raises:
        OutputError: a file cannot be written.
    """
    folder = journal.folder
    folder.write_files(scenario.files(), folder.scenario)
    own = read_repository(Path(laggard.__file__).resolve().parent, "__init__.py")
    given = read_repository(scenario.folder)
    repositories = []
    for state, holds in _merge_repositories(own, given):
        name = f"git_{holds[0]}.diff" if state.diff else None
        if name is not None:
            folder.write_files({name: state.diff}, folder.path)
        repositories.append(
            RepositoryRecord(
                holds=holds,
                commit=state.commit,
                diff=name,
                diff_is_complete=state.is_complete,
            )
        )
    journal.update(git=None if given is None else given.commit, repositories=tuple(repositories))


def _merge_repositories(
    own: RepositoryState | None, given: RepositoryState | None
) -> Iterator[tuple[RepositoryState, tuple[Literal["laggard", "scenario"], ...]]]:
    if own is not None and given is not None and own.root == given.root:
        yield own, ("laggard", "scenario")
        return
    if own is not None:
        yield own, ("laggard",)
    if given is not None:
        yield given, ("scenario",)


def _record_strategy(scenario: Scenario) -> StrategyRecord:
    strategy = scenario.workload.strategy
    server = (
        place_server(scenario.workload.placement, scenario.hosts) if strategy.uses_server else None
    )
    return StrategyRecord(
        name=strategy.name,
        sync_mode=strategy.sync_mode,
        description=strategy.describe(),
        parameters=strategy.model_dump(mode="json", exclude={"name"}),
        server_tier=None if server is None else server.layer,
    )


def record_failure(journal: Journal, error: Exception | KeyboardInterrupt) -> int:
    """Record the failure of a run; the traceback of a bug is written to logs/controller.log.

    Args:
        journal: journal of the run.
        error: exception that ended the run.

    Returns:
        The exit status of `laggard run`.
    """
    status, message, exit_status = _describe_failure(journal, error)
    try:
        if journal.record.status == "running":
            journal.update(status=status, error=message)
        else:
            # The first failure ended the run; this one ended its analysis.
            journal.warn((message,))
    except OutputError as unwritten:
        _log.error("%s", message)
        _log.error("the record of the run cannot be written: %s", unwritten)
    return exit_status


def _describe_failure(
    journal: Journal, error: Exception | KeyboardInterrupt
) -> tuple[RunStatus, str, int]:
    if isinstance(error, KeyboardInterrupt):
        reason = describe_interrupt(str(error.args[0]) if error.args else None)
        return "interrupted", reason, EXIT_INTERRUPTED
    if isinstance(error, LaggardError):
        status: RunStatus = "unfaithful" if isinstance(error, FidelityError) else "failed"
        return status, str(error), error.exit_status
    if isinstance(error, OSError) and error.strerror:
        return "failed", describe_os_error(error), 1
    text = "".join(traceback.format_exception(error))
    with suppress(OSError):
        write_text(journal.folder.logs / "controller.log", text)
    last = text.strip().splitlines()[-1]
    return "failed", f"a bug in Laggard: {last} (see logs/controller.log)", 1
