"""Check of all setups before the first run, and the digest of everything that makes their runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from laggard.campaign.campaign_file import CampaignFile
from laggard.campaign.cells import CellSetup, CheckedSetup, make_digest
from laggard.campaign.check_tasks import check_task
from laggard.campaign.tasks.registry import TASKS
from laggard.core.errors import InputError, Problem, ScenarioError
from laggard.core.files.input_files import read_chunks
from laggard.core.run_schema import VIRTUAL_TESTBED
from laggard.core.yaml_source import to_json
from laggard.layers_services import model, validate
from laggard.layers_services.e2clab.play_inputs import PlayInputs
from laggard.scenario.load import Scenario, load_scenario
from laggard.scenario.overrides import SCENARIO_FILES, parse_file

_MAX_SHOWN = 10
_MAX_ARTIFACTS = 10_000
_IDENTIFYING = ("--on=", "--links=", "--dilation=")
_DEFAULT_LINKS = "--links=auto"
_VIRTUAL = f"--on={VIRTUAL_TESTBED}"


def check_setups(
    campaign: CampaignFile, setups: Sequence[CellSetup], run_options: Sequence[str] = ()
) -> Sequence[CheckedSetup]:
    """Load the scenario of every setup.

    Args:
        campaign: the campaign.
        setups: combinations of its values.
        run_options: options of `laggard run` in all runs. A run on another testbed, or with another
            dilation or other links, is another run.

    Raises:
        ScenarioError: the problems of all setups, each once.
    """
    checked: list[CheckedSetup] = []
    problems: dict[Problem, None] = {}
    options = [
        each for each in run_options if each.startswith(_IDENTIFYING) and each != _DEFAULT_LINKS
    ]
    for setup in setups:
        try:
            checked.append(_check_setup(campaign, setup, options))
        except ScenarioError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        found = tuple(problems)
        if len(found) > _MAX_SHOWN:
            rest = Problem(found[0].path, 0, 0, "", f"and {len(found) - _MAX_SHOWN} more problems")
            found = (*found[:_MAX_SHOWN], rest)
        raise ScenarioError(found)
    return checked


def _check_setup(
    campaign: CampaignFile, setup: CellSetup, run_options: Sequence[str]
) -> CheckedSetup:
    if campaign.command in TASKS:
        return check_task(campaign.command, setup)
    plays = PlayInputs((campaign.artifacts or setup.scenario).absolute(), campaign.app_conf)
    most_hosts = model.MAX_HOSTS if _VIRTUAL in run_options else validate.MAX_HOSTS
    scenario = load_scenario(setup.scenario, setup.overrides(), plays=plays, most_hosts=most_hosts)
    return _describe_setup(campaign, setup, scenario, run_options)


def _describe_setup(
    campaign: CampaignFile, setup: CellSetup, scenario: Scenario, run_options: Sequence[str]
) -> CheckedSetup:
    if scenario.trains and campaign.duration is not None:
        raise InputError(
            f"for: {campaign.duration}: {setup.scenario}/workload.yaml says when training stops —"
            " omit `for`, or set workload.stop.time"
        )
    files = {name: _describe_file(name, data) for name, data in scenario.files().items()}
    artifacts = dict(_digest_artifacts(scenario)) if scenario.workflow.plays else {}
    options = [campaign.app_conf, campaign.duration, *run_options]
    digest = make_digest(str(setup.scenario), files, artifacts, options)
    return CheckedSetup(setup, digest, scenario.workload.seed if scenario.trains else None)


def _describe_file(name: str, data: bytes) -> object:
    """Return the values of a scenario file, without comments, and the digest of any other."""
    stem = name.removesuffix(".yaml")
    if stem in SCENARIO_FILES:
        return to_json(parse_file(stem, data, name).value)
    return hashlib.sha256(data).hexdigest()


def _digest_artifacts(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of every file that plays may copy to hosts."""
    folder = scenario.plays.artifacts
    count = 0
    for parent, folders, names in os.walk(folder):
        # Hidden folders are those of tools, such as .git.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not path.is_file() or path.is_symlink():
                continue
            count += 1
            if count > _MAX_ARTIFACTS:
                raise InputError(
                    f"{folder}: more than {_MAX_ARTIFACTS} files, and a campaign reads all of them"
                    " to notice a change — give the plays a folder of their own with `artifacts`"
                )
            digest = hashlib.sha256()
            for chunk in read_chunks(path):
                digest.update(chunk)
            yield str(path.relative_to(folder)), digest.hexdigest()
