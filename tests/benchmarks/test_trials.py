"""The comparison of strategies: what is run, in which order, when it is cut, and what a table
keeps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategy_comparison import trials
from strategy_comparison.trials import (
    BASELINE_LIMIT_S,
    CUT_FACTOR,
    Column,
    Contender,
    Result,
    Trial,
    append_result,
    build_overrides,
    build_result,
    get_time_limit_s,
    is_due,
    list_trials,
    load_columns,
    load_contenders,
    read_results,
    run_trial,
)

from laggard.campaign.run_subprocess import SubprocessRun
from laggard.core.errors import InputError
from laggard.scenario.load import load_scenario
from laggard.workloads.strategies.registry import list_whole_model_strategies
from tests.scenario.scenario_folders import REPOSITORY

HERE = REPOSITORY / "experiments/strategies"
COLUMNS = tuple(Column(name=name, scenario=Path("/nowhere")) for name in ("a", "b"))
CONTENDERS = tuple(Contender(name=name) for name in ("slow", "allreduce", "fast", "other"))
TRIAL = Trial(COLUMNS[0], CONTENDERS[0], 7)
DONE = Result(
    "a", "slow", 7, "done", "accuracy", 12.5, 90.0, 40, 0.97, 10**9, 0.1, 0.9, 1, 0.02, "id", "a, b"
)


def shipped() -> list[Trial]:
    """Every column, and every strategy on one."""
    columns, contenders = (
        load_columns(HERE / "columns.yaml"),
        load_contenders(HERE / "contenders.yaml"),
    )
    baseline = [contender for contender in contenders if contender.name == "allreduce"]
    return [
        *list_trials(columns, baseline, [3], "allreduce"),
        *list(list_trials(columns[-1:], contenders, [3], "allreduce"))[1:],
    ]


@pytest.mark.parametrize(
    "trial", shipped(), ids=lambda trial: f"{trial.column.name}-{trial.contender.name}"
)
def test_what_is_shipped_can_be_run(trial: Trial) -> None:
    plain = load_scenario(
        trial.column.scenario, [f"{k}={json.dumps(v)}" for k, v in trial.column.settings.items()]
    )
    accuracy = plain.workload.stop.accuracy
    assert accuracy is not None
    scenario = load_scenario(
        trial.column.scenario, build_overrides(trial, plain.heterogeneity, accuracy, 90.0)
    )
    workload = scenario.workload
    assert (workload.seed, workload.stop.time_s, workload.stop.steps) == (3, 90.0, None)
    assert workload.stop.accuracy == accuracy
    assert workload.placement.server == "cloud.*"
    seeds = {event.random.seed for event in scenario.heterogeneity.events}  # type: ignore[union-attr]
    assert seeds <= {3}
    assert bool(seeds) == (
        "dynamic" in trial.column.name or trial.column.name == "all_heterogeneity"
    )
    assert [w for w in scenario.warnings if "reach" not in w] == []


@given(st.sets(st.integers(0, 100), min_size=1, max_size=4))
def test_every_run_once_in_blocks_that_begin_with_the_baseline(seeds: set[int]) -> None:
    order = list(list_trials(COLUMNS, CONTENDERS, sorted(seeds), "allreduce"))
    assert set(Counter(trial.key for trial in order).values()) == {1}
    assert len(order) == len(seeds) * len(COLUMNS) * len(CONTENDERS)
    blocks = [order[i : i + len(CONTENDERS)] for i in range(0, len(order), len(CONTENDERS))]
    for block in blocks:
        assert len({(trial.column.name, trial.seed) for trial in block}) == 1
        assert block[0].contender.name == "allreduce"
    assert [trial.seed for trial in order] == sorted(trial.seed for trial in order)


def test_the_order_is_shuffled_and_stays() -> None:
    order = [t.key for t in list_trials(COLUMNS, CONTENDERS, range(9), "allreduce")]
    assert order == [t.key for t in list_trials(COLUMNS, CONTENDERS[::-1], range(9), "allreduce")]
    seconds = {key[1] for key in order[1 :: len(CONTENDERS)]}
    assert seconds == {"slow", "fast", "other"}


def test_the_baseline_is_run_even_where_it_is_not_named() -> None:
    order = [t.contender.name for t in list_trials(COLUMNS[:1], CONTENDERS[:1], [1], "allreduce")]
    assert order == ["allreduce", "slow"]


def test_settings_of_a_contender() -> None:
    contender = Contender.model_validate(
        {
            "name": "often",
            "strategy": {"name": "local_sgd", "steps": 4},
            "set": {"workload.optimizer.lr": 0.1},
            "columns": {"b": {"workload.strategy.steps": 2}},
        }
    )
    assert contender.overrides("a") == {
        "workload.strategy": {"name": "local_sgd", "steps": 4},
        "workload.optimizer.lr": 0.1,
    }
    trial = Trial(
        Column(name="b", scenario=REPOSITORY / "experiments/dynamic_network"), contender, 5
    )
    plain = load_scenario(trial.column.scenario)
    scenario = load_scenario(
        trial.column.scenario, build_overrides(trial, plain.heterogeneity, 0.9, 10.0)
    )
    assert scenario.workload.strategy.describe() == "local_sgd, steps 2, after 0"


def test_when_a_run_is_cut() -> None:
    base = replace(DONE, strategy="allreduce", makespan_s=30.0)
    assert (
        get_time_limit_s(Trial(COLUMNS[0], CONTENDERS[1], 7), (), "allreduce") == BASELINE_LIMIT_S
    )
    assert (
        get_time_limit_s(TRIAL, (DONE, base, replace(base, seed=8)), "allreduce")
        == CUT_FACTOR * 30.0
    )
    for other in (
        replace(base, seed=8),
        replace(base, column="b"),
        replace(base, status="unfaithful"),
        replace(base, stopped_by="time"),
    ):
        assert get_time_limit_s(TRIAL, (DONE, other), "allreduce") is None


@pytest.mark.parametrize(
    ("statuses", "due"),
    [
        ([], True),
        (["failed"], True),
        (["failed", "unfaithful"], True),
        (["failed", "unfaithful", "failed"], False),
        (["failed", "done"], False),
    ],
)
def test_what_is_due(statuses: list[str], due: bool) -> None:
    results = [replace(DONE, status=status) for status in statuses]
    assert is_due(TRIAL, [*results, replace(DONE, seed=8), replace(DONE, column="b")], 3) is due


def test_a_table_keeps_what_it_is_given(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    results = (
        DONE,
        Result("b", "fast", 1, "failed", error='he said "no"'),
        replace(DONE, stopped_by="time"),
    )
    assert read_results(table) == ()
    for result in results:
        append_result(table, result)
    assert read_results(table) == results
    assert [result.is_cut for result in results] == [False, True, True]


def test_the_row_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "fidelity_violations.json").write_text(json.dumps([{"what": "late"}]))
    work = [
        {"rank": 0, "steps": 10, "full_speed_ns": 10**8, "cpu_ns": 1},
        {"rank": 1, "steps": 30, "full_speed_ns": 10**8, "cpu_ns": 1},
    ]
    (tmp_path / "counters.json").write_text(json.dumps({"work": work}))
    outcome = {
        "makespan_s": 5.0,
        "steps": 10,
        "accuracy": 0.98,
        "bytes_sent": 9,
        "cost": None,
        "fairness": 1.0,
        "stopped_by": "accuracy",
    }
    answer = {
        "status": "unfaithful",
        "folder": str(tmp_path),
        "outcome": outcome,
        "error": "late\n  again",
    }
    result = build_result(TRIAL, 60.0, answer)
    assert result.key == TRIAL.key
    assert (result.status, result.slips, result.makespan_s, result.cost) == (
        "unfaithful",
        1,
        5.0,
        0.0,
    )
    assert result.step_cpu_s == pytest.approx(2 * 10**8 / 40 / 1e9)
    assert result.error == "late again"


def test_a_run_without_an_answer_is_a_failed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Sequence[str]] = []

    def broken(
        _scenario: Path, overrides: Sequence[str], _runs: Path, **_: object
    ) -> SubprocessRun:
        asked.append(overrides)
        return SubprocessRun(1, None, "no tun\n  here")

    monkeypatch.setattr(trials, "run_in_subprocess", broken)
    result = run_trial(shipped()[0], 60.0, tmp_path)
    assert (result.status, result.error) == ("failed", "no tun here")
    assert 'workload.stop={"accuracy": 0.97, "time": "60.000s"}' in asked[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("columns: [{name: a, scenario: x}, {name: a, scenario: y}]\n", "twice"),
        ("columns: []\n", "columns"),
        ("columns: [{name: a}]\n", "scenario"),
        ("column: []\n", "column"),
    ],
)
def test_what_is_no_list_of_columns(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "columns.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        load_columns(path)


def test_every_strategy_takes_part(tmp_path: Path) -> None:
    path = tmp_path / "contenders.yaml"
    path.write_text(
        "contenders:\n  - {name: often, strategy: {name: local_sgd, steps: 2}}\n  - {name: diloco,"
        " set: {a: 1}}\n"
    )
    names = [contender.name for contender in load_contenders(path)]
    assert names[:2] == ["often", "diloco"]
    assert sorted(names) == sorted([*list_whole_model_strategies(), "often"])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_contenders(tmp_path / "none.yaml")
