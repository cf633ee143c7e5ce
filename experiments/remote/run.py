"""One run on a remote testbed, from reservation to report.

Everything that needs the machines happens while they are held; what does not, the analysis, comes
after they were given back. Data comes home before the release is even tried.
"""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack
from pathlib import Path

from laggard.errors import DeploymentError
from laggard.experiments.collecting import analyse_training, tell_without_training
from laggard.experiments.ended_by_signals import ended_by_signals
from laggard.experiments.guarding import require_faithful
from laggard.experiments.job import Journal
from laggard.experiments.progress import SilentDisplay, TextDisplay
from laggard.experiments.recording import first_record, record_failure
from laggard.experiments.remote.crew import Crew
from laggard.experiments.remote.e2clab_stages import e2clab_stages
from laggard.experiments.remote.energy import record_energy
from laggard.experiments.remote.gather import Gathered, Way, gather
from laggard.experiments.remote.ground import (
    Claim,
    Prepared,
    RemoteOptions,
    claim,
    make_ready,
    placed_on,
    reserved,
)
from laggard.experiments.remote.links import needs_netem
from laggard.experiments.remote.planning import evaluator_host, plan_agents
from laggard.experiments.remote.training import Course, Trained, bring_up, train
from laggard.experiments.run_store import RunFolder
from laggard.experiments.scenario import Scenario
from laggard.layers_services.machine import Machine
from laggard.layers_services.remote_processes import RemoteProcesses
from laggard.layers_services.ssh_config import write_ssh_config
from laggard.run_schema import RunRecord
from laggard.workloads.gate_relay import GateHub
from laggard.workloads.plan import ENVIRONMENT
from laggard.workloads.tally_relay import TallyHub

AGENT = "laggard.experiments.remote.agent"


def execute_remote(scenario: Scenario, options: RemoteOptions) -> tuple[RunRecord, Path]:
    """Run a scenario to its end.

    Args:
        scenario: as loaded.
        options: where and how.

    Returns:
        The final record, and the run folder; a failed run is a record that says so.

    Raises:
        InputError: the inventory or the reservation cannot be used; nothing was started.
        RunFolderError: the run folder cannot be made.
    """
    plan = claim(scenario, options)
    told = () if isinstance(plan, tuple) else tuple(str(warning) for warning in plan.warnings)
    folder, record = RunFolder.create(
        options.runs, first_record(scenario, options.testbed, "netem", options.command, told)
    )
    with folder:
        journal = Journal(record, folder, SilentDisplay() if options.quiet else TextDisplay())
        folder.logs.mkdir()
        folder.write_scenario(scenario.files())
        with ended_by_signals():
            holder = _attempt(scenario, plan, options, journal)
        if options.testbed == "g5k" and holder.trained is not None:
            record_energy(journal, holder.machines, holder.trained.began_s, holder.trained.ended_s)
        if holder.gathered is not None and holder.gathered.began:
            analyse_training(journal, scenario, holder.gathered.done)
        else:
            tell_without_training(folder.path)
        journal.display.close()
        return journal.record, folder.path


def _attempt(scenario: Scenario, plan: Claim, options: RemoteOptions, journal: Journal) -> _Holder:
    """The run on its machines; whatever happens is in the record, and the machines are given
    back.
    """
    holder, started_ns = _Holder(), time.monotonic_ns()
    try:
        with reserved(scenario, plan, options.patience_s, journal) as ground:
            shaped = bool(scenario.links.pairs or scenario.links.access or scenario.links.shared)
            netem = needs_netem(scenario.links, scenario.changes)
            ranks = [host.name for host in scenario.ranks]
            ready = make_ready(ground, ranks, journal, shaped=shaped, netem=netem)
            course = Course(journal, netem, ground.ends_s, started_ns, options.app_conf)
            _run(placed_on(scenario, ready.machines), ready, course, holder)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place that can still put a defect on record
        record_failure(journal, error)
    return holder


class _Holder:
    """What a run has come to, also where something failed afterwards.

    Attributes:
        gathered: what has come home.
        machines: on which it ran.
        trained: None where training was not finished.
    """

    gathered: Gathered | None = None
    machines: tuple[Machine, ...] = ()
    trained: Trained | None = None


def _run(scenario: Scenario, ready: Prepared, course: Course, holder: _Holder) -> None:
    journal = course.journal
    holder.machines = ready.machines
    plans = plan_agents(scenario, ready, journal.record.id)
    ssh_config = write_ssh_config(ready.machines, journal.folder.path / "ssh_config")
    # Libraries that the agent imports would start threads without these, and a process with threads
    # cannot fork workers.
    settings = ("env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()))
    commands = {
        name: shlex.join((*settings, node.python, "-m", AGENT))
        for name, node in ready.nodes.items()
    }
    machines, head = [machine.alias for machine in ready.machines], scenario.ranks[0].name
    hubs = GateHub(machines, head), TallyHub(machines, evaluator_host(scenario))
    with ExitStack() as stack:
        stages = stack.enter_context(e2clab_stages(scenario, ready, journal, course.app_conf))
        processes = stack.enter_context(RemoteProcesses(ready.machines, ssh_config, commands))
        crew = Crew(processes, plans, *hubs, journal.folder.logs)
        with journal.stage("start agents", f"one on each of {len(plans)} nodes"):
            crew.start()
            crew.call_all("fingerprint", timeout_s=60.0)
        with bring_up(scenario, ready, crew, course) as links:
            stages.run("prepare")
            stages.run("launch")
            try:
                holder.trained = train(scenario, crew, links, course)
            finally:
                with journal.stage("collect"):
                    way = Way(ssh_config, {name: node.python for name, node in ready.nodes.items()})
                    holder.gathered = gather(scenario, crew, journal.folder.path, way)
        came = [name for name in plans if name not in holder.gathered.missing]
        crew.call_all("leave", {name: {} for name in came})
        stages.run("finalize")
        if holder.gathered.missing:
            raise DeploymentError(_not_home(holder.gathered))
        require_faithful(journal.folder.path, holder.trained.slips)


def _not_home(gathered: Gathered) -> str:
    where = "\n".join(f"  {name}: {folder}" for name, folder in gathered.missing.items())
    return f"the data of {len(gathered.missing)} nodes did not come home; it lies there in\n{where}"
