"""Options that select a testbed; each remote testbed defines its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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

LOCAL, VIRTUAL = "local", "virtual"


@dataclass(frozen=True)
class TargetTestbed:
    """Testbed that the options select.

    Attributes:
        remote: remote testbed with its options; None for this machine
        arguments: the options as a command line, for another command with the same target
        is_virtual: whether this machine computes how long everything takes
        is_chosen: whether the command line names the testbed
    """

    remote: RemoteTestbed | None
    arguments: tuple[str, ...] = ()
    is_virtual: bool = False
    is_chosen: bool = True

    @property
    def name(self) -> str:
        """Return the name of the testbed, as on the command line."""
        if self.remote is not None:
            return self.remote.name
        return VIRTUAL if self.is_virtual else LOCAL


def testbed_options(command: Command) -> Command:
    """Add the options of all testbeds to a command, which receives them as `target`."""
    return _add_options(command, (LOCAL,), LOCAL, "Testbed to run on.")


def training_options(command: Command) -> Command:
    """Add these options to a command that can also train in virtual time."""
    purpose = "Testbed to run on; `virtual` trains for real and computes how long it takes."
    return _add_options(command, (LOCAL, VIRTUAL), LOCAL, purpose)


def optional_testbed_options(command: Command) -> Command:
    """Add these options to a command whose `target` is None if it is called without `--on`."""
    purpose = "Also run on this testbed; by default nothing is run."
    return _add_options(command, (LOCAL,), None, purpose)


def _add_options(
    command: Command, here: tuple[str, ...], default: str | None, purpose: str
) -> Command:
    @click.pass_context
    def collect_options(context: click.Context, /, **values: object) -> object:
        given_name = values.pop("on")
        selected = None if given_name is None else str(given_name)
        values_by_testbed = {
            name: {option.name: values.pop(option.name) for option in testbed.options}
            for name, testbed in REMOTE_TESTBEDS.items()
        }
        _require_matching_options(selected, context)
        if selected is None:
            return context.invoke(command, target=None, **values)
        remote = REMOTE_TESTBEDS.get(selected)
        given = {n: value for n, value in values_by_testbed.get(selected, {}).items() if value}
        # click has checked the types.
        target = TargetTestbed(
            None if remote is None else remote.from_options(given),  # type: ignore[arg-type]
            () if selected == LOCAL else (f"--on={selected}", *_list_arguments(remote, given)),
            selected == VIRTUAL,
            context.get_parameter_source("on") is not click.core.ParameterSource.DEFAULT,
        )
        return context.invoke(command, target=target, **values)

    wrapped: Callable[..., object] = collect_options
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    # click stores the options of earlier decorators in this attribute.
    parameters = getattr(command, "__click_params__", [])
    wrapped.__click_params__ = parameters  # type: ignore[attr-defined]
    # Reversed, because click lists the option that is applied last first.
    for name, option in reversed(list(_list_options())):
        settings = _click_settings(name, option)
        wrapped = click.option(option.flag, **settings)(wrapped)  # type: ignore[arg-type]
    # Former name, kept for a clear message.
    wrapped = click.option(
        "--patience", hidden=True, expose_value=False, callback=_refuse_patience
    )(wrapped)
    return click.option(  # type: ignore[return-value]  # the same command with more options
        "--on",
        type=click.Choice([*here, *REMOTE_TESTBEDS]),
        default=default,
        show_default=default is not None,
        help=purpose,
    )(wrapped)


def _list_options() -> Iterator[tuple[str, CommandOption]]:
    for name, testbed in REMOTE_TESTBEDS.items():
        yield from ((name, option) for option in testbed.options)


def _list_arguments(
    testbed: type[RemoteTestbed] | None, given: Mapping[str, object]
) -> Iterator[str]:
    for option in () if testbed is None else testbed.options:
        value = given.get(option.name)
        if isinstance(value, list | tuple):
            yield from (f"{option.flag}={each}" for each in value)
        elif value is True:
            yield option.flag
        elif value is not None:
            yield f"{option.flag}={value}"


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


def _require_matching_options(selected: str | None, context: click.Context) -> None:
    """Reject options of a testbed other than the selected one."""
    for testbed, kind in REMOTE_TESTBEDS.items():
        if testbed == selected:
            continue
        # Defaults count as not given.
        given = [
            option.flag
            for option in kind.options
            if context.get_parameter_source(option.name) is not click.core.ParameterSource.DEFAULT
        ]
        if given:
            raise InputError(
                f"{', '.join(given)}: valid only with --on {testbed}, not"
                f" {f'with --on {selected}' if selected else 'without it'}; omit it"
            )


def plan_run(scenario: Scenario, target: TargetTestbed) -> RunPlan:
    """Plan a run on the selected testbed.

    Grid'5000 is queried for a possible start if this machine has the configuration of an account.

    Raises:
        InputError: the testbed or its options do not suit the scenario
    """
    from laggard.scenario.run_plan import plan_local_run, plan_remote_run

    if target.remote is None:
        from laggard.scenario.emulation_limits import list_emulation_limits

        plan_here = plan_local_run(scenario)
        warnings = (*plan_here.warnings, *list_emulation_limits(scenario))
        return plan_here.model_copy(update={"warnings": warnings})
    from laggard.remote.provision import plan_machines

    plan = plan_machines(scenario, target.remote)
    return plan_remote_run(scenario, plan.describe(), plan.addresses)
