"""`workflow_env.yaml`: named sets of variables for plays, of which a run takes one (`app_conf`),
with E2Clab's meaning.

Plays see the variables of the set as `env_NAME`, and its own name as `app_conf`, in the stages
launch and finalize.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, RootModel, StrictBool, StrictFloat, StrictInt, StrictStr

from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import parse_yaml, validate_model

FILE = "workflow_env.yaml"
"""E2Clab's name for it (`e2clab.constants.ConfFiles`)."""


Variable = StrictStr | StrictInt | StrictFloat | StrictBool


class WorkflowEnvironment(RootModel[dict[StrictStr, dict[StrictStr, Variable]]]):
    """Variables by set and name."""

    model_config = ConfigDict(frozen=True)


def variables_of(file: Path, app_conf: str) -> Mapping[str, Variable]:
    """The variables of one set; E2Clab runs without any where the file has no such set.

    Args:
        file: a `workflow_env.yaml`.
        app_conf: name of the set.

    Raises:
        ScenarioError: there is no such file, it is wrong, or it has no such set.
    """
    if not file.is_file():
        rule = f"`{app_conf}` is a set of variables of {FILE}, and there is no such file"
        raise ScenarioError((Problem(str(file), 0, 0, "", rule, "add it beside workflow.yaml"),))
    source = parse_yaml(file.read_bytes(), str(file))
    sets = validate_model(source, WorkflowEnvironment).root
    if app_conf not in sets:
        near = difflib.get_close_matches(app_conf, sets, n=1)
        fix = (
            f"did you mean `{near[0]}`?"
            if near
            else f"the sets are {', '.join(sets) or 'none at all'}"
        )
        raise ScenarioError(
            (
                source.locate_problem(
                    (), "there is no such set of variables here", fix, value=app_conf
                ),
            )
        )
    return sets[app_conf]
