"""Matrices of link limits: cells, places of problems, and rules one by one as the oracle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.links.link_matrix import MatrixCell, parse_matrix
from laggard.network_emulation.links.plan_links import Constraint, LinkPlan, plan_links
from laggard.network_emulation.model import Heterogeneity, Network
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import problems_of, template, write

NAMES = ("cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2")
CLOUD, EDGE1, EDGE2 = NAMES
HOSTS = tuple(
    Host(name, name.partition(".")[0], "trainer", 1, int(name[-1]), f"10.77.0.{i}")
    for i, name in enumerate(NAMES, 1)
)


def plan(matrix: str, entries: str = "", network: str = "networks: []") -> LinkPlan:
    text = f"deterministic:\n  - {{matrix: m.csv}}\n{entries}"
    source = parse_yaml(text, "heterogeneity.yaml")
    return plan_links(
        validate_model(parse_yaml(network, "network.yaml"), Network),
        validate_model(source, Heterogeneity),
        HOSTS,
        heterogeneity_source=source,
        matrices={"m.csv": parse_matrix(matrix, "m.csv", HOSTS)},
    )


def test_cells_are_rules_of_ordered_pairs() -> None:
    matrix = f"from,{CLOUD},edge.*\n{CLOUD},0,10ms 100mbit 1%\nedge.*,1gbit,\n"
    assert parse_matrix(matrix, "m.csv", HOSTS) == (
        MatrixCell((CLOUD,), (EDGE1, EDGE2), 10.0, 100.0, 1.0),
        MatrixCell((EDGE1, EDGE2), (CLOUD,), None, 1000.0, None),
    )


def test_a_cell_changes_only_what_it_gives() -> None:
    network = "networks: [{src: 'edge.*', dst: 'cloud.*', delay: 5ms, rate: 10mbit, loss: 2%}]"
    pairs = plan(f",{CLOUD}\n{EDGE1},20ms\n{EDGE2},\n", network=network).pairs
    assert pairs == {
        (EDGE1, CLOUD): Constraint(20.0, rate_mbps=10.0, loss_percent=2.0),
        (EDGE2, CLOUD): Constraint(5.0, rate_mbps=10.0, loss_percent=2.0),
    }


def test_later_entries_apply_on_top() -> None:
    entries = f"  - {{src: {EDGE1}, dst: {CLOUD}, jitter: 8ms}}"
    (constraint,) = plan(f",{CLOUD}\n{EDGE1},20ms\n", entries).pairs.values()
    assert (constraint.delay_ms, constraint.jitter_ms) == (20.0, 8.0)


@pytest.mark.parametrize(
    ("matrix", "place", "value", "rule", "fix"),
    [
        (f",{CLOUD}\n{EDGE1},10\n", (2, 18), "10", "a delay must be", "write 10ms if it is a delay"),
        (f",{CLOUD},{EDGE2}\n{EDGE1},1ms,  fast\n", (2, 24), "fast", "a delay must be", "10ms 100mbit 1%"),
        (f",{CLOUD}\n{EDGE1},10mbps\n", (2, 18), "10mbps", "a rate must be", "write 80mbit, or 10mbit"),
        (f",{CLOUD}\n{EDGE1},200%\n", (2, 18), "200%", "a loss must be", "10ms 100mbit 1%"),
        (f",{CLOUD}\n{EDGE1},1ms 2ms\n", (2, 18), "1ms 2ms", "at most one delay", "write for example"),
        (f",{CLOUD}\nedg.trainer.1.1,1ms\n", (2, 1), "edg.trainer.1.1", "matches no host", f"such as {CLOUD}"),
        (f",{CLOUD},mars\n{EDGE1},1ms,\n", (1, 20), "mars", "matches no host", f"such as {CLOUD}"),
        (f",{CLOUD}\n{EDGE1},1ms\n{EDGE1},2ms\n", (3, 1), EDGE1, "twice", "merge"),
        (f",{CLOUD},{CLOUD}\n{EDGE1},1ms,1ms\n", (1, 20), CLOUD, "twice", "merge"),
        (f",{CLOUD}\n{EDGE1},1ms,2ms\n", (2, 1), EDGE1, "3 cells and the first row has 2", "complete the row"),
        (f",{CLOUD}\n~[,1ms\n", (2, 1), "~[", "brackets", "name of a host"),
        (f",{CLOUD}\n\n", (1, 1), "", "no row under the first", "add a row"),
        (f";{CLOUD}\n{EDGE1};1ms\n", (1, 1), f";{CLOUD}", "name the hosts that receive", "separated by commas"),
        ("", (1, 1), "", "name the hosts that receive", "separated by commas"),
    ],
)  # fmt: skip
def test_a_mistake_has_place_value_rule_and_fix(
    matrix: str, place: tuple[int, int], value: str, rule: str, fix: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_matrix(matrix, "m.csv", HOSTS)
    problem = caught.value.problems[0]
    assert (problem.path, problem.line, problem.column) == ("m.csv", *place)
    assert problem.value == value
    assert rule in problem.rule
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("before", "cell", "rule"),
    [("jitter: 8ms", "2ms", "the jitter of 8 ms"), ("burst: 2", "90%", "a mean burst of 2")],
)
def test_a_contradiction_to_an_earlier_entry_is_refused(before: str, cell: str, rule: str) -> None:
    network = f"networks: [{{src: {EDGE1}, dst: {CLOUD}, delay: 9ms, rate: 10mbit, loss: 1%}}]"
    text = f"deterministic:\n  - {{src: {EDGE1}, dst: {CLOUD}, {before}}}\n  - {{matrix: m.csv}}"
    source = parse_yaml(text, "heterogeneity.yaml")
    matrix = parse_matrix(f",{CLOUD}\n{EDGE1},{cell}\n", "m.csv", HOSTS)
    with pytest.raises(ScenarioError) as caught:
        plan_links(
            validate_model(parse_yaml(network, "network.yaml"), Network),
            validate_model(source, Heterogeneity),
            HOSTS,
            heterogeneity_source=source,
            matrices={"m.csv": matrix},
        )
    assert f'heterogeneity.yaml:3:14: deterministic.1.matrix: "m.csv": {rule}' in str(caught.value)


DELAYS = st.none() | st.integers(0, 500)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(DELAYS, min_size=3, max_size=3), min_size=3, max_size=3))
def test_a_matrix_is_the_same_as_a_rule_for_each_of_its_cells(
    delays: list[list[int | None]],
) -> None:
    rows = [",".join(["", *NAMES])]
    rules = []
    for src, row in zip(NAMES, delays, strict=True):
        rows.append(",".join([src, *("" if each is None else f"{each}ms 9mbit" for each in row)]))
        rules += [
            {"src": src, "dst": dst, "delay": f"{each}ms", "rate": "9mbit"}
            for dst, each in zip(NAMES, row, strict=True)
            if each is not None and src != dst
        ]
    network = validate_model(parse_yaml(json.dumps({"networks": rules}), "network.yaml"), Network)
    assert plan("\n".join(rows)).pairs == plan_links(network, Heterogeneity(), HOSTS).pairs


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet='cedg.train*1,;"\n ms%bit0~[]', max_size=80))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    try:
        parse_matrix(text, "m.csv", HOSTS)
    except ScenarioError as error:
        for problem in error.problems:
            assert problem.line >= 1
            assert problem.column >= 1
            assert problem.rule
            assert problem.fix


def test_a_scenario_reads_its_matrix_and_keeps_it(tmp_path: Path) -> None:
    files = template() | {"heterogeneity": "deterministic: [{matrix: latency.csv}]\n"}
    folder = write(tmp_path, files)
    missing = problems_of(folder)
    assert [problem.rule for problem in missing] == ["the file is missing"]
    assert missing[0].fix == "put the matrix file into the scenario's folder"
    (folder / "latency.csv").write_bytes(b",edge.trainer.1.1\ncloud.trainer.1.1,33ms\n")
    scenario = load_scenario(folder)
    assert scenario.links.pairs["cloud.trainer.1.1", "edge.trainer.1.1"].delay_ms == 33.0
    assert scenario.files()["latency.csv"] == (folder / "latency.csv").read_bytes()
    (folder / "latency.csv").write_bytes(b",edge.trainer.1.1\ncloud.trainer.1.1,33\n")
    (problem,) = problems_of(folder)
    assert (problem.path, problem.line) == (str(folder / "latency.csv"), 2)
    (folder / "latency.csv").write_bytes(b"\xff")
    assert "UTF-8" in problems_of(folder)[0].rule
