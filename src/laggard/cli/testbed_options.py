"""Options of the command line that select a testbed; each remote testbed lists its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from laggard.core.errors import InputError
from laggard.remote.testbeds.registry import REMOTE_TESTBEDS

if TYPE_CHECKING:
    from laggard.remote.testbeds.remote_testbed import CommandOption, RemoteTestbed
    from laggard.scenario.load import Scenario
    from laggard.scenario.run_plan import RunPlan

Command = TypeVar("Command", bound=Callable[..., object])

LOCAL = "local"


@dataclass(frozen=True)
class TargetTestbed:
    """Testbed that the options select.

    Attributes:
        remote: its machines, with their options; None: this machine.
    """

    remote: RemoteTestbed | None


def testbed_options(command: Command) -> Command:
    """Add the options to a command, which gets them as `target`."""

    @click.pass_context
    def collect_options(context: click.Context, /, **values: object) -> object:
        selected = str(values.pop("on"))
        values_by_testbed = {
            name: {option.name: values.pop(option.name) for option in testbed.options}
            for name, testbed in REMOTE_TESTBEDS.items()
        }
        _require_matching_options(selected, context)
        remote = REMOTE_TESTBEDS.get(selected)
        given = {n: value for n, value in values_by_testbed.get(selected, {}).items() if value}
        # Click has checked the types.
        target = TargetTestbed(
            None if remote is None else remote.from_options(given)  # type: ignore[arg-type]
        )
        return context.invoke(command, target=target, **values)

    wrapped: Callable[..., object] = collect_options
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    # Click keeps them there.
    parameters = getattr(command, "__click_params__", [])
    wrapped.__click_params__ = parameters  # type: ignore[attr-defined]
    for name, option in reversed(list(_list_options())):
        settings = _click_settings(name, option)
        wrapped = click.option(option.flag, **settings)(wrapped)  # type: ignore[arg-type]
    wrapped = click.option(
        "--patience", hidden=True, expose_value=False, callback=_refuse_patience
    )(wrapped)
    return click.option(  # type: ignore[return-value]  # a command still, with more options
        "--on",
        type=click.Choice([LOCAL, *REMOTE_TESTBEDS]),
        default=LOCAL,
        show_default=True,
        help="The testbed.",
    )(wrapped)


def _list_options() -> Iterator[tuple[str, CommandOption]]:
    for name, testbed in REMOTE_TESTBEDS.items():
        yield from ((name, option) for option in testbed.options)


def _click_settings(testbed: str, option: CommandOption) -> dict[str, object]:
    settings: dict[str, object] = {"help": f"{testbed}: {option.help}", "metavar": option.metavar}
    if option.kind == "texts":
        settings["multiple"] = True
    elif option.kind == "switch":
        settings["is_flag"] = True
    elif option.kind == "file":
        settings["type"] = click.Path(path_type=Path)
    elif option.kind == "seconds":
        settings["type"] = click.FloatRange(min=1)
    if option.default is not None:
        settings |= {"default": option.default, "show_default": True}
    return settings


def _refuse_patience(_context: click.Context, _parameter: click.Parameter, value: object) -> None:
    if value is not None:
        raise click.UsageError(
            f"--patience is now called --reservation-timeout: give --reservation-timeout {value}"
        )


def _require_matching_options(selected: str, context: click.Context) -> None:
    """Refuse options of a testbed that is not the selected one."""
    for testbed, kind in REMOTE_TESTBEDS.items():
        if testbed == selected:
            continue
        given = [
            option.flag
            for option in kind.options
            if context.get_parameter_source(option.name) is not click.core.ParameterSource.DEFAULT
        ]
        if given:
            raise InputError(
                f"{', '.join(given)}: for --on {testbed}, and this is --on {selected}; leave it out"
            )


def plan_run(scenario: Scenario, target: TargetTestbed) -> RunPlan:
    """Plan a run on the selected testbed; Grid'5000 is asked when it could start, when this machine
    has an account's configuration.

    Raises:
        InputError: the testbed or its options do not suit the scenario.
    """
    from laggard.scenario.run_plan import plan_local_run, plan_remote_run

    if target.remote is None:
        return plan_local_run(scenario)
    from laggard.remote.provision import plan_machines

    plan = plan_machines(scenario, target.remote)
    return plan_remote_run(scenario, plan.describe(), plan.addresses)
