"""Messages for each fault of Grid'5000, and number of jobs left, on a stand-in.

    python benchmarks/g5k_faults.py [CASE ...]

EnOSlib's own provider is used. Every case is a process of its own in a sandbox: a stand-in
Grid'5000 whose nodes are namespaces with real SSH servers, a fault, a reservation, and its
release. `--json CASE` prints one case's row as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from laggard.core.corrections.model_problems import validate_model  # noqa: E402
from laggard.core.errors import LaggardError  # noqa: E402
from laggard.core.hosts import Host  # noqa: E402
from laggard.core.run_schema import ReservedJob  # noqa: E402
from laggard.layers_services.compile import compile_hosts  # noqa: E402
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml  # noqa: E402
from laggard.layers_services.g5k.api import Pace  # noqa: E402
from laggard.layers_services.g5k.plan import plan_g5k  # noqa: E402
from laggard.layers_services.g5k.request import G5kOptions, G5kPlan, JobReference  # noqa: E402
from laggard.layers_services.local import sandbox  # noqa: E402
from laggard.layers_services.model import LayersServices  # noqa: E402
from tests.testbed.faults import Fault  # noqa: E402
from tests.testbed.oar import Timing  # noqa: E402
from tests.testbed.stand_in import PASSWORD, StandIn, stand_in  # noqa: E402

PACE = Pace(request_timeout_s=2.0, backoff_s=0.2, poll_s=0.3)
SMALL = Pace(request_timeout_s=2.0, attempts=2, backoff_s=0.1, poll_s=0.3)
ONE_SITE = """\
environment: {g5k: {cluster: parasilo}}
layers:
- name: edge
  services: [{name: trainer, quantity: 2}]
"""
TWO_SITES = """\
environment: {g5k: {cluster: parasilo, job_type: [exotic]}}
layers:
- name: cloud
  services: [{name: trainer, cluster: gemini}]
- name: edge
  services: [{name: trainer, quantity: 2}]
