"""Fetch of a training's files from its nodes, and their conversion to the run folder's tables."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from laggard.core.errors import DeploymentError, LaggardError, RunFolderError
from laggard.core.files.output_files import write_json
from laggard.core.node_values import describe_invalid
from laggard.core.virtual_time import Dilation
from laggard.layers_services.ssh.fetch_files import MANIFEST, RemoteFile, fetch_files
from laggard.layers_services.ssh.transfer_session import open_session
from laggard.remote.agent.node_clock import load_clock_fit
from laggard.remote.agent.operations import FINALIZE_CLOCK, LIST_FILES
from laggard.remote.agent_plans import find_evaluator_host, find_opening_host
from laggard.remote.agent_pool import AgentPool
from laggard.run_folder.counters import COUNTERS_FILE
from laggard.scenario.load import Scenario
from laggard.workloads.output.training_end import TrainingEnd, read_training_end
from laggard.workloads.output.worker_output import WorkerOutputDir

if TYPE_CHECKING:
    from laggard.workloads.tracing.source_rows import SourceRows

FETCHED_FOLDER = "nodes"
"""Folder of the nodes' files below the run folder. It is removed when the tables are written."""

_MANIFEST_TIMEOUT_S = 120.0
_MOST_MANIFEST_BYTES = 4 << 20
_MOST_FETCHES = 8
_PUMP_S = 0.2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FetchedResults:
    """Results that were fetched from the nodes.

    Attributes:
        has_begun: whether the first step began.
        done: content of `done.json`, written by rank 0, the coordinator or the server; None if
            training did not reach its end.
        missing_hosts: folder of the run on each node whose data was not fetched, with the reason,
            by host name.
    """

    has_begun: bool
    done: TrainingEnd | None
    missing_hosts: Mapping[str, str]


@dataclass(frozen=True)
class FetchConfig:
    """Access to the nodes' files.

    Attributes:
        ssh_config: configuration file for ssh.
        pythons: path of the Python interpreter on each node, by host name.
    """

    ssh_config: Path
    pythons: Mapping[str, str]


def fetch_results(
    scenario: Scenario, agent_pool: AgentPool, run_folder: Path, config: FetchConfig
) -> FetchedResults:
    """Fetch all nodes' files and write the tables of the run folder.

    A node that cannot be reached, or whose files are damaged, is left out and reported in the log.
    Without the node of the rank that opened the start barrier, which has the time of the first
    step, no tables are written. The files of the other nodes then stay in `FETCHED_FOLDER`.

    Args:
        scenario: scenario of the run.
        agent_pool: agents of all nodes.
        run_folder: folder that gets the tables, the logs and the checkpoint.
        config: access to the nodes' files.
    """
    from laggard.workloads.plan import sampled_hosts
    from laggard.workloads.tracing.collect import collect_from

    agent_pool.tolerate_losses()
    fetched_folder = run_folder / FETCHED_FOLDER
    fetched_folder.mkdir(exist_ok=True)
    failures = _fetch_all(agent_pool, config, fetched_folder)
    sampled = sampled_hosts(scenario.workload, scenario.hosts)
    head, evaluator = find_opening_host(scenario), find_evaluator_host(scenario)
    # The head comes first: `collect_from` reads the start time and the evaluations from it.
    fetched = {
        name: fetched_folder / name
        for name in dict.fromkeys((head, *agent_pool.plans))
        if name not in failures
    }
    if evaluator != head and {evaluator, head} <= fetched.keys():
        _merge_evaluator_output(
            WorkerOutputDir(fetched[evaluator] / "workers"),
            WorkerOutputDir(fetched[head] / "workers"),
        )
    sources: dict[str, SourceRows] = {}
    for name in [name for name in fetched if name in sampled]:
        try:
            sources[name] = _load_node(name, fetched[name], scenario, sampled)
        except RunFolderError as error:
            _log.warning("%s: its data is not used: %s", name, error)
            failures[name] = str(error)
    missing = {
        name: f"{agent_pool.plans[name].folder} ({reason})" for name, reason in failures.items()
    }
    if head not in sources or sources[head].zero_ns is None:
        return FetchedResults(has_begun=False, done=None, missing_hosts=missing)
    collect_from(
        list(sources.values()), run_folder, scenario.ranks, Dilation(1.0), scenario.shares, sampled
    )
    _write_traffic_counters(list(sources.values()), run_folder)
    output_dir = WorkerOutputDir(fetched[head] / "workers")
    server_dir = WorkerOutputDir(fetched.get(evaluator, fetched[head]) / "workers")
    if server_dir.updates.exists():
        from laggard.workloads.serving.pay_clients import pay_recorded_clients

        pay_recorded_clients(scenario.workload, scenario.ranks, server_dir)
    for path in (output_dir.checkpoint, output_dir.weights, server_dir.ledger):
        if path.exists():
            shutil.copy(path, run_folder / path.name)
    done = read_training_end(output_dir.done)
    shutil.rmtree(fetched_folder)
    return FetchedResults(has_begun=True, done=done, missing_hosts=missing)


