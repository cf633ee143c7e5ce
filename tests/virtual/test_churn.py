"""Clients that leave and join in virtual time: what they had not delivered is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laggard.analysis.tables.load_run import load_run
from laggard.scenario.load import load_scenario
from laggard.virtual.run_virtual import VirtualOptions, run_virtual
from tests.virtual.federated_scenario import SHARES, write_federated
from tests.virtual.test_federated_simulation import list_rounds, simulate

ALL = {"name": "federated", "clients": len(SHARES), "local_epochs": 2}
SLOWEST = len(SHARES) - 1


def churn(*entries: tuple[float, str, int]) -> list[dict[str, object]]:
    return [{"at": f"{at_s}s", kind: f"edge.client.1.{rank + 1}"} for at_s, kind, rank in entries]


def test_a_round_ends_when_the_client_that_it_waits_for_leaves(tmp_path: Path) -> None:
    output_dir, _ = simulate(tmp_path / "all", {"strategy": ALL, "stop": {"steps": 1}})
    ((whole, ended_s),) = list_rounds(output_dir)
    assert whole.list_clients("accepted") == tuple(each.rank for each in whole.answers)
    second_s = sorted(each.took_s or 0 for each in whole.answers)[-2]
    leaves_s = round((second_s + ended_s) / 2, 3)
    gone = {"strategy": ALL, "stop": {"steps": 2}, "churn": churn((leaves_s, "leaves", SLOWEST))}
    output_dir, simulation = simulate(tmp_path / "gone", gone)
    (first, first_s), (second, second_end_s) = list_rounds(output_dir)
    assert first.list_clients("failed") == (SLOWEST,)
    assert first_s == pytest.approx(leaves_s)
    assert SLOWEST not in {each.rank for each in second.answers}
    assert second_end_s - first_s < ended_s
    (event,) = simulation.churn
    assert (event.rank, event.kind, event.effective_s) == (SLOWEST, "left", leaves_s)


def test_a_client_that_comes_back_begins_anew(tmp_path: Path) -> None:
    """What it computed before it left does not arrive later."""
    entries = churn((0.05, "leaves", SLOWEST), (0.06, "joins", SLOWEST))
    one = {"strategy": {**ALL, "clients": 1}, "stop": {"steps": 40}}
    output_dir, simulation = simulate(tmp_path, {**one, "churn": entries})
    assert [each.kind for each in simulation.churn] == ["left", "joined"]
    accepted = [
        (result.round, rank)
        for result, _ in list_rounds(output_dir)
        for rank in result.list_clients("accepted")
    ]
    assert [number for number, _ in accepted] == list(range(40))


def test_who_joins_later_takes_part_from_then_on(tmp_path: Path) -> None:
    late = {"strategy": {"name": "federated", "clients": 2}, "stop": {"steps": 30}}
    output_dir, _ = simulate(tmp_path / "none", late)
    joins_s = round(list_rounds(output_dir)[4][1], 3)
    output_dir, _ = simulate(tmp_path / "late", {**late, "churn": churn((joins_s, "joins", 0))})
    begun_s = 0.0
    first_s = None
    for result, ended_s in list_rounds(output_dir):
        if any(each.rank == 0 for each in result.answers):
            first_s = begun_s if first_s is None else first_s
        begun_s = ended_s
    assert first_s is not None
    assert first_s >= joins_s


def test_a_run_says_who_left_and_its_tables_can_be_read(tmp_path: Path) -> None:
    entries = churn((0.3, "leaves", 1), (0.9, "joins", 1))
    workload: dict[str, object] = {"churn": entries, "stop": {"steps": 12}}
    scenario = load_scenario(write_federated(tmp_path / "scenario", workload))
    options = VirtualOptions(tmp_path / "runs", quiet=True, report=True)
    record, folder = run_virtual(scenario, options)
    assert record.status == "done", record.error
    assert [each.kind for each in record.churn] == ["left", "joined"]
    run = load_run(folder)
    steps = run.steps
    assert (steps.end_ns >= steps.start_ns).all()
    own = steps.rank == 1
    assert (steps.start_ns[own][1:] >= steps.end_ns[own][:-1]).all()
    assert json.loads((folder / "summary.json").read_text())["federated"]["rounds"] == 12
