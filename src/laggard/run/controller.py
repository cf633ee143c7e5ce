"""Controller of a run inside the sandbox: create the continuum, verify it, train, record.

Order matters. The fork server is forked first, before this process has threads. Its imports
continue while the links are built and measured. CPU shares are verified after the imports, because
imports would use the cores.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from laggard.layers_services.e2clab.failed_tasks import LOG_NAME
from laggard.layers_services.e2clab.play_tasks import Stage
from laggard.layers_services.e2clab.workflow import run_workflow
from laggard.layers_services.local.launch import ForkServer
from laggard.layers_services.local.provider import enoslib_roles
from laggard.run.continuum import open_continuum
from laggard.run.run_context import RunContext
from laggard.run.straggler_watcher_plan import WATCHER_MODULE
from laggard.run.training import run_training
from laggard.run_folder.fidelity_checks import record_fidelity, require_recorded_fidelity
from laggard.run_folder.fidelity_violations import require_no_violations
from laggard.run_folder.record import record_failure
from laggard.workloads.plan import ENVIRONMENT, PRELOAD

IMPORT_TIMEOUT_S = 180.0


def run_controller(context: RunContext) -> int:
    """Run one job to its end inside the sandbox; every failure is put into the run's record.

    Returns:
        The exit status of `laggard run`.
    """
    try:
        _run_stages(context)
    # This is the last place that can still record a bug of Laggard.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return record_failure(context.journal, error)
    finally:
        context.journal.display.close()
    return 0


def _run_stages(context: RunContext) -> None:
    # These variables keep imports from starting threads, so they are set before the fork server.
    os.environ.update(ENVIRONMENT)
    with ExitStack() as stack:
        server = stack.enter_context(
            ForkServer.start((*PRELOAD, WATCHER_MODULE), log=context.logs / "imports.log")
        )
        continuum = stack.enter_context(
            open_continuum(context, lambda: server.wait_ready(IMPORT_TIMEOUT_S))
        )
        record_fidelity(context.folder, continuum.checks, context.fidelity)
        run_workflow_stage(context, "prepare")
        run_workflow_stage(context, "launch")
        violations = run_training(context, continuum, server)
        run_workflow_stage(context, "finalize")
        context.journal.warn(require_no_violations(context.folder, violations))
        require_recorded_fidelity(context.folder)


def has_stage(context: RunContext, stage: Stage) -> bool:
    """Return whether any play has tasks of this stage."""
    return any(stage in play.model_fields_set for play in context.scenario.workflow.plays)


def run_workflow_stage(context: RunContext, stage: Stage) -> None:
    """Run the user's Ansible tasks of one stage; a workflow without any costs nothing."""
    if has_stage(context, stage):
        with context.journal.stage(f"workflow: {stage}"):
            run_plays(context, stage)


def run_plays(context: RunContext, stage: Stage) -> None:
    """Run the user's Ansible tasks of one stage, and leave the journal alone."""
    if not has_stage(context, stage):
        return
    hosts = context.scenario.hosts
    roles, _ = enoslib_roles(hosts)
    output = context.folder / "workflow"
    output.mkdir(exist_ok=True)
    run_workflow(
        context.scenario.folder,
        context.journal.folder.scenario / "workflow.yaml",
        stage,
        roles,
        hosts,
        output,
        app_conf=context.scenario.plays.app_conf,
        artifacts_dir=context.scenario.plays.artifacts,
        log=context.logs / LOG_NAME,
    )
