"""Rounds of a federated training under any order of answers, losses and joins."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.rules.federated_rounds import MOST_EMPTY_ROUNDS, FederatedRule
from laggard.core.rules.server_rule import Push, Reaction
from laggard.core.selection.round_forecast import ClientProfile, RoundForecast
from laggard.core.selection.simple_selection import RandomSelector
from laggard.core.selection.utility_aware import UtilityAwareParameters, UtilityAwareSelector

WORLD = 6


def make_rule(clients: int = 2, invited: int = 3, samples: int = 10) -> FederatedRule:
    return FederatedRule((samples,) * WORLD, RandomSelector(1), clients, invited)


def answer(rank: int, clock: int, utility: float = 1.0) -> Push:
    return Push(rank, clock, 10, 60, took_s=1.0 + rank, utility=utility)


def begin(rule: FederatedRule) -> Reaction:
    """All workers join; the last one begins the first round."""
    for rank in range(WORLD - 1):
        assert rule.add_member(rank) == Reaction()
    return rule.add_member(WORLD - 1)


def test_the_first_answers_make_a_round_and_later_ones_are_dropped() -> None:
    rule = make_rule()
    first, second, third = (reply.rank for reply in begin(rule).replies)
    assert rule.push(answer(first, 0)) == Reaction()
    ended = rule.push(answer(second, 0))
    (update,) = ended.updates
    assert {push.rank for push in update.pushes} == {first, second}
    assert update.fraction == 1.0
    # The third one still trains, so it is not asked again.
    asked = [reply.rank for reply in ended.replies]
    assert third not in asked
    assert all(reply.clock == 1 for reply in ended.replies)
    late = answer(third, 0)
    assert rule.push(late) == Reaction(dropped=(late,))
    told = ended.ended
    assert told is not None
    assert {each.rank: (each.outcome, each.took_s) for each in told.answers} == {
        first: ("accepted", 1.0 + first),
        second: ("accepted", 1.0 + second),
        third: ("unanswered", None),
    }
    assert {each.reason for each in told.answers} == {"drawn"}


def test_a_round_ends_at_its_deadline_with_the_answers_that_it_has() -> None:
    rule = make_rule(clients=3, invited=3)
    first, second, third = (reply.rank for reply in begin(rule).replies)
    turn = rule.turn
    rule.push(answer(second, 0))
    expired = rule.expire(turn)
    (update,) = expired.updates
    assert [push.rank for push in update.pushes] == [second]
    assert expired.ended is not None
    assert set(expired.ended.list_clients("unanswered")) == {first, third}
    assert {reply.clock for reply in expired.replies} == {1}
    assert rule.turn == turn + 1
    # It has ended, so it cannot end again.
    assert rule.expire(turn) == Reaction()
    # What comes now is late, and its client can be asked again.
    late = answer(first, 0)
    assert rule.push(late).dropped == (late,)
    # Nobody has answered: the round is repeated, without those who still train.
    nobody = rule.expire(turn + 1)
    assert nobody.updates == ()
    assert nobody.ended is not None
    assert nobody.ended.list_clients("accepted") == ()
    assert {reply.clock for reply in nobody.replies} == {1}


@pytest.mark.parametrize("utility", [math.nan, math.inf])
def test_an_answer_that_is_no_number_is_no_part_of_the_model(utility: float) -> None:
    rule = make_rule(clients=2, invited=2)
    first, second = (reply.rank for reply in begin(rule).replies)
    poisoned = answer(first, 0, utility)
    assert rule.push(poisoned) == Reaction(dropped=(poisoned,))
    ended = rule.push(answer(second, 0))
    (update,) = ended.updates
    assert [push.rank for push in update.pushes] == [second]
    assert ended.ended is not None
    assert ended.ended.list_clients("failed") == (first,)


def test_a_round_in_which_all_fail_changes_nothing_and_another_one_begins() -> None:
    rule = make_rule(clients=2, invited=2)
    first, second = (reply.rank for reply in begin(rule).replies)
    rule.remove_member(first)
    ended = rule.remove_member(second)
    assert ended.updates == ()
    assert {reply.clock for reply in ended.replies} == {0}
    assert not {reply.rank for reply in ended.replies} & {first, second}


def test_a_training_whose_losses_are_no_numbers_ends_with_a_message() -> None:
    rule = make_rule(clients=2, invited=2)

    rounds = 0

    def diverge() -> None:
        nonlocal rounds
        asked = [reply.rank for reply in begin(rule).replies]
        while asked:
            reactions = [rule.push(answer(rank, 0, math.nan)) for rank in asked]
            asked = [reply.rank for each in reactions for reply in each.replies]
            rounds += sum(each.ended is not None for each in reactions)

    with pytest.raises(InputError, match=r"10 rounds in a row .* lower optimizer\.lr"):
        diverge()
    assert rounds == MOST_EMPTY_ROUNDS - 1, "the last one raises"


def test_nobody_is_asked_who_has_no_samples() -> None:
    rule = make_rule(samples=0)
    assert begin(rule).replies == ()
    rule.samples = (0, 0, 5, 0, 0, 0)
    assert [reply.rank for reply in rule.add_member(0).replies] == [2]


@given(data=st.data())
def test_rounds_go_on_whoever_answers_is_lost_or_comes_back(data: st.DataObject) -> None:
    """A worker is asked only while it waits, each round has at most as many answers as it needs,
    and there is always somebody who trains, if anybody is there."""
    clients = data.draw(st.integers(1, 4))
    rule = make_rule(clients, data.draw(st.integers(clients, 6)))
    training: dict[int, int] = {}
    waiting, gone, failures = set(range(WORLD)), set[int](), 0

    ended: list[int] = []

    def take(reaction: Reaction) -> None:
        if reaction.ended is not None:
            ended.append(reaction.ended.round)
            accepted = reaction.ended.list_clients("accepted")
            assert accepted == () or [{*accepted}] == [
                {push.rank for push in update.pushes} for update in reaction.updates
            ]
        for update in reaction.updates:
            assert 1 <= len(update.pushes) <= clients
            assert len({push.rank for push in update.pushes}) == len(update.pushes)
        for reply in reaction.replies:
            assert reply.rank in waiting
            waiting.discard(reply.rank)
            training[reply.rank] = reply.clock

    for rank in range(WORLD):
        take(rule.add_member(rank))
    most = MOST_EMPTY_ROUNDS - 1  # An empty round has a failure.
    steps: dict[str, Callable[[int], Reaction]] = {
        "lose": rule.remove_member,
        "return": rule.add_member,
    }
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["answer", "answer", "answer", *steps]))
        able = {"answer": [*training], "lose": [*training, *waiting], "return": [*gone]}[what]
        if not able or (what == "lose" and (len(able) == 1 or failures == most)):
            continue
        rank = data.draw(st.sampled_from(sorted(able)))
        if what == "answer":
            clock = training.pop(rank)
            waiting.add(rank)
            usable = failures == most or data.draw(st.booleans())
            failures += not usable
            take(rule.push(answer(rank, clock, 1.0 if usable else math.nan)))
        elif what == "lose":
            training.pop(rank, None)
            waiting.discard(rank)
            gone.add(rank)
            failures += 1
            take(rule.remove_member(rank))
        else:
            gone.discard(rank)
            waiting.add(rank)
            take(rule.add_member(rank))
        assert training
    assert ended == sorted(ended)


def test_the_first_round_already_knows_who_is_fast() -> None:
    """Three of six clients are ten times slower, and nobody has answered yet."""
    profiles = [ClientProfile(share=1.0 if rank % 2 else 0.1) for rank in range(WORLD)]
    rule = FederatedRule((10,) * WORLD, UtilityAwareSelector(), 3, 3)
    rule.forecast = RoundForecast(profiles, (10,) * WORLD, 0.0)
    assert {reply.rank for reply in begin(rule).replies} == {1, 3, 5}


def test_energy_and_price_change_who_takes_part() -> None:
    """All are equally fast; the selector weighs what their rounds cost."""
    cheap = ClientProfile(sample_j=0.1, hour_price=0.5)
    profiles = [
        cheap if rank in (0, 4) else ClientProfile(1.0, sample_j=1.0, hour_price=5.0)
        for rank in range(WORLD)
    ]
    for parameters in (UtilityAwareParameters(energy=1.0), UtilityAwareParameters(price=1.0)):
        rule = FederatedRule((10,) * WORLD, UtilityAwareSelector(parameters), 2, 2)
        rule.forecast = RoundForecast(profiles, (10,) * WORLD, 0.0)
        selected = begin(rule).replies
        assert {reply.rank for reply in selected} == {0, 4}
        for reply in selected:
            ended = rule.push(answer(reply.rank, 0))
        assert ended.ended is not None
        assert {each.energy_j for each in ended.ended.answers} == {1.0}
