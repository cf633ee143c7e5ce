"""`laggard analyze --strategy`: what is asked for, what the scenario adds, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.analysis.evaluate.synthetic.run_generator import QUIET, Tier, TraceSpec, generate_run
from laggard.analysis.tables.write_run import write_run
from laggard.cli.main import main
from laggard.core.errors import InputError
from laggard.core.hosts import Host
from laggard.core.simulation.network import Bottleneck
from laggard.core.simulation.strategies.catalog import STRATEGIES, AlternativeStrategy
from laggard.network_emulation.link_plan import AccessLink, LinkPlan, SharedLink
from laggard.run_folder.strategy_estimates import (
    list_bottlenecks,
    parse_strategies,
    read_deployment_info,
)
from tests.scenario.scenario_folders import template, write


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = TraceSpec(tiers=(Tier("cloud", 2), Tier("edge", 2, 2.0)), steps=30, noise=QUIET)
    return write_run(
        generate_run(spec), tmp_path_factory.mktemp("runs") / "generated" / "generated-0"
    )


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["gossip"], (AlternativeStrategy("gossip"),)),
        (
            ["{name: local_sgd, steps: 4}", "hop"],
            (AlternativeStrategy("local_sgd", {"steps": 4}), AlternativeStrategy("hop")),
        ),
        (["gossip", "all"], None),
    ],
)
def test_strategies_are_asked_for_as_in_workload_yaml(texts: list[str], expected: object) -> None:
    assert parse_strategies(texts) == expected


@pytest.mark.parametrize(
    "text", ["telepathy", "{steps: 4}", "[gossip]", "{name: [}", "{name: gossip, steps: [1]}"]
)
def test_what_is_no_strategy_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_strategies([text])


def test_access_and_shared_links_are_rates_that_ways_share() -> None:
    names = ["edge.t.1.1", "edge.t.1.2"]
    hosts = tuple(Host(name, "edge", "t", 1, machine) for machine, name in enumerate(names, 1))
    plan = LinkPlan(
        hosts,
        access={name: AccessLink(name, 20.0, None) for name in names[:1]},
        shared=(SharedLink("far", frozenset({("a", "b")}), 5.0),),
    )
    found = list_bottlenecks(plan)
    assert Bottleneck("far", frozenset({("a", "b")}), 5.0) in found
    assert Bottleneck(f"{names[0]} up", frozenset({(names[0], names[1])}), 20.0) in found
    assert len(found) == 2


def test_a_run_folders_scenario_says_where_a_server_would_be(tmp_path: Path) -> None:
    assert read_deployment_info(tmp_path).server is None
    write(tmp_path / "scenario", template())
    known = read_deployment_info(tmp_path)
    assert known.server is not None
    assert known.server_share is not None


@pytest.mark.long
def test_analyze_says_how_long_other_strategies_would_have_taken(run_folder: Path) -> None:
    told = CliRunner().invoke(main, ["analyze", str(run_folder), "--strategy", "all"])
    assert told.exit_code == 0, told.output
    assert "Estimated time of the same work with other strategies." in told.output
    assert "not for the same accuracy" in told.output
    asked = ["--strategy", "{name: local_sgd, steps: 4}", "--json"]
    document = json.loads(CliRunner().invoke(main, ["analyze", str(run_folder), *asked]).stdout)
    (local,) = document["strategy_estimates"]["strategies"]
    assert local["parameters"] == {"steps": 4, "after": 0}
    assert 0 < local["makespan_s"] < document["strategy_estimates"]["measured_s"]
    assert set(STRATEGIES) >= {local["strategy"]}


@pytest.mark.parametrize("text", ["edge", "edge=", "=3", "edge=-1", "edge=1.5", "edge=" + "9" * 10])
def test_what_is_no_number_of_workers_is_refused_before_the_analysis(
    text: str, tmp_path: Path
) -> None:
    asked = ["analyze", str(tmp_path / "none"), "--workers", text]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2
    assert "write --workers edge=16" in refused.output


@pytest.mark.long
def test_analyze_says_how_long_other_numbers_of_workers_would_have_taken(run_folder: Path) -> None:
    asked = ["analyze", str(run_folder), "--workers", "edge=4"]
    told = CliRunner().invoke(main, asked)
    assert told.exit_code == 0, told.output
    assert "another number of workers (4 in edge)" in told.output
    document = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    (same,) = document["strategy_estimates"]["strategies"]
    assert document["strategy_estimates"]["workers"] == {"edge": 4}
    assert same["strategy"] == "allreduce"
    assert len(same["steps"]) == 6
    refused = CliRunner().invoke(main, ["analyze", str(run_folder), "--workers", "sky=1"])
    assert refused.exit_code == 2
    assert "use one of cloud, edge" in refused.output


def test_analyze_refuses_a_strategy_before_it_begins(tmp_path: Path) -> None:
    refused = CliRunner().invoke(
        main, ["analyze", str(tmp_path / "none"), "--strategy", "telepathy"]
    )
    assert refused.exit_code == 2
    assert "no strategy that can be simulated" in refused.output


def test_the_old_option_is_refused_with_the_name_of_the_new_one(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["analyze", str(tmp_path / "none"), "--instead", "all"])
    assert refused.exit_code == 2
    assert "--strategy" in refused.output
