"""Inputs of plays: what a play reads from this machine is there before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.yaml_source import parse_yaml
from laggard.layers_services.e2clab.play_inputs import PlayInputs, find_input_problems

THERE = (
    'prepare: [{copy: {src: "{{ artifacts_dir }}/there", dest: /tmp/there}}]',
    'prepare: [{copy: {src: "{{artifacts_dir}}/folder/", dest: /tmp/}}]',
    'launch: [{template: {src: "{{ working_dir }}/there", dest: /tmp/x}}]',
    'launch: [{ansible.builtin.copy: {src: "{{ scenario_dir }}/network.yaml", dest: /tmp/x}}]',
    'launch: [{script: "{{ artifacts_dir }}/there --fast"}]',
    "prepare: [{include_vars: '{{ scenario_dir }}/network.yaml'}]",
    "prepare: [{synchronize: {src: '{{ artifacts_dir }}/', dest: /tmp/app/}}]",
    "vars_files: ['{{ artifacts_dir }}/there']",
    "launch: [{copy: 'src={{ artifacts_dir }}/there dest=/tmp/x'}]",
)
UNCERTAIN = (
    'prepare: [{copy: {src: "{{ artifacts_dir }}/{{ item }}", dest: /tmp/x}, loop: [a, b]}]',
    'prepare: [{copy: {src: "{{ artifacts_dir }}/none", dest: /tmp/x}, when: not_here}]',
    'prepare: [{copy: {src: "{{ artifacts_dir }}/none", dest: /tmp/x}, ignore_errors: true}]',
    "prepare: [{copy: {content: text, dest: /tmp/none}}]",
    "prepare: [{copy: {src: /none, dest: /tmp/x, remote_src: true}}]",
    'launch: [{synchronize: {src: /none, dest: "{{ working_dir }}/", mode: pull}}]',
    'finalize: [{copy: {src: "{{ working_dir }}/none", dest: /tmp/x}}]',
    (
        'prepare: [{shell: "make > {{ artifacts_dir }}/none", delegate_to: localhost}]\n'
        '  launch: [{copy: {src: "{{ artifacts_dir }}/none", dest: /tmp/x}}]'
    ),
    (
        'prepare: [{fetch: {src: /tmp/none, dest: "{{ working_dir }}/none", flat: true}}]\n'
        '  launch: [{copy: {src: "{{ working_dir }}/none", dest: /tmp/x}}]'
    ),
)
MISSING = (
    ('prepare: [{copy: {src: "{{ artifacts_dir }}/none", dest: /tmp/none}}]', "/none, which is"),
    ('launch: [{script: {cmd: "{{ artifacts_dir }}/none --fast"}}]', "/none, which is"),
    ("launch: [{block: [{unarchive: {src: /none.tgz, dest: /tmp}}]}]", "correct the path"),
    ("prepare: [{include_vars: '{{ scenario_dir }}/none'}]", "/none, which is"),
    ("vars_files: ['{{ artifacts_dir }}/none']", "/none, which is"),
    ("launch: [{copy: {src: there, dest: /tmp/x}}]", 'write "{{ artifacts_dir }}/there"'),
    ("launch: [{copy: {src: network.yaml, dest: /x}}]", 'write "{{ scenario_dir }}/network.yaml"'),
    ("launch: [{copy: {src: none, dest: /tmp/x}}]", "and put the file there"),
)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A scenario's folder, and another one with artifacts."""
    scenario, artifacts = tmp_path / "scenario", tmp_path / "artifacts"
    scenario.mkdir()
    (scenario / "network.yaml").write_text("networks: []")
    (artifacts / "folder").mkdir(parents=True)
    (artifacts / "there").write_text("")
    return scenario, artifacts


def _find(play: str, places: tuple[Path, Path], app_conf: str | None = None) -> list[str]:
    source = parse_yaml(f"- hosts: cloud.*\n  {play}\n", "workflow.yaml")
    scenario, artifacts = places
    problems = find_input_problems(source, scenario, PlayInputs(artifacts, app_conf))
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("play", [*THERE, *UNCERTAIN])
def test_what_is_there_or_may_be_made_is_accepted(play: str, places: tuple[Path, Path]) -> None:
    assert _find(play, places) == []


@pytest.mark.parametrize(("play", "said"), MISSING)
def test_what_is_certainly_missing_is_refused_at_its_place(
    play: str, said: str, places: tuple[Path, Path]
) -> None:
    (message,) = _find(play, places)
    assert message.startswith("workflow.yaml:2:")
    assert said in message


def test_a_set_of_variables_must_be_chosen_where_plays_need_one(places: tuple[Path, Path]) -> None:
    scenario, _ = places
    (scenario / "workflow_env.yaml").write_text("slow: {rate: 1}\nfast: {rate: 9}\n")
    launch = 'launch: [{shell: "run --rate {{ env_rate }}"}]'
    (message,) = _find(launch, places)
    assert message.startswith("workflow.yaml:2:")
    assert "--app-conf slow" in message
    assert _find(launch, places, "slow") == []
    assert _find(launch.replace("launch", "prepare"), places) == []
    assert _find(launch.replace("env_rate", "env_rate | default(1)"), places) == []


def test_a_folder_and_a_set_of_variables_must_exist(places: tuple[Path, Path]) -> None:
    scenario, artifacts = places
    folder, variables = _find("launch: []", (scenario, artifacts / "none"), "fast")
    assert "the folder of artifacts does not exist" in folder
    assert "workflow_env.yaml" in variables
    (file,) = _find("launch: []", (scenario, artifacts / "there"))
    assert "is not a folder" in file
