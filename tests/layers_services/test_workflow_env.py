"""`workflow_env.yaml`: a set of variables for plays, handed on by E2Clab's own `Workflow`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laggard.core.errors import ScenarioError
from laggard.layers_services.e2clab.workflow_env import variables_of

if TYPE_CHECKING:
    from tests.users import Runner

SETS = "slow: {rate: 1, name: one}\nfast: {rate: 9, name: two}\n"

WORKFLOW = """
- hosts: edge.trainer.1.1
  gather_facts: false
  prepare:
  - shell: "echo {{ app_conf | default('no set') }} > {{ scenario_dir }}/prepared"
  launch:
  - shell: "echo {{ app_conf }} {{ env_rate + 1 }} {{ env_name }} > {{ scenario_dir }}/launched"
  finalize:
  - shell: "echo {{ env_name }} > {{ working_dir }}/finalized"
"""

SCRIPT = """
    from pathlib import Path
    from laggard.core.errors import LaggardError
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.e2clab.play_tasks import STAGES
    from laggard.layers_services.e2clab.workflow import run_workflow
    from laggard.layers_services.local import namespaces, sandbox
    from laggard.layers_services.local.provider import enoslib_roles, use_namespace_connection
    from laggard.layers_services.model import LayersServices

    layers = [{"name": "edge", "services": [{"name": "trainer"}]}]
    hosts = compile_hosts(LayersServices.model_validate({"environment": {"g5k": {}}, "layers": layers}))
    here = Path.cwd()

    def inside():
        namespaces.create_namespaces(hosts, "bridge")
        use_namespace_connection()
        roles, networks = enoslib_roles(hosts)
        for stage in STAGES:
            run_workflow(here, here / "workflow.yaml", stage, roles, hosts, here / "output", app_conf="fast")
        try:
            run_workflow(here, here / "workflow.yaml", "launch", roles, hosts, here / "output", app_conf="fats")
        except LaggardError as error:
            print("LaggardError:", error, flush=True)
        return 0
    sandbox.run_in_sandbox(inside)
"""


@pytest.mark.long
def test_a_set_of_variables_reaches_launch_and_finalize(runner: Runner) -> None:
    (runner.folder / "workflow.yaml").write_text(WORKFLOW)
    (runner.folder / "workflow_env.yaml").write_text(SETS)
    result = runner.run(SCRIPT, timeout_s=480)
    assert "this file has no such set of variables — did you mean `fast`?" in result.stdout, (
        result.stderr
    )
    said = {path.name: path.read_text().strip() for path in runner.folder.rglob("*ed")}
    assert said == {"prepared": "no set", "launched": "fast 10 two", "finalized": "two"}
    assert (runner.folder / "output" / "fast" / "finalized").is_file()


@pytest.mark.parametrize(
    ("text", "app_conf", "said"),
    [
        (SETS, "slow", None),
        (SETS, "Slow", "did you mean `slow`?"),
        (SETS, "other", "use slow, fast"),
        ("{}", "fast", "add a set of this name"),
        ("fast: 3", "fast", "keys with values are expected here"),
        ("fast: {rates: [1]}", "fast", "workflow_env.yaml:1:15"),
        (None, "fast", "the file does not exist"),
    ],
)
def test_a_set_that_is_not_there_is_refused(
    tmp_path: Path, text: str | None, app_conf: str, said: str | None
) -> None:
    file = tmp_path / "workflow_env.yaml"
    if text is not None:
        file.write_text(text)
    if said is None:
        assert variables_of(file, app_conf) == {"rate": 1, "name": "one"}
        return
    with pytest.raises(ScenarioError) as refused:
        variables_of(file, app_conf)
    assert said in str(refused.value)
