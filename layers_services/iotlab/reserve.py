"""Reservation of boards on FIT IoT-LAB, their preparation, and their release."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from laggard.core.errors import DeploymentError, LaggardError
from laggard.core.hosts import Host
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.iotlab.client import OVER, Board, IotlabClient
from laggard.layers_services.iotlab.plan import BoardGroup, IotlabPlan
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.ssh.first_login import await_login
from laggard.layers_services.ssh.host_keys import ReservationKeys

TESTBED = "iotlab"
BOOT_S = 300.0
"""Seconds in which a board must answer SSH after the experiment has begun."""

_SHOW_ADDRESS = "ip -o -4 address show scope global"
_log = logging.getLogger(__name__)

JobsRecorder = Callable[[tuple[ReservedJob, ...]], None]


@dataclass(frozen=True)
class HeldBoards:
    """Boards of a running experiment.

    Attributes:
        client: client of the API.
        job: the experiment.
        machines: one machine per host, in the order of the hosts.
        end_s: `time.monotonic()` at which the experiment ends.
    """

    client: IotlabClient
    job: ReservedJob
    machines: tuple[Machine, ...]
    end_s: float

    def release(self) -> ReservedJob:
        """End the experiment, and return it as it is then."""
        return release_experiment(self.client, self.job)


def hold_boards(
    client: IotlabClient,
    plan: IotlabPlan,
    hosts: Sequence[Host],
    name: str,
    keys: ReservationKeys,
    on_job_changed: JobsRecorder,
    timeout_s: float,
) -> HeldBoards:
    """Reserve boards, wait for them, and give them to hosts; end the experiment if that fails.

    Args:
        client: client of the API.
        plan: planned reservation.
        hosts: all hosts of the scenario, in order.
        name: unique name of the experiment.
        keys: host keys of the reservation.
        on_job_changed: called before and after every change of the experiment.
        timeout_s: longest wait for its begin.

    Raises:
        DeploymentError: IoT-LAB did not give the boards, or a board does not answer.
        InputError: IoT-LAB refuses the account.
    """
    job = ReservedJob(
        testbed=TESTBED, site=" ".join(plan.sites), job_id=0, name=name, nodes=plan.boards
    )
    # Recorded before it exists, so that a killed run can still find it by its name.
    on_job_changed((job,))
    try:
        job = job.model_copy(update={"job_id": client.submit(plan, name)})
        on_job_changed((job,))
        _wait_until_running(client, job, timeout_s)
        end_s = time.monotonic() + 60.0 * plan.minutes
        boards = _assign(plan, client.list_boards(job.job_id))
        machines = tuple(_reach_board(host, boards[host.name], client.user, keys) for host in hosts)
        return HeldBoards(client, job, machines, end_s)
    except BaseException:
        on_job_changed((release_experiment(client, job),))
        raise


def _wait_until_running(client: IotlabClient, job: ReservedJob, timeout_s: float) -> None:
    state = ""

    def has_begun() -> bool:
        nonlocal state
        state = client.look(job.job_id).state
        if state in OVER:
            raise DeploymentError(
                f"experiment {job.job_id} of IoT-LAB ended as {state} before it began — choose"
                " other boards"
            )
        return state == "Running"

    if not client.patience.await_state(has_begun, timeout_s):
        raise DeploymentError(
            f"experiment {job.job_id} of IoT-LAB did not begin within {timeout_s:.0f} s (it is"
            f" {state}) — try later, or choose other boards"
        )


def _assign(plan: IotlabPlan, boards: Sequence[Board]) -> Mapping[str, Board]:
    """Return the board of every host."""
    left, found = list(boards), dict[str, Board]()
    for group in plan.groups:
        for position, host in enumerate(group.hosts):
            board = next((each for each in left if _suits(each, group, position)), None)
            if board is None:
                raise DeploymentError(
                    f"IoT-LAB gave {len(boards)} boards, and none for {host} — choose other boards"
                )
            left.remove(board)
            found[host] = board
    return found


def _suits(board: Board, group: BoardGroup, position: int) -> bool:
    if group.boards:
        return board.network_address == group.boards[position]
    return (board.site, board.archi) == (group.site, group.archi)


def _reach_board(host: Host, board: Board, user: str, keys: ReservationKeys) -> Machine:
    """Wait until a board answers SSH, and return it with its address."""
    access = Access(
        f"node-{board.network_address}",
        gateway=f"{user}@{board.site}.iot-lab.info",
        options=keys.options,
    )
    address = _find_address(await_login(access, _SHOW_ADDRESS, BOOT_S))
    return Machine(replace(host, address=address, ipv6=()), access)


def _find_address(shown: str) -> str:
    """Return the first IPv4 address that a board lists.

    Raises:
        DeploymentError: it lists none.
    """
    for text in re.findall(r"\binet (\d{1,3}(?:\.\d{1,3}){3})/", shown[:10_000]):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            continue
    raise DeploymentError("a board lists no IPv4 address of its own — choose another board")


def release_experiment(client: IotlabClient, job: ReservedJob) -> ReservedJob:
    """End an experiment and wait until IoT-LAB confirms the end.

    Args:
        client: client of the API.
        job: the experiment; one of number 0 is searched by its name.

    Returns:
        The experiment, with its number if it was found, and with `released` set if IoT-LAB
        confirmed the end. If it did not, a warning says how to end it.
    """
    try:
        numbers = [job.job_id] if job.job_id else [each.id for each in client.find(job.name)]
        for number in numbers:
            job = job.model_copy(update={"job_id": number})
            client.stop(number)
        limit_s = client.patience.release_s
        if not client.patience.await_state(
            lambda: all(client.look(number).state in OVER for number in numbers), limit_s
        ):
            raise DeploymentError(f"experiment {job.job_id} did not end in {limit_s:.0f} s")
    except LaggardError as error:
        _log.warning("%s; %s", error, describe_release(job))
        return job
    return job.model_copy(update={"released": True})


def describe_release(job: ReservedJob) -> str:
    """Return how the user can end an experiment."""
    number = f" -i {job.job_id}" if job.job_id else f", the one named {job.name}"
    return f"experiment {job.name} may still hold boards: run `iotlab-experiment stop{number}`"