def _fetch_all(agent_pool: AgentPool, config: FetchConfig, fetched_folder: Path) -> dict[str, str]:
    """Fetch the files of all nodes and return the reason for each failure, by host name.

    Several nodes are fetched at once, so that a slow one does not delay the others.
    """
    reasons = dict.fromkeys(agent_pool.plans, "an error that was not expected; see the log")
    slots = threading.Semaphore(_MOST_FETCHES)

    def fetch(name: str) -> None:
        with slots:
            reasons[name] = _fetch_node(name, agent_pool, config, fetched_folder / name)

    # The threads are daemons, so that an interrupt does not wait for a transfer.
    threads = [threading.Thread(target=fetch, args=(name,), daemon=True) for name in reasons]
    for thread in threads:
        thread.start()
    # The agents that wait for their turn must still hear from the controller.
    while any(thread.is_alive() for thread in threads):
        agent_pool.poll_events(_PUMP_S)
    return {name: reason for name, reason in reasons.items() if reason}


def _load_node(name: str, folder: Path, scenario: Scenario, sampled: Sequence[str]) -> SourceRows:
    """Read the fetched files of one node.

    Raises:
        RunFolderError: they are damaged.
    """
    from laggard.workloads.tracing.source_rows import Source, load_source

    ranks = tuple(rank for rank, host in enumerate(scenario.ranks) if host.name == name)
    has_server = scenario.workload.strategy.uses_server and name == find_evaluator_host(scenario)
    processes = (*ranks, *((len(scenario.ranks),) if has_server else ()))
    source = Source(WorkerOutputDir(folder / "workers"), ranks, load_clock_fit(folder))
    return load_source(source, len(sampled), len(scenario.ranks), processes)


def _merge_evaluator_output(evaluated: WorkerOutputDir, head: WorkerOutputDir) -> None:
    """Copy the files of the evaluator's node to the folder of rank 0's node.

    The result looks as if one machine had written both.
    """
    head.done.unlink(missing_ok=True)
    for evaluator_path, head_path in (
        (evaluated.evaluations, head.evaluations),
        (evaluated.done, head.done),
        (evaluated.weights, head.weights),
        (evaluated.stream, head.stream),
        (evaluated.task_accuracies, head.task_accuracies),
        (evaluated.client_accuracies, head.client_accuracies),
    ):
        if evaluator_path.exists():
            shutil.copy(evaluator_path, head_path)


def _write_traffic_counters(sources: Sequence[SourceRows], run_folder: Path) -> None:
    """Add the bytes that every process sent to `counters.json`, beside the counters of the links.

    The file is missing if training did not reach its end; then this does nothing.
    """
    counters = run_folder / COUNTERS_FILE
    if not counters.exists():
        return
    traffic = sorted(
        (each for source in sources for each in source.traffic), key=lambda each: each.node
    )
    document = json.loads(counters.read_text()) | {"traffic": [asdict(each) for each in traffic]}
    write_json(counters, document)


def _fetch_node(name: str, agent_pool: AgentPool, config: FetchConfig, into: Path) -> str:
    """Fetch one node's files; return the reason, with a warning in the log, if that fails."""
    try:
        _finalize_node_clock(name, agent_pool)
        files = _request_manifest(name, agent_pool, config)
        folder = agent_pool.plans[name].folder
        fetch_files(name, config.ssh_config, config.pythons[name], folder, files, into)
    except LaggardError as error:
        _log.warning("could not fetch the data of a node: %s", error)
        return str(error)
    return agent_pool.garbled.get(name, "")


def _finalize_node_clock(name: str, agent_pool: AgentPool) -> None:
    """Compare the node's clock a last time; if that fails, the earlier exchanges must do."""
    try:
        agent_pool.call(name, FINALIZE_CLOCK, timeout_s=_MANIFEST_TIMEOUT_S)
    except LaggardError as error:
        _log.info("%s", error)


def _request_manifest(
    name: str, agent_pool: AgentPool, config: FetchConfig
) -> dict[str, RemoteFile]:
    """Return size and hash of the files that the run left on a node.

    The agent answers if it is still there. Otherwise a new SSH session runs the same code.

    Raises:
        DeploymentError: the node is garbled, or did not list its files.
    """
    try:
        return agent_pool.call(name, LIST_FILES, timeout_s=_MANIFEST_TIMEOUT_S)
    except LaggardError as error:
        if name in agent_pool.garbled:
            raise
        _log.info("%s", error)
    command = shlex.join(
        (
            config.pythons[name],
            "-m",
            "laggard.remote.agent.request_handlers",
            agent_pool.plans[name].folder,
        )
    )
    ssh = ("ssh", "-F", str(config.ssh_config), "-T", name)
    try:
        with open_session(ssh, command, _MANIFEST_TIMEOUT_S) as session:
            return MANIFEST.validate_json(session.read_rest(_MOST_MANIFEST_BYTES))
    except ValidationError as error:
        reason = describe_invalid(error)
        raise DeploymentError(f"{name}: its list of files is garbled: {reason}") from error
    except DeploymentError as error:
        raise DeploymentError(f"{name} did not list the files of the run: {error}") from error
