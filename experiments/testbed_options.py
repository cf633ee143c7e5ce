"""The command-line options that say where a scenario runs, and what they mean."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from laggard.errors import InputError

if TYPE_CHECKING:
    from laggard.experiments.plan import Description
    from laggard.experiments.remote.ground import RemoteOptions, RemoteTestbed
    from laggard.experiments.scenario import Scenario
    from laggard.layers_services.g5k_request import G5kOptions

Command = TypeVar("Command", bound=Callable[..., object])

_RESERVATION: tuple[tuple[str, dict[str, object]], ...] = (
    (
        "--walltime",
        {"metavar": "HH:MM:SS", "help": "g5k: how long to hold the nodes, also beyond a day."},
    ),
    (
        "--reservation",
        {"metavar": "'YYYY-MM-DD HH:MM:SS'", "help": "g5k: when to begin, in Paris."},
    ),
    ("--queue", {"help": "g5k: OAR queue."}),
    ("--project", {"help": "g5k: whose reservation it is."}),
    ("--job-type", {"multiple": True, "help": "g5k: a further OAR job type, such as exotic."}),
    ("--env-name", {"help": "g5k: a Kadeploy environment to deploy."}),
    ("--kavlan", {"is_flag": True, "help": "g5k: put the nodes into a VLAN of their own."}),
    (
        "--job",
        {
            "multiple": True,
            "metavar": "[SITE:]ID",
            "help": "g5k: use a reservation that is there, and leave it.",
        },
    ),
)


@dataclass(frozen=True)
class Where:
    """What the options say.

    Attributes:
        testbed: `local`, `ssh` or `g5k`.
        inventory: machines of `ssh`.
        reservation: options of `g5k` that were given, as `G5kOptions` names them.
        patience_s: longest wait for a reservation to start.
    """

    testbed: str
    inventory: Path | None
    reservation: dict[str, object]
    patience_s: float

    def g5k_options(self) -> G5kOptions:
        """What is asked of Grid'5000."""
        from laggard.layers_services.g5k_request import G5kOptions

        return G5kOptions(**self.reservation)  # type: ignore[arg-type]  # click has checked the types

    def remote_options(self, runs: Path, app_conf: str | None, *, quiet: bool) -> RemoteOptions:
        """All that a remote run is told."""
        from laggard.experiments.remote.ground import RemoteOptions

        testbed: RemoteTestbed = "g5k" if self.testbed == "g5k" else "ssh"
        return RemoteOptions(
            runs,
            testbed,
            self.inventory,
            self.g5k_options(),
            self.patience_s,
            quiet=quiet,
            command=tuple(sys.argv),
            app_conf=app_conf,
        )


def testbed_options(command: Command) -> Command:
    """Add the options to a command, which gets them as `where`."""

    @click.pass_context
    def gather(context: click.Context, /, **values: object) -> object:
        names = {"walltime", "reservation", "queue", "project", "env_name", "kavlan"}
        reservation = {name: values.pop(name) for name in names}
        reservation["job_types"], reservation["jobs"] = values.pop("job_type"), values.pop("job")
        given = {name: value for name, value in reservation.items() if value}
        hosts, on = values.pop("hosts"), str(values.pop("on"))
        where = Where(
            on,
            hosts if isinstance(hosts, Path) else None,
            given,
            float(str(values.pop("patience"))),
        )
        _require_fitting(where)
        return context.invoke(command, where=where, **values)

    wrapped: Callable[..., object] = gather
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click keeps them there
    for name, settings in reversed(_RESERVATION):
        wrapped = click.option(name, **settings)(wrapped)  # type: ignore[arg-type]  # a table of its keywords
    wrapped = click.option(
        "--patience",
        type=click.FloatRange(min=1),
        default=900.0,
        show_default=True,
        help="g5k: seconds to wait for nodes.",
    )(wrapped)
    wrapped = click.option(
        "--hosts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="ssh: the machines, as an inventory file.",
    )(wrapped)
    return click.option(  # type: ignore[return-value]  # a command still, with more options
        "--on",
        type=click.Choice(["local", "g5k", "ssh"]),
        default="local",
        show_default=True,
        help="The testbed.",
    )(wrapped)


def _require_fitting(where: Where) -> None:
    if where.testbed != "g5k" and where.reservation:
        options = ", ".join(
            f"--{name.replace('_', '-').removesuffix('s')}" for name in where.reservation
        )
        raise InputError(f"{options}: for --on g5k, and this is --on {where.testbed}; leave it out")
    if where.testbed != "ssh" and where.inventory is not None:
        raise InputError(
            f"--hosts {where.inventory}: for --on ssh, and this is --on {where.testbed}; leave"
            " it out"
        )


def describe_on(scenario: Scenario, where: Where) -> Description:
    """What a run there would do; asks Grid'5000 when it could start, where this machine has an
    account's configuration.

    Raises:
        InputError: it could do nothing: the testbed, or the reservation, is not for such a
            scenario.
    """
    from laggard.experiments.plan import describe, describe_machines, describe_reservation

    if where.testbed == "local":
        return describe(scenario)
    from laggard.experiments.remote.ground import listed, require_possible

    require_possible(scenario, "g5k" if where.testbed == "g5k" else "ssh")
    if where.testbed == "ssh":
        return describe_machines(scenario, listed(scenario, where.inventory))
    from datetime import UTC, datetime

    from laggard.layers_services.g5k import start_estimate
    from laggard.layers_services.g5k_description import describe_g5k
    from laggard.layers_services.g5k_plan import plan_g5k

    plan = plan_g5k(scenario.layers, where.g5k_options(), scenario.sources.layers_services)
    now = datetime.now(UTC)
    start = ""
    if not plan.reused and (Path.home() / ".python-grid5000.yaml").exists():
        start = start_estimate(plan, now).reason
    return describe_reservation(scenario, describe_g5k(plan, now, start))
