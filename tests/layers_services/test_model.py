from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import ScenarioError
from laggard.core.yaml_source import YamlValue
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
from laggard.layers_services.model import MAX_HOSTS, LayersServices, Workflow

steady = settings(derandomize=True, deadline=None)
GOOD = """
environment:
  job_name: quickstart
  walltime: "01:00:00"
  g5k:
    cluster: paradoxe
    job_type: [allow_classic_ssh]
layers:
- name: cloud
  services:
  - {name: Trainer, quantity: 2, roles: [monitoring], env: {a: 1}, image: "debian", colour: {deep: [red]}}
- name: edge
  services:
  - {name: trainer, quantity: 4, repeat: 1, environment: g5k, cluster: parasilo}
monitoring: {type: dstat, options: "-m"}
kwollect: {metrics: [all]}
"""


def layers(text: str) -> LayersServices:
    return validate_model(parse_e2clab_yaml(text, "layers_services.yaml"), LayersServices)


def test_a_good_file() -> None:
    model = layers(GOOD)
    service = model.layers[0].services[0]
    assert service.metadata == {"image": "debian", "colour": {"deep": ["red"]}}
    assert service.machines == 2
    assert model.layers[1].machines == 8
    assert model.monitoring == {"type": "dstat", "options": "-m"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("quantity: 2", "quantitty: 2", "`quantitty` looks like a misspelling — write `quantity`"),
        ("quantity: 2", "Quantity: 2", "write `quantity`"),
        ("repeat: 1", "repeats: 1", "write `repeat`"),
        ("repeat: 1", "repeat: -1", "repeat: -1"),
        ("quantity: 2", "quantity: 0", "quantity: 0"),
        ("quantity: 2", "quantity: 1.5", "quantity: 1.5"),
        ("quantity: 2", 'quantity: "2"', 'quantity: "2"'),
        ("quantity: 2", "quantity: true", "quantity: true"),
        ("quantity: 2", "quantity: 1000000", f"the maximum is {MAX_HOSTS}"),
        ("repeat: 1", "repeat: 9999999999", f"the maximum is {MAX_HOSTS}"),
        ("name: Trainer", 'name: "a;rm -rf /"', "a name has 1 to 63 characters"),
        ("name: Trainer", 'name: "$(id)"', "a name has 1 to 63 characters"),
        ("name: Trainer", "name: a.b", "a name has 1 to 63 characters"),
        ("name: Trainer", 'name: ""', "a name has 1 to 63 characters"),
        ("name: Trainer", "name: -rf", "a name has 1 to 63 characters"),
        ("name: Trainer", "name: é", "a name has 1 to 63 characters"),
        ("name: Trainer", f"name: {'a' * 64}", "1 to 63 characters"),
        ("name: Trainer", "name: 3", "a name has 1 to 63 characters"),
        ("name: cloud", "name: all", "Ansible has a group of this name"),
        ("name: edge", "name: Cloud", 'layers.1.name: "Cloud": two layers have this name'),
        ("roles: [monitoring]", 'roles: ["a b"]', "a name has 1 to 63 characters"),
        ("roles: [monitoring]", "roles: monitoring", 'roles: "monitoring"'),
        ("environment: g5k", "environment: mars", 'environment: "mars"'),
        ('"01:00:00"', '"24:00:00"', 'walltime: "24:00:00"'),
        (
            "  g5k:\n    cluster: paradoxe\n    job_type: [allow_classic_ssh]",
            "  cluster: here",
            "no provider is given",
        ),
        ("job_type: [allow_classic_ssh]", "env_name: debian11", "requires job type `deploy`"),
        ("cluster: paradoxe", "clutser: paradoxe", "unknown key"),
        ("kwollect:", "kwolect:", "unknown key"),
        (
            "services:\n  - {name: Trainer",
            "service:\n  - {name: Trainer",
            "did you mean `services`?",
        ),
    ],
)
def test_nonsense_is_refused_with_its_place(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as caught:
        layers(GOOD.replace(old, new, 1))
    assert any(said in str(problem) for problem in caught.value.problems), str(caught.value)
    assert all(problem.line > 0 for problem in caught.value.problems)


def test_a_continuum_without_hosts_is_refused() -> None:
    with pytest.raises(ScenarioError, match="the continuum has no hosts"):
        layers("environment: {g5k: {}}\nlayers: [{name: cloud, services: []}]")
    with pytest.raises(ScenarioError, match="the continuum has no hosts"):
        layers("environment: {g5k: {}}\nlayers: []")


@pytest.mark.parametrize(
    ("service", "machines"),
    [
        ({"quantity": 3}, 3),
        ({}, 1),
        ({"servers": ["a-1.x", "a-2.x"]}, 2),
        ({"servers": "a-1.x"}, 1),
        ({"servers": ["a-1.x", "a-2.x"], "cluster": "a", "quantity": 5}, 5),
    ],
)
def test_how_many_machines_a_service_has(service: dict[str, object], machines: int) -> None:
    document = {
        "environment": {"g5k": {}},
        "layers": [{"name": "a", "services": [{"name": "b", **service}]}],
    }
    assert LayersServices.model_validate(document).layers[0].machines == machines


WORKFLOW = """
- hosts: edge.*
  depends_on:
  - {service_selector: "cloud.*", grouping: round_robin, prefix: server}
  prepare:
  - shell: echo hello
  gather_facts: false
- hosts: cloud.*
  launch: []
"""


def workflow(text: str) -> Workflow:
    return validate_model(parse_e2clab_yaml(text, "workflow.yaml"), Workflow)


def test_good_workflows() -> None:
    plays = workflow(WORKFLOW).plays
    assert [play.hosts for play in plays] == ["edge.*", "cloud.*"]
    assert plays[0].prepare == ({"shell": "echo hello"},)
    assert workflow("[]").plays == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  prepare:", "  prepair:", "did you mean `prepare`?"),
        ("gather_facts", "gather_fact", "did you mean `gather_facts`?"),
        ("hosts: edge.*", "host: edge.*", "`hosts` is missing"),
        ("round_robin", "random", 'grouping: "random"'),
        ("launch: []", "launch: run", 'launch: "run"'),
        ("launch: []", "launch: [run]", 'launch.0: "run"'),
        ("prefix: server", "prefix: [server]", 'prefix: ["server"]'),
    ],
)
def test_bad_workflows(old: str, new: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        workflow(WORKFLOW.replace(old, new, 1))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "hosts: edge.*", "3", "[3]", "[[]]"])
def test_a_workflow_is_a_list_of_plays(text: str) -> None:
    with pytest.raises(ScenarioError):
        workflow(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@steady
@given(data=st.data())
def test_whatever_is_written_gives_a_model_or_located_problems(data: st.DataObject) -> None:
    source = parse_e2clab_yaml(GOOD, "layers_services.yaml")
    keys = sorted(source.positions, key=str)
    key = data.draw(st.sampled_from([each for each in keys if each and each[-1] != "#key"]))
    value: YamlValue = copy.deepcopy(source.value)
    parent = value
    for part in key[:-1]:
        parent = parent[part]  # type: ignore[index,call-overload]
    parent[key[-1]] = data.draw(json_values)  # type: ignore[index,call-overload]
    try:
        validate_model(source, LayersServices, value)
    except ScenarioError as error:
        problems = error.problems
    else:
        return
    assert problems
