"""The examples in the docstrings of the functions that notebooks call."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.evaluate.synthetic.trace_spec import Injection, Tier, TraceSpec
from laggard.analysis.tables.write_run import write_run
from laggard.scenario.scaffold import write_scenario_template
from tests.analysis.campaign_tables import TableSpec, generate_rows, write_results

PAGE = Path(__file__).parents[2] / "docs/reference/python.md"
NAMES = re.findall(r"^::: (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out what the examples read: two runs, a campaign and a scenario."""
    folder = tmp_path_factory.mktemp("examples")
    tiers = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4, slowness=4.0))
    slow_for_a_while = Injection("compute", 3.0, first=30, last=59, rank=2)
    for name, seed in (("latest", 1), ("earlier", 2)):
        spec = TraceSpec(tiers, steps=100, seed=seed, injections=(slow_for_a_while,))
        write_run(generate_run(spec), folder / "runs/quickstart" / name)
    for place in ("my-continuum", "runs/quickstart/latest/scenario"):
        write_scenario_template(folder / place)
    write_results(folder / "runs/campaigns/sweep", generate_rows(TableSpec(repeats=6)))
    return folder


def test_twenty_functions_have_examples() -> None:
    assert len(NAMES) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_right(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module_name, _, attribute = name.rpartition(".")
    documented = getattr(importlib.import_module(module_name), attribute)
    monkeypatch.chdir(folder)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(documented, attribute, globs={"Path": Path, attribute: documented})
    assert example.examples, f"{name} has no example"
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=output.append)
    assert runner.failures == 0, "".join(output)
