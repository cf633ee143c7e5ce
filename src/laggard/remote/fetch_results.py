"""Fetch of a training's files from its nodes, and their conversion to the run folder's tables."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from laggard.core.errors import DeploymentError, LaggardError
from laggard.core.files.output_files import write_json
from laggard.core.virtual_time import Dilation
from laggard.layers_services.ssh.fetch_files import RemoteFile, fetch_files
from laggard.remote.agent.node_clock import load_clock_fit
from laggard.remote.agent_plans import find_evaluator_host
from laggard.remote.agent_pool import AgentPool
from laggard.scenario.load import Scenario
from laggard.workloads.output.worker_output import WorkerOutputDir

if TYPE_CHECKING:
    from laggard.workloads.tracing.collect import Source

_MANIFEST_TIMEOUT_S = 120.0
_MANIFEST = TypeAdapter(dict[str, RemoteFile])
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FetchedResults:
    """Results that were fetched from the nodes.

    Attributes:
        has_begun: whether the first step began.
        done: content of `done.json`, written by rank 0, the coordinator or the server; None if
            training did not reach its end.
        missing_hosts: folder of the run on each node whose data was not fetched, by host name.
    """

    has_begun: bool
    done: Mapping[str, object] | None
    missing_hosts: Mapping[str, str]


@dataclass(frozen=True)
class FetchConfig:
    """Access to the nodes' files.

    Attributes:
        ssh_config: configuration file for sftp and ssh.
        pythons: path of the Python interpreter on each node, by host name.
    """

    ssh_config: Path
    pythons: Mapping[str, str]


def fetch_results(
    scenario: Scenario, agent_pool: AgentPool, run_folder: Path, config: FetchConfig
) -> FetchedResults:
    """Fetch all nodes' files and write the tables of the run folder.

    A node that cannot be reached is left out and reported in the log.

    Args:
        scenario: scenario of the run.
        agent_pool: agents of all nodes.
        run_folder: folder that gets the tables, the logs and the checkpoint.
        config: access to the nodes' files.
    """
    from laggard.workloads.plan import sampled_hosts
    from laggard.workloads.tracing.collect import Source, collect_from

    agent_pool.tolerate_losses()
    fetched_folder = run_folder / "workers"
    fetched = {
        name: fetched_folder / name
        for name in agent_pool.plans
        if _fetch_node(name, agent_pool, config, fetched_folder / name)
    }
    missing = {name: plan.folder for name, plan in agent_pool.plans.items() if name not in fetched}
    head = scenario.ranks[0].name
    if head not in fetched or not WorkerOutputDir(fetched[head] / "workers").zero.exists():
        return FetchedResults(has_begun=False, done=None, missing_hosts=missing)
    output_dir, evaluated = (
        WorkerOutputDir(fetched[head] / "workers"),
        find_evaluator_host(scenario),
    )
    if evaluated != head and evaluated in fetched:
        _merge_evaluator_output(WorkerOutputDir(fetched[evaluated] / "workers"), output_dir)
    sampled = sampled_hosts(scenario.workload, scenario.hosts)
    # The head comes first: `collect_from` reads the start time and the evaluations from it.
    ordered = [head, *(name for name in fetched if name != head)]
    ranks = {
        name: tuple(i for i, host in enumerate(scenario.ranks) if host.name == name)
        for name in ordered
    }
    sources = [
        Source(
            WorkerOutputDir(fetched[name] / "workers"), ranks[name], load_clock_fit(fetched[name])
        )
        for name in ordered
        if name in sampled
    ]
    collect_from(sources, run_folder, scenario.ranks, Dilation(1.0), scenario.shares, sampled)
    _write_traffic_counters(sources, len(scenario.ranks) + 1, run_folder)
    if output_dir.checkpoint.exists():
        shutil.copy(output_dir.checkpoint, run_folder / output_dir.checkpoint.name)
    done = json.loads(output_dir.done.read_bytes()) if output_dir.done.exists() else None
    # An empty `done.json` comes from the agent, which writes it to end the link sampler.
    done = done or None
    shutil.rmtree(fetched_folder)
    return FetchedResults(has_begun=True, done=done, missing_hosts=missing)


def _merge_evaluator_output(evaluated: WorkerOutputDir, head: WorkerOutputDir) -> None:
    """Copy the files of the evaluator's node to the folder of rank 0's node.

    The result looks as if one machine had written both.
    """
    head.done.unlink(missing_ok=True)
    for evaluator_path, head_path in (
        (evaluated.evaluations, head.evaluations),
        (evaluated.done, head.done),
    ):
        if evaluator_path.exists():
            shutil.copy(evaluator_path, head_path)


def _write_traffic_counters(sources: Sequence[Source], nodes: int, run_folder: Path) -> None:
    """Add the bytes that every process sent to `counters.json`, beside the counters of the links.

    The file is missing if training did not reach its end; then this does nothing.
    """
    from laggard.workloads.tracing.traffic import read_traffic

    counters = run_folder / "counters.json"
    if not counters.exists():
        return
    traffic = sorted(
        (each for source in sources for each in read_traffic(source.output_dir, nodes)),
        key=lambda each: each.node,
    )
    document = json.loads(counters.read_text()) | {"traffic": [asdict(each) for each in traffic]}
    write_json(counters, document)


def _fetch_node(name: str, agent_pool: AgentPool, config: FetchConfig, into: Path) -> bool:
    """Fetch one node's files; return False, with a warning in the log, if that fails."""
    try:
        _finalize_node_clock(name, agent_pool)
        files = _request_manifest(name, agent_pool, config)
        fetch_files(name, config.ssh_config, agent_pool.plans[name].folder, files, into)
    except LaggardError as error:
        _log.warning("could not fetch the data of a node: %s", error)
        return False
    return True


def _finalize_node_clock(name: str, agent_pool: AgentPool) -> None:
    """Compare the node's clock a last time; if that fails, the earlier exchanges must do."""
    try:
        agent_pool.call(name, "finalize_clock", timeout_s=_MANIFEST_TIMEOUT_S)
    except LaggardError as error:
        _log.info("%s", error)


def _request_manifest(
    name: str, agent_pool: AgentPool, config: FetchConfig
) -> dict[str, RemoteFile]:
    """Return size and hash of the files that the run left on a node.

    The agent answers if it is still there. Otherwise a new SSH session runs the same code.
    """
    try:
        return _MANIFEST.validate_python(
            agent_pool.call(name, "manifest", timeout_s=_MANIFEST_TIMEOUT_S)
        )
    except LaggardError as error:
        _log.info("%s", error)
    command = shlex.join(
        (
            config.pythons[name],
            "-m",
            "laggard.remote.agent.request_handlers",
            agent_pool.plans[name].folder,
        )
    )
    words = ("ssh", "-F", str(config.ssh_config), name, command)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_MANIFEST_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeploymentError(f"{name} did not list the files of the run: {error}") from error
    if done.returncode != 0:
        raise DeploymentError(f"{name} did not list the files of the run: {done.stderr.strip()}")
    return _MANIFEST.validate_json(done.stdout)
