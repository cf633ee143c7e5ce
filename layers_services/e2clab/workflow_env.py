"""Named sets of variables for plays (`workflow_env.yaml`), with E2Clab's meaning.

A run uses one set (`app_conf`). In the stages launch and finalize, plays see the variables of the
set as `env_NAME` and the name of the set as `app_conf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, RootModel, StrictBool, StrictFloat, StrictInt, StrictStr

from laggard.core.corrections.model_problems import validate_model
from laggard.core.corrections.names import suggest_name
from laggard.core.errors import Problem, ScenarioError
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml

FILE = "workflow_env.yaml"
"""E2Clab's name of the file (`e2clab.constants.ConfFiles`)."""


Variable = StrictStr | StrictInt | StrictFloat | StrictBool


class WorkflowEnvironment(RootModel[dict[StrictStr, dict[StrictStr, Variable]]]):
    """Content of `workflow_env.yaml`: variables by name, grouped into named sets."""

    model_config = ConfigDict(frozen=True)


def load_sets(file: Path) -> Mapping[str, Mapping[str, Variable]]:
    """Return all sets of variables of a file.

    Raises:
        ScenarioError: the file is invalid
    """
    source = parse_e2clab_yaml(file.read_bytes(), str(file))
    return validate_model(source, WorkflowEnvironment).root


def variables_of(file: Path, app_conf: str) -> Mapping[str, Variable]:
    """Return the variables of one set.

    E2Clab would run without variables if the set did not exist; here that is an error.

    Args:
        file: path of a `workflow_env.yaml`
        app_conf: name of the set

    Raises:
        ScenarioError: the file is missing or invalid, or it has no such set
    """
    if not file.is_file():
        rule = f"the set of variables `{app_conf}` needs a {FILE}, and the file does not exist"
        raise ScenarioError((Problem(str(file), 0, 0, "", rule, "add it next to workflow.yaml"),))
    source = parse_e2clab_yaml(file.read_bytes(), str(file))
    sets = validate_model(source, WorkflowEnvironment).root
    if app_conf not in sets:
        # The name is an option of the command line, so no edit of the file corrects it.
        fix = suggest_name(app_conf, sets).text if sets else "add a set of this name"
        raise ScenarioError(
            (
                source.locate_problem(
                    (), "this file has no such set of variables", fix, value=app_conf
                ),
            )
        )
    return sets[app_conf]
