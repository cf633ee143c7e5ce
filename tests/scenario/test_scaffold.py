"""`laggard init`: what it writes loads here and passes E2Clab's own validation, as does everything
that is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from laggard.core.errors import InputError
from laggard.core.yaml_source import parse_yaml
from laggard.scenario.files import dump_yaml
from laggard.scenario.load import load_scenario
from laggard.scenario.overrides import SCENARIO_FILES
from laggard.scenario.scaffold import write_scenario_template
from tests.scenario.scenario_folders import REPOSITORY, SHIPPED, template

E2CLAB_FILES = ("layers_services", "network", "workflow")


def test_what_init_writes_loads(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "mine"
    write_scenario_template(folder)
    assert load_scenario(folder).warnings == ()
    assert {path.name for path in folder.iterdir()} == {f"{name}.yaml" for name in SCENARIO_FILES}


def test_every_file_names_its_schema(tmp_path: Path) -> None:
    write_scenario_template(tmp_path)
    for name in SCENARIO_FILES:
        first = (tmp_path / f"{name}.yaml").read_text().splitlines()[0]
        assert first.startswith("# yaml-language-server: $schema=file:///")
        assert Path(first.partition("file://")[2]).is_file()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "workload.yaml").write_text("mine")
    with pytest.raises(InputError, match=r"workload\.yaml exists already"):
        write_scenario_template(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["workload.yaml"]


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="give another folder"):
        write_scenario_template(tmp_path / "file" / "mine")


def test_every_line_that_is_commented_out_would_work(tmp_path: Path) -> None:
    """Each example in the comments, alone, makes a scenario that loads, or says that its file is
    missing."""
    tried = 0
    for name, text in template().items():
        lines = text.splitlines()
        for i, line in enumerate(lines):
            if not line.lstrip().startswith("# - {"):
                continue
            changed = "\n".join([*lines[:i], line.replace("# - {", "- {", 1), *lines[i + 1 :]])
            folder = tmp_path / f"{name}-{i}"
            folder.mkdir()
            for other, content in (template() | {name: changed}).items():
                (folder / f"{other}.yaml").write_text(content)
            (folder / "lte.csv").write_text("seconds,delay_ms,rate_mbps,loss_percent\n0,10,20,0\n")
            load_scenario(folder)
            tried += 1
    assert tried >= 6


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("folder", [*SHIPPED, None])
@pytest.mark.parametrize("name", E2CLAB_FILES)
def test_e2clab_accepts_its_files(name: str, folder: str | None) -> None:
    from e2clab.schemas import is_valid_conf

    text = (
        template()[name] if folder is None else (REPOSITORY / folder / f"{name}.yaml").read_text()
    )
    value = yaml.safe_load(text)
    assert value == parse_yaml(text, name).value  # YAML 1.1 and 1.2 read it alike
    assert is_valid_conf(value, name)
    assert is_valid_conf(yaml.safe_load(dump_yaml(parse_yaml(text, name).value)), name)


def test_the_template_has_no_windows_lines_or_tabs() -> None:
    for text in template().values():
        assert "\t" not in text
        assert "\r" not in text
        assert text.endswith("\n")
