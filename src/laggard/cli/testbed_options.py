"""The command-line options that say where a scenario runs, and what they mean."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from laggard.core.errors import InputError

if TYPE_CHECKING:
    from laggard.layers_services.g5k.request import G5kOptions
    from laggard.remote.provision import RemoteOptions, RemoteTestbed
    from laggard.scenario.load import Scenario
    from laggard.scenario.run_plan import RunPlan

Command = TypeVar("Command", bound=Callable[..., object])

_RESERVATION_OPTIONS: tuple[tuple[str, dict[str, object]], ...] = (
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
class TargetTestbed:
    """What the options say.

    Attributes:
        testbed: `local`, `ssh` or `g5k`.
        inventory: machines of `ssh`.
        reservation: options of `g5k` that were given, as `G5kOptions` names them.
        reservation_timeout_s: longest wait for a reservation to start.
    """

    testbed: str
    inventory: Path | None
    reservation: dict[str, object]
    reservation_timeout_s: float

    def g5k_options(self) -> G5kOptions:
        """What is asked of Grid'5000."""
        from laggard.layers_services.g5k.request import G5kOptions

        # Click has checked the types.
        return G5kOptions(**self.reservation)  # type: ignore[arg-type]

    def remote_options(self, runs: Path, app_conf: str | None, *, quiet: bool) -> RemoteOptions:
        """All that a remote run is told."""
        from laggard.remote.provision import RemoteOptions

        testbed: RemoteTestbed = "g5k" if self.testbed == "g5k" else "ssh"
        return RemoteOptions(
            runs,
            testbed,
            self.inventory,
            self.g5k_options(),
            self.reservation_timeout_s,
            quiet=quiet,
            command=tuple(sys.argv),
            app_conf=app_conf,
        )


def testbed_options(command: Command) -> Command:
    """Add the options to a command, which gets them as `target`."""

    @click.pass_context
    def collect_options(context: click.Context, /, **values: object) -> object:
        names = {"walltime", "reservation", "queue", "project", "env_name", "kavlan"}
        reservation = {name: values.pop(name) for name in names}
        reservation["job_types"], reservation["jobs"] = values.pop("job_type"), values.pop("job")
        given = {name: value for name, value in reservation.items() if value}
        hosts, on = values.pop("hosts"), str(values.pop("on"))
        target = TargetTestbed(
            on,
            hosts if isinstance(hosts, Path) else None,
            given,
            float(str(values.pop("patience"))),
        )
        _require_matching_options(target)
        return context.invoke(command, target=target, **values)

    wrapped: Callable[..., object] = collect_options
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    # Click keeps them there.
    parameters = getattr(command, "__click_params__", [])
    wrapped.__click_params__ = parameters  # type: ignore[attr-defined]
    for name, settings in reversed(_RESERVATION_OPTIONS):
        # A table of its keywords.
        wrapped = click.option(name, **settings)(wrapped)  # type: ignore[arg-type]
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


def _require_matching_options(target: TargetTestbed) -> None:
    if target.testbed != "g5k" and target.reservation:
        options = ", ".join(
            f"--{name.replace('_', '-').removesuffix('s')}" for name in target.reservation
        )
        raise InputError(
            f"{options}: for --on g5k, and this is --on {target.testbed}; leave it out"
        )
    if target.testbed != "ssh" and target.inventory is not None:
        raise InputError(
            f"--hosts {target.inventory}: for --on ssh, and this is --on {target.testbed}; leave"
            " it out"
        )


def plan_run(scenario: Scenario, target: TargetTestbed) -> RunPlan:
    """What a run there would do; asks Grid'5000 when it could start, where this machine has an
    account's configuration.

    Raises:
        InputError: it could do nothing: the testbed, or the reservation, is not for such a
            scenario.
    """
    from laggard.scenario.run_plan import plan_g5k_run, plan_local_run, plan_ssh_run

    if target.testbed == "local":
        return plan_local_run(scenario)
    from laggard.remote.provision import load_inventory_machines, require_supported

    require_supported(scenario, "g5k" if target.testbed == "g5k" else "ssh")
    if target.testbed == "ssh":
        return plan_ssh_run(scenario, load_inventory_machines(scenario, target.inventory))
    from datetime import UTC, datetime

    from laggard.layers_services.g5k.description import describe_g5k
    from laggard.layers_services.g5k.plan import plan_g5k
    from laggard.layers_services.g5k.reserve import start_estimate

    plan = plan_g5k(scenario.layers, target.g5k_options(), scenario.sources.layers_services)
    now = datetime.now(UTC)
    start = ""
    if not plan.reused and (Path.home() / ".python-grid5000.yaml").exists():
        start = start_estimate(plan, now).reason
    return plan_g5k_run(scenario, describe_g5k(plan, now, start))
