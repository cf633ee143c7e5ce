"""What `adaptive` makes of measurements, and real trainings with it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.strategies.background.async_averager import (
    MIN_PART_BYTES,
    AveragingMode,
    AveragingPolicy,
    assign_owners,
)
from laggard.workloads.strategies.background.averaging_choice import (
    CANDIDATE_PERIODS,
    AveragingCosts,
    ChoiceCriteria,
    EarlyMeasurements,
    FirstAverageDecision,
    ObjectiveName,
    choose_initial_policy,
    choose_policy,
    count_bytes_between_tiers,
    decide_first_average,
    estimate_cost,
)
from laggard.workloads.strategies.background.butterfly_average import ButterflyAverage

if TYPE_CHECKING:
    from tests.workloads.conftest import Train

RULES = ChoiceCriteria("makespan", drift=0.01, effort=0.2, max_period=128)
TIERS = ("cloud", "cloud", "fog", "edge", "edge", "edge")
seconds = st.floats(1e-3, 100.0)
costs_known = st.builds(AveragingCosts, st.lists(seconds, min_size=1), seconds, st.floats(0, 1e9))
terms_known = st.builds(
    AveragingPolicy,
    st.sampled_from(CANDIDATE_PERIODS),
    st.sampled_from([AveragingMode.NONBLOCKING, AveragingMode.BLOCKING]),
)


def test_fast_links_are_used_in_every_step() -> None:
    choice = choose_policy(AveragingCosts([1.0] * 4, average_s=0.01), RULES, AveragingPolicy(1))
    assert (choice.policy, choice.gain) == (AveragingPolicy(1), 1.0)


@pytest.mark.parametrize("ratio", [0.5, 2.0, 10.0, 40.0])
def test_the_period_is_that_of_the_closed_form(ratio: float) -> None:
    """(1 + k (H - 1)) (1 + e x / H) is least at H = sqrt(e x (1 - k) / k), and none begins before
    the last is over; the power of two that is chosen is next to it."""
    policy = choose_policy(AveragingCosts([1.0], ratio), RULES, AveragingPolicy(128)).policy
    least = max(np.sqrt(RULES.effort * ratio * 0.99 / 0.01), ratio)
    assert least / 2 <= max(policy.steps, ratio) <= least * 2


def test_where_computers_are_unequal_an_average_costs_those_who_learn_less() -> None:
    """One rank has a quarter of the others' speed: what takes it 4 s takes these 1 s, and they
    learn twelve thirteenths."""
    costs = AveragingCosts([1.0, 1.0, 1.0, 4.0], average_s=4.0)
    learnt = [1.0, 1.0, 1.0, 0.25]
    assert costs.average_work_s == pytest.approx(np.average([1.0, 1.0, 1.0, 4.0], weights=learnt))
    assert AveragingCosts([2.0] * 4, average_s=4.0).average_work_s == pytest.approx(4.0)


def test_where_learning_alike_is_the_objective_all_wait() -> None:
    """(1 + k (H - 1)) (s + x / H) is least at H = sqrt(x (1 - k) / (s k)), s of the slowest."""
    rules = ChoiceCriteria("fairness", drift=0.01, effort=0.2, max_period=128)
    choice = choose_policy(
        AveragingCosts([1.0, 1.0, 4.0], average_s=4.0), rules, AveragingPolicy(1)
    )
    least = np.sqrt(4.0 * 0.99 / (4.0 * 0.01))
    assert choice.policy.waits
    assert least / 2 <= choice.policy.steps <= least * 2
    assert "every worker waiting" in choice.reason


@given(costs_known, terms_known, st.sampled_from(["makespan", "cost", "fairness"]))
def test_nothing_changes_for_less_than_a_tenth(
    costs: AveragingCosts, current: AveragingPolicy, objective: str
) -> None:
    rules = ChoiceCriteria(objective, 0.01, 0.2, 32, rent_per_s=1e-3, price_per_byte=1e-9)  # type: ignore[arg-type]
    choice = choose_policy(costs, rules, current)
    known = [
        AveragingPolicy(
            period, AveragingMode.BLOCKING if objective == "fairness" else AveragingMode.NONBLOCKING
        )
        for period in CANDIDATE_PERIODS
        if period <= 32
    ]
    cheapest = min(estimate_cost(policy, costs, rules) for policy in known)
    assert choice.policy in known
    assert choice.gain >= 1.0
    if choice.policy == current:
        assert estimate_cost(current, costs, rules) <= 1.1 * cheapest * (1 + 1e-9)
    else:
        assert estimate_cost(choice.policy, costs, rules) == cheapest


def test_a_slow_minority_does_not_make_averages_rare() -> None:
    """What counts is the middle worker's step: the slow are not waited for, and count by what they
    have learnt."""
    alike, unequal = AveragingCosts([1.0] * 8, 2.0), AveragingCosts([1.0] * 5 + [10.0] * 3, 2.0)
    assert (
        choose_policy(alike, RULES, AveragingPolicy(1)).policy.steps
        >= choose_policy(unequal, RULES, AveragingPolicy(1)).policy.steps
    )
    assert (
        "the slowest worker takes 10 times"
        in choose_policy(unequal, RULES, AveragingPolicy(1)).reason
    )


def test_slower_links_make_it_change_its_mind_and_faster_ones_again() -> None:
    rules, policy, seen = replace(RULES, effort=1.0), AveragingPolicy(1), []
    for average_s in (0.02, 0.02, 8.0, 8.0, 0.02):
        policy = choose_policy(AveragingCosts([1.0] * 4, average_s), rules, policy).policy
        seen.append(policy.steps)
    assert seen == [1, 1, 32, 32, 1]


def test_long_averages_make_it_go_two_by_two_until_they_are_short() -> None:
    """From three steps on, and until they take less than half of that."""
    rules, policy, seen = (
        replace(RULES, pairs_from=3.0),
        AveragingPolicy(1, AveragingMode.PAIRWISE),
        [],
    )
    for average_s in (2.9, 3.1, 2.9, 1.6, 1.4, 2.9, 3.1):
        choice = choose_policy(AveragingCosts([1.0, 1.0, 4.0], average_s), rules, policy)
        policy = choice.policy
        seen.append(policy.mode is AveragingMode.PAIRWISE)
        assert (policy.mode is AveragingMode.PAIRWISE) == (
            policy == AveragingPolicy(rules.max_period, AveragingMode.PAIRWISE)
        )
    assert seen == [False, True, True, True, False, False, True]
    assert choice.reason.startswith("average models in pairs")
    assert "3.1 times a step" in choice.reason


def test_two_by_two_averages_of_all_take_a_tenth_of_the_time_at_most() -> None:
    """How often they come stays as it is within a factor of two."""
    rules, policy, seen = (
        replace(RULES, pairs_from=3.0, max_period=32),
        AveragingPolicy(1, AveragingMode.PAIRWISE),
        [],
    )
    for average_s in (3.1, 6.0, 20.0, 12.0, 9.0, 3.1):
        policy = choose_policy(AveragingCosts([1.0], average_s), rules, policy).policy
        seen.append(policy.steps)
    assert seen == [32, 32, 200, 200, 90, 32]


FIRST = AveragingPolicy(1, AveragingMode.PAIRWISE)
NO_LESS = "times a step, and an average of all models takes no less"


@pytest.mark.parametrize(
    ("round_trips_s", "elapsed_s", "opening"),
    [
        ([], 0, FirstAverageDecision(False, FIRST)),
        ([2.9], 5, FirstAverageDecision(False, FIRST)),
        (
            [2.9],
            32,
            FirstAverageDecision(
                False, AveragingPolicy(1280, AveragingMode.PAIRWISE), f"32 {NO_LESS}"
            ),
        ),
        (
            [2.9],
            1280,
            FirstAverageDecision(
                True, AveragingPolicy(1280, AveragingMode.PAIRWISE), f"32 {NO_LESS}"
            ),
        ),
        ([2.9, 2.8], 32, FirstAverageDecision(True, FIRST)),
        (
            [9.0],
            359,
            FirstAverageDecision(
                False, AveragingPolicy(360, AveragingMode.PAIRWISE), f"9 {NO_LESS}"
            ),
        ),
        (
            [9.0],
            360,
            FirstAverageDecision(
                True, AveragingPolicy(360, AveragingMode.PAIRWISE), f"9 {NO_LESS}"
            ),
        ),
        ([0.1, 2.9], 5, FirstAverageDecision(True, FIRST)),
        (
            [0.1, 3.1],
            5,
            FirstAverageDecision(
                False, AveragingPolicy(124, AveragingMode.PAIRWISE), f"3.1 {NO_LESS}"
            ),
        ),
        (
            [3.1, 9.0],
            359,
            FirstAverageDecision(
                False, AveragingPolicy(360, AveragingMode.PAIRWISE), f"9 {NO_LESS}"
            ),
        ),
        (
            [3.1, 9.0],
            360,
            FirstAverageDecision(
                True, AveragingPolicy(360, AveragingMode.PAIRWISE), f"9 {NO_LESS}"
            ),
        ),
        (
            [3.1, 3.0],
            124,
            FirstAverageDecision(
                True, AveragingPolicy(124, AveragingMode.PAIRWISE), f"3.1 {NO_LESS}"
            ),
        ),
        ([], 31, FirstAverageDecision(False, FIRST)),
        (
            [],
            32,
            FirstAverageDecision(
                False, AveragingPolicy(1280, AveragingMode.PAIRWISE), f"32 {NO_LESS}"
            ),
        ),
        (
            [],
            1280,
            FirstAverageDecision(
                True, AveragingPolicy(1280, AveragingMode.PAIRWISE), f"32 {NO_LESS}"
            ),
        ),
    ],
)
def test_slow_exchanges_of_two_tell_of_averages(
    round_trips_s: list[float], elapsed_s: float, opening: FirstAverageDecision
) -> None:
    """One slow one is enough. Without, all who begin them are awaited; who says nothing for as many
    steps as may lie between averages of all is slow.

    What is made after all that is timed, and no more: it is on the terms of averages that take
    long.
    """
    rules = replace(RULES, pairs_from=3.0, max_period=32)
    found = decide_first_average(
        EarlyMeasurements([1.0, 1.0, 4.0], round_trips_s, expected_reports=2, elapsed_s=elapsed_s),
        rules,
        FIRST,
    )
    assert (found.begins, found.policy) == (opening.begins, opening.policy)
    assert found.reason.endswith(opening.reason)
    assert bool(found.reason) == bool(opening.reason)
    assert found.policy.measures_only == bool(found.reason)


@pytest.mark.parametrize(
    ("objective", "pairs"), [("makespan", True), ("cost", False), ("fairness", False)]
)
def test_two_by_two_is_for_time_alone(objective: ObjectiveName, pairs: bool) -> None:
    """Who exchanges all the time sends most, and does not learn as the others do; where nothing has
    a price, money is time."""
    rules = ChoiceCriteria(
        objective, 0.01, 0.2, 32, rent_per_s=1e-3, price_per_byte=1e-9, pairs_from=3.0
    )
    assert (
        choose_policy(AveragingCosts([1.0], 100.0), rules, AveragingPolicy(1)).policy.mode
        is AveragingMode.PAIRWISE
    ) == pairs
    assert (choose_initial_policy(objective).mode is AveragingMode.PAIRWISE) == pairs
    free = replace(rules, rent_per_s=0.0, price_per_byte=0.0)
    assert (
        choose_policy(AveragingCosts([1.0], 100.0), free, AveragingPolicy(1)).policy.mode
        is AveragingMode.PAIRWISE
    ) == (objective != "fairness")


def test_dear_bytes_make_averages_rarer() -> None:
    costs = AveragingCosts([1.0], average_s=0.02, average_bytes=1e7)
    cheap, dear = (
        ChoiceCriteria(
            "cost", drift=0.01, effort=0.2, max_period=128, rent_per_s=1e-4, price_per_byte=each
        )
        for each in (1e-15, 1e-9)
    )
    assert choose_policy(costs, cheap, AveragingPolicy(1)).policy == AveragingPolicy(1)
    expected = choose_policy(costs, dear, AveragingPolicy(1))
    assert expected.policy.steps >= 64
    assert "bytes between tiers cost 1e+02 times the hosts' rent" in expected.reason


@pytest.mark.parametrize("tiers", [TIERS, ("a", "b"), ("a",) * 4, ("a", "b", "a", "b")])
@pytest.mark.parametrize("parts", [1, 2])
def test_bytes_between_tiers_are_those_of_averages_led_in_turn(
    tiers: tuple[str, ...], parts: int
) -> None:
    """As many averages as ranks, so that each has owned each part once: counted part by part."""
    ranks = tuple(range(len(tiers)))
    model, sent = torch.zeros(parts * MIN_PART_BYTES // 4), 0
    for number in ranks:
        owners = assign_owners(ranks, number, model)
        assert len(owners) == parts
        members = {rank: ButterflyAverage(ranks, rank, model, 1, owners) for rank in ranks}
        under_way = [(rank, part) for rank in ranks for part in members[rank].begin()]
        while under_way:
            sender, part = under_way.pop(0)
            sent += (tiers[sender] != tiers[part.rank]) * part.values.nbytes
            under_way += [
                (part.rank, answer) for answer in members[part.rank].receive(sender, part)
            ]
    assert count_bytes_between_tiers(tiers, model.nbytes) == pytest.approx(sent / len(tiers))


DIGITS = {"model": "mlp", "dataset": "digits", "batch_size": 96, "optimizer": {"lr": 0.05}}


@pytest.mark.long
def test_after_averages_of_all_models_are_averaged_two_by_two(train: Train) -> None:
    """Averages over loopback take longer than a hundredth of a step. One rank puts down what is
    decided, once."""
    strategy = {"name": "adaptive", "pairs": 0.01, "max_period": 8}
    workload = {
        **DIGITS,
        "model": "paced:wide_unhurried",
        "evaluate_every": 10**9,
        "stop": {"steps": 60},
    }
    training = train(
        {**workload, "strategy": strategy}, 4, tiers=("cloud", "cloud", "edge", "edge")
    )
    steps = training.table("steps")
    told = [str(line["description"]) for line in read_lines(training.output_dir.decisions)]
    assert told[0].startswith(
        "average models in pairs without waiting, and time an average of all every "
    )
    assert all(each.startswith("average ") for each in told)
    assert all(first != second for first, second in itertools.pairwise(told))
    taken = steps.groupby("rank").step.count()
    assert (steps.groupby("rank").applied_version.max() > taken).all(), "others' updates came too"
