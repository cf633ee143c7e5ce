"""First record of a run, and the record of its failure; the same for every testbed."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from laggard.core import fingerprint
from laggard.core.errors import EXIT_INTERRUPTED, FidelityError, LaggardError, OutputError
from laggard.core.files.disk_space import describe_os_error
from laggard.core.files.output_files import write_text
from laggard.core.run_schema import NO_TRAINING, RunRecord, RunStatus, StrategyRecord
from laggard.network_emulation.probe import BackendName
from laggard.run_folder.journal import Journal
from laggard.scenario.load import Scenario
from laggard.supervision.interrupts import describe_interrupt
from laggard.workloads.plan import place_server

_log = logging.getLogger(__name__)


def create_record(
    scenario: Scenario,
    testbed: str,
    backend: BackendName,
    command: Sequence[str],
    warnings: Sequence[str],
) -> RunRecord:
    """Create the record of a run that begins now.

    Args:
        scenario: loaded scenario, whose own warnings come first.
        testbed: name of the testbed, as on the command line.
        backend: backend that shapes the links.
        command: command line.
        warnings: further warnings.
    """
    return RunRecord(
        id="",
        scenario=scenario.name,
        status="running",
        command=tuple(command),
        seed=scenario.workload.seed,
        strategy=_record_strategy(scenario) if scenario.trains else NO_TRAINING,
        versions=fingerprint.list_versions(),
        git=fingerprint.git_commit(scenario.folder),
        testbed=testbed,
        backend=backend,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=(*scenario.warnings, *warnings),
    )


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
