"""What a training left on its nodes comes home, and becomes the tables of the run folder."""

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

from laggard.errors import DeploymentError, LaggardError
from laggard.experiments.remote.crew import Crew
from laggard.experiments.remote.node_clock import read_clock
from laggard.experiments.remote.planning import evaluator_host
from laggard.experiments.scenario import Scenario
from laggard.layers_services.fetch import RemoteFile, fetch_files
from laggard.virtual_time import Dilation
from laggard.workloads.spool import Spool

if TYPE_CHECKING:
    from laggard.workloads.tracing.collect import Source

_MANIFEST_TIMEOUT_S = 120.0
_MANIFEST = TypeAdapter(dict[str, RemoteFile])
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gathered:
    """What came home.

    Attributes:
        began: whether the first step did.
        done: what rank 0, the referee or the server said of the end; None where it did not come to
            it.
        missing: hosts whose data did not come home, with where it lies.
    """

    began: bool
    done: Mapping[str, object] | None
    missing: Mapping[str, str]


@dataclass(frozen=True)
class Way:
    """How files come home: what sftp reads, and each node's Python."""

    ssh_config: Path
    pythons: Mapping[str, str]


def gather(scenario: Scenario, crew: Crew, run_folder: Path, way: Way) -> Gathered:
    """Fetch all nodes' files and write the tables; a node that cannot be reached is left out and
    told in the log.

    Args:
        scenario: what was run.
        crew: the agents.
        run_folder: gets the tables, the logs, and the checkpoint.
        way: home.
    """
    from laggard.workloads.plan import sampled_hosts
    from laggard.workloads.tracing.collect import Source, collect_from

    crew.make_do()
    home = run_folder / "spool"
    fetched = {name: home / name for name in crew.plans if _fetch(name, crew, way, home / name)}
    missing = {name: plan.folder for name, plan in crew.plans.items() if name not in fetched}
    head = scenario.ranks[0].name
    if head not in fetched or not Spool(fetched[head] / "spool").zero.exists():
        return Gathered(began=False, done=None, missing=missing)
    spool, evaluated = Spool(fetched[head] / "spool"), evaluator_host(scenario)
    if evaluated != head and evaluated in fetched:
        _bring_together(Spool(fetched[evaluated] / "spool"), spool)
    sampled = sampled_hosts(scenario.workload, scenario.hosts)
    ordered = [head, *(name for name in fetched if name != head)]
    ranks = {
        name: tuple(i for i, host in enumerate(scenario.ranks) if host.name == name)
        for name in ordered
    }
    sources = [
        Source(Spool(fetched[name] / "spool"), ranks[name], read_clock(fetched[name]))
        for name in ordered
        if name in sampled
    ]
    collect_from(sources, run_folder, scenario.ranks, Dilation(1.0), scenario.shares, sampled)
    _count_traffic(sources, len(scenario.ranks) + 1, run_folder)
    if spool.checkpoint.exists():
        shutil.copy(spool.checkpoint, run_folder / spool.checkpoint.name)
    done = json.loads(spool.done.read_bytes()) if spool.done.exists() else None
    done = done or None  # one that is empty only told the link sampler that it was over
    shutil.rmtree(home)
    return Gathered(began=True, done=done, missing=missing)


def _bring_together(evaluated: Spool, head: Spool) -> None:
    """What was written where the training was evaluated lies with what rank 0 wrote, as if it had
    been one machine.
    """
    head.done.unlink(missing_ok=True)
    for here, there in ((evaluated.evaluations, head.evaluations), (evaluated.done, head.done)):
        if here.exists():
            shutil.copy(here, there)


def _count_traffic(sources: Sequence[Source], nodes: int, run_folder: Path) -> None:
    """What all processes say that they sent, beside what links carried; not of a training that did
    not come to its end.
    """
    from laggard.workloads.tracing.traffic import read_traffic

    counters = run_folder / "counters.json"
    if not counters.exists():
        return
    traffic = sorted(
        (each for source in sources for each in read_traffic(source.spool, nodes)),
        key=lambda each: each.node,
    )
    document = json.loads(counters.read_text()) | {"traffic": [asdict(each) for each in traffic]}
    counters.write_text(json.dumps(document, indent=1) + "\n")


def _fetch(name: str, crew: Crew, way: Way, into: Path) -> bool:
    try:
        _conclude(name, crew)
        files = _manifest(name, crew, way)
        fetch_files(name, way.ssh_config, crew.plans[name].folder, files, into)
    except LaggardError as error:
        _log.warning("not collected: %s", error)
        return False
    return True


def _conclude(name: str, crew: Crew) -> None:
    """Compare clocks for the last time; a node that cannot has what it has."""
    try:
        crew.call(name, "conclude", timeout_s=_MANIFEST_TIMEOUT_S)
    except LaggardError as error:
        _log.info("%s", error)


def _manifest(name: str, crew: Crew, way: Way) -> dict[str, RemoteFile]:
    """What the run left on a node: its agent says so, or, where that is gone, a new session."""
    try:
        return _MANIFEST.validate_python(crew.call(name, "manifest", timeout_s=_MANIFEST_TIMEOUT_S))
    except LaggardError as error:
        _log.info("%s", error)
    command = shlex.join(
        (way.pythons[name], "-m", "laggard.experiments.remote.tasks", crew.plans[name].folder)
    )
    words = ("ssh", "-F", str(way.ssh_config), name, command)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_MANIFEST_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeploymentError(f"{name} did not say what the run left there: {error}") from error
    if done.returncode != 0:
        raise DeploymentError(f"{name} did not say what the run left there: {done.stderr.strip()}")
    return _MANIFEST.validate_json(done.stdout)
