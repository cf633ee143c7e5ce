"""What runs inside the sandbox: bring the continuum up, verify it, train on it, put its records
down.

Order matters. The fork server is forked first, before anything here has threads; its imports go on
while the links are built and measured; CPU shares are verified when the imports are done, since
they would steal the cores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from laggard.errors import FidelityError
from laggard.experiments.continuum import bring_up
from laggard.experiments.guarding import require_faithful
from laggard.experiments.job import Job
from laggard.experiments.recording import record_failure
from laggard.experiments.training import train
from laggard.experiments.watch_plan import WATCHER
from laggard.layers_services.e2clab_bridge import Stage, run_workflow
from laggard.layers_services.launch import ForkServer
from laggard.layers_services.local.provider import enoslib_roles
from laggard.run_schema import FidelityCheck
from laggard.workloads.plan import ENVIRONMENT, PRELOAD

IMPORT_TIMEOUT_S = 180.0


def control(job: Job) -> int:
    """Run one job to its end inside the sandbox; whatever happens is in the run's record.

    Returns:
        The exit status of `laggard run`.
    """
    try:
        _run(job)
    # The last place that can still record a defect.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return record_failure(job.journal, error)
    finally:
        job.journal.display.close()
    return 0


def _run(job: Job) -> None:
    os.environ.update(ENVIRONMENT)
    with ExitStack() as stack:
        server = stack.enter_context(
            ForkServer.start((*PRELOAD, WATCHER), log=job.logs / "imports.log")
        )
        continuum = stack.enter_context(bring_up(job, lambda: server.wait_ready(IMPORT_TIMEOUT_S)))
        require_fidelity(job.folder, continuum.checks)
        run_tasks(job, "prepare")
        run_tasks(job, "launch")
        slips = train(job, continuum, server)
        run_tasks(job, "finalize")
        require_faithful(job.folder, slips)


def run_tasks(job: Job, stage: Stage) -> None:
    """The user's own Ansible tasks; a workflow without any costs nothing."""
    if not any(stage in play.model_fields_set for play in job.scenario.workflow.plays):
        return
    hosts = job.scenario.hosts
    with job.journal.stage(f"workflow: {stage}"):
        roles, _ = enoslib_roles(hosts)
        output = job.folder / "workflow"
        output.mkdir(exist_ok=True)
        workflow = job.journal.folder.scenario / "workflow.yaml"
        run_workflow(
            job.scenario.folder, workflow, stage, roles, hosts, output, app_conf=job.app_conf
        )


def require_fidelity(folder: Path, checks: Sequence[FidelityCheck]) -> None:
    """Put `fidelity.json` down.

    Raises:
        FidelityError: a promise is not kept.
    """
    document = [check.model_dump(mode="json") for check in checks]
    (folder / "fidelity.json").write_text(json.dumps(document, indent=1) + "\n")
    missed = [check for check in checks if not check.ok]
    if missed:
        text = "\n".join(f"  {_told(check)}" for check in missed)
        raise FidelityError(
            f"{len(missed)} of {len(checks)} promises of the emulation are not kept:\n{text}"
        )


def _told(check: FidelityCheck) -> str:
    where = f"{check.src} -> {check.dst}" if check.dst else check.src
    detail = f" ({check.detail})" if check.detail else ""
    return (
        f"{check.kind} {where}: asked {check.requested:.4g} {check.unit}, measured"
        f" {check.measured:.4g}, tolerance {check.tolerance:.2g}{detail}"
    )