"""
DEPLOYED = G5kOptions(env_name="debian12-nfs")
SECOND = "parasilo-2.rennes.grid5000.fr"
Details = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Case:
    """Faults, and the reservation made under them.

    Attributes:
        faults: faults to inject, with their details.
        scenario: text of `layers_services.yaml`.
        options: options of the reservation.
        patience_s: longest wait for a job to start, in seconds.
        pace: time-outs and pauses of the API client.
        password: password of the account.
        interrupted: whether the user interrupts the wait.
        reused: whether the jobs are used again, as by `--job`.
        timing: delays of the stand-in's jobs.
    """

    faults: Sequence[tuple[Fault, Details]] = ()
    scenario: str = ONE_SITE
    options: G5kOptions = field(default_factory=G5kOptions)
    patience_s: float = 30.0
    pace: Pace = PACE
    password: str = PASSWORD
    interrupted: bool = False
    reused: bool = False
    timing: Timing = field(default_factory=Timing)


CASES: Mapping[str, Case] = {
    "none, two sites": Case(scenario=TWO_SITES, options=G5kOptions(walltime="62:00:00")),
    "none, deployed, in a VLAN": Case(options=G5kOptions(env_name="debian12-nfs", kavlan=True)),
    "none, in a job that is there": Case(reused=True),
    "wrong password": Case(password="wrong"),  # noqa: S106 - for the stand-in only
    "401 in between": Case([(Fault.UNAUTHORIZED, {"method": "POST"})]),
    "three 500s": Case([(Fault.SERVER_ERRORS, {})]),
    "three 500s to the submission": Case([(Fault.SERVER_ERRORS, {"method": "POST", "times": 3})]),
    "500 for ever": Case([(Fault.SERVER_ERRORS, {"times": 100_000})], pace=SMALL),
    "slow answers": Case([(Fault.SLOW_ANSWERS, {"times": 2, "delay_s": 3.0, "method": "GET"})]),
    # The job of the second submission must not run before the first submission is processed.
    "slow answer to the submission": Case(
        [(Fault.SLOW_ANSWERS, {"delay_s": 3.0, "method": "POST"})], timing=Timing(waiting_s=2.5)
    ),
    "a job that never starts": Case([(Fault.JOB_NEVER_STARTS, {})], patience_s=3.0),
    "killed by the walltime": Case([(Fault.KILLED_BY_WALLTIME, {"delay_s": 0.0})]),
    "Reservation not valid": Case(
        [(Fault.RESERVATION_NOT_VALID, {})], options=G5kOptions(reservation="2031-03-04 19:00:00")
    ),
    "Reservation not valid, two sites": Case(
        [(Fault.RESERVATION_NOT_VALID, {})], scenario=TWO_SITES
    ),
    "a node fails to deploy": Case([(Fault.DEPLOYMENT_FAILS, {"node": SECOND})], options=DEPLOYED),
    "a node fails to deploy once": Case(
        [(Fault.DEPLOYMENT_FAILS, {"node": SECOND, "times": 1})], options=DEPLOYED
    ),
    "a node that stops answering SSH": Case(
        [(Fault.NODE_SILENT, {"node": SECOND, "delay_s": 0.0})]
    ),
    "a release that fails twice": Case([(Fault.RELEASE_FAILS, {})]),
    "interrupted while it waits": Case(interrupted=True),
}


@dataclass(frozen=True)
class Row:
    """Result of a case.

    Attributes:
        case: name of the case.
        seen: message that the user sees.
        error: class of the exception; empty for none.
        machines: SSH addresses of the reserved machines.
        addresses: addresses of the machines on the experiment network, as Laggard knows them.
        reached: answer of each machine to a command over SSH.
        made: number of jobs submitted.
        held: number of jobs while the nodes were reserved.
        kept: number of jobs after a run that reused them.
        left: number of jobs at the end.
        told: jobs as last recorded in the run folder.
        calls: number of API calls.
        statuses: all HTTP statuses of the API's answers.
        seconds: duration of the case.
    """

    case: str
    seen: str
    error: str
    machines: tuple[str, ...]
    addresses: tuple[str, ...]
    reached: tuple[str, ...]
    made: int
    held: int
    kept: int
    left: int
    told: tuple[dict[str, object], ...]
    calls: int
    statuses: tuple[int, ...]
    seconds: float


def play(name: str, grid: StandIn, home: Path) -> Row:
    """Reserve and release under the faults of a case."""
    from laggard.layers_services.g5k.reserve import reserve

    case = CASES[name]
    grid.write_account(home, password=case.password)
    os.environ["HOME"] = str(home)
    for fault, details in case.faults:
        grid.inject(fault, **details)
    layers = validate_model(
        parse_e2clab_yaml(case.scenario, "layers_services.yaml"), LayersServices
    )
    plan, hosts = plan_g5k(layers, case.options), compile_hosts(layers)
    told: list[tuple[ReservedJob, ...]] = []

    def tell(jobs: tuple[ReservedJob, ...]) -> None:
        told.append(jobs)
        if case.interrupted and any(job.job_id and not job.released for job in jobs):
            raise KeyboardInterrupt

    began = time.monotonic()
    machines: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    error, during, kept = "", 0, 0
    try:
        reservation = reserve(
            plan, hosts, "laggard-case", tell, home, case.patience_s, case.pace, auto_jump=False
        )
        seconds = time.monotonic() - began
        seen = f"{len(reservation.machines)} nodes after {seconds:.1f} s"
        machines = tuple(machine.access.address for machine in reservation.machines)
        addresses = tuple(machine.host.address for machine in reservation.machines)
        reached = tuple(_whoami(machine.access.ssh_arguments()) for machine in reservation.machines)
        during = len(grid.held_jobs())
        if case.reused:
            kept = _use_again(plan, hosts, reservation.jobs, grid)
        told.append(reservation.release())
    except (LaggardError, KeyboardInterrupt) as raised:
        seen, error = str(raised), type(raised).__name__
    return Row(
        case=name,
        seen=seen,
        error=error,
        machines=machines,
        addresses=addresses,
        reached=reached,
        made=sum(
            call.method == "POST" and call.path.endswith("/jobs") and call.status == 201
            for call in grid.calls()
        ),
        held=during,
        kept=kept,
        left=len(grid.held_jobs()),
        told=tuple(job.model_dump() for job in told[-1]) if told else (),
        calls=len(grid.calls()),
        statuses=tuple(sorted({call.status for call in grid.calls()})),
        seconds=round(time.monotonic() - began, 1),
    )


def _use_again(
    plan: G5kPlan, hosts: Sequence[Host], jobs: Sequence[ReservedJob], grid: StandIn
) -> int:
    """Use these jobs as a later run would, release them, and count the jobs still held."""
    from laggard.layers_services.g5k.reserve import reserve

    there = replace(plan, reused=tuple(JobReference(job.site, job.job_id) for job in jobs))
    later = Path(tempfile.mkdtemp(dir=Path.cwd()))
    again = reserve(
        there, hosts, "laggard-later", _nothing_is_told, later, pace=PACE, auto_jump=False
    )
    again.release()
    return len(grid.held_jobs())


def _nothing_is_told(jobs: tuple[ReservedJob, ...]) -> None:
    raise AssertionError(f"a reused job must not be recorded for release: {jobs}")


def _whoami(ssh_arguments: Sequence[str]) -> str:
    ask = "id -un; hostname; ip -4 -o address show eth0 | awk '{print $4}'"
    done = subprocess.run(["ssh", *ssh_arguments, ask], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split()) or done.stderr.strip()


def one(name: str) -> int:
    """Play a case in a sandbox and print its row as JSON."""

    def inside() -> int:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            os.chdir(folder)
            nodes = Path.cwd() / "nodes"
            with stand_in(nodes, {"gemini": 1, "parasilo": 2}, CASES[name].timing) as grid:
                row = play(name, grid, Path.cwd() / "home")
            os.chdir("/")
        print(json.dumps(asdict(row)), flush=True)
        return 0

    return sandbox.run_in_sandbox(inside)


def main(arguments: Sequence[str]) -> int:
    """Print the table, or one row as JSON."""
    if arguments[:1] == ["--json"]:
        return one(arguments[1])
    print("| fault | message to the user | seconds | calls | jobs made | jobs left |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in arguments or CASES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--json", name]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"| {name} | {' '.join(done.stderr.split())[-500:]} | | | | |", flush=True)
            continue
        row = Row(**json.loads(done.stdout.splitlines()[-1]))
        seen = " ".join(f"{row.error}: {row.seen}".removeprefix(": ").split())
        print(
            f"| {name} | {seen} | {row.seconds} | {row.calls} | {row.made} | {row.left} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
