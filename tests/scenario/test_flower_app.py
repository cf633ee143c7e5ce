"""A `workload.yaml` that names a Flower app: loaded, refused, and refused where nothing trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import ScenarioError
from laggard.reproduce.program_trust import list_programs
from laggard.scenario.load import load_scenario
from laggard.workloads.specification.flower_app import FlowerApp
from tests.command_line import SMALL


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario beside whose files there is an app."""
    folder = tmp_path / "scenario"
    (folder / "app").mkdir(parents=True)
    (folder / "app/pyproject.toml").write_text("")
    for name, text in SMALL.items():
        (folder / name).write_text(text)
    (folder / "workload.yaml").write_text("flower: app\npython: venv/bin/python\n")
    return folder


def test_paths_count_from_the_scenario_and_links_are_not_followed(scenario: Path) -> None:
    (scenario / "venv/bin").mkdir(parents=True)
    (scenario / "venv/bin/python").symlink_to("/usr/bin/python3")
    loaded = load_scenario(scenario)
    assert isinstance(loaded.application, FlowerApp)
    assert loaded.application.folder == scenario / "app"
    assert loaded.application.python == str(scenario / "venv/bin/python")
    assert not loaded.trains
    assert loaded.ranks == ()
    assert any("Flower app" in line for line in list_programs(loaded))


def test_the_sources_of_an_app_in_the_folder_are_kept_with_a_run(scenario: Path) -> None:
    app = scenario / "app"
    for name in ("code/server.py", "venv/pyvenv.cfg", "venv/lib.py", ".git/x.py", "data.bin"):
        (app / name).parent.mkdir(exist_ok=True)
        (app / name).write_text(name)
    (app / "link.py").symlink_to("/etc/passwd")
    files = load_scenario(scenario).files()
    kept = {name: data for name, data in files.items() if name.startswith("app")}
    assert kept == {"app/pyproject.toml": b"", "app/code/server.py": b"code/server.py"}
    (app / "large.py").write_bytes(b"#" * ((1 << 20) + 1))
    assert not any(name.startswith("app") for name in load_scenario(scenario).files())
    elsewhere = load_scenario(scenario, [f"workload.flower={scenario.parent / 'scenario/app'}"])
    assert elsewhere.application == load_scenario(scenario).application


def test_an_override_makes_a_workload_of_it(scenario: Path) -> None:
    (scenario / "workload.yaml").unlink()
    texts = ["workload.flower=app", "workload.python=/venv/bin/python"]
    loaded = load_scenario(scenario, texts)
    assert isinstance(loaded.application, FlowerApp)
    assert loaded.application.python == "/venv/bin/python"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flower: app", "python"),
        ("flower: app\npython: p\nmodel: cnn", "model"),
        ("flower: nowhere\npython: p", "has no pyproject.toml"),
        ("flower: [app]\npython: p", "flower"),
        ('flower: ""\npython: p', "flower"),
    ],
)
def test_what_is_no_app_is_refused_where_it_stands(text: str, reason: str, scenario: Path) -> None:
    (scenario / "workload.yaml").write_text(text + "\n")
    with pytest.raises(ScenarioError, match=reason) as refused:
        load_scenario(scenario)
    assert {Path(each.path).name for each in refused.value.problems} == {"workload.yaml"}


def test_one_host_is_too_few(scenario: Path) -> None:
    layers = (scenario / "layers_services.yaml").read_text()
    only_cloud, _, _ = layers.partition("  - name: edge")
    (scenario / "layers_services.yaml").write_text(only_cloud)
    (scenario / "network.yaml").write_text("networks: []\n")
    (scenario / "heterogeneity.yaml").unlink()
    with pytest.raises(ScenarioError, match="a host for its server and another for a client"):
        load_scenario(scenario)


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict"],
        ["simulate", "--scale", "edge=4"],
        ["stalls"],
        ["run", "--on", "virtual"],
        ["run", "--on", "ssh", "--hosts", "hosts.yaml"],
    ],
    ids=" ".join,
)
def test_what_needs_a_training_of_ours_says_so(
    arguments: list[str], scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenario)
    (scenario / "hosts.yaml").write_text("hosts: [{host: 192.0.2.1}]\n")
    command, *options = arguments
    ended = CliRunner().invoke(main, [command, str(scenario), *options])
    assert ended.exit_code == 2, ended.output
    assert "Flower app" in ended.output
    assert "Traceback" not in ended.output
