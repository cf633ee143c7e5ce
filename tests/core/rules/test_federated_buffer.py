"""A server that follows its clients without rounds, under any order of answers, losses and joins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.rules.federated_rounds import MOST_EMPTY_ROUNDS, BufferedRule, FederatedRule
from laggard.core.rules.server_rule import Push, Reaction
from laggard.core.selection.simple_selection import RandomSelector

WORLD = 6


def make_rule(buffer: int, training: int, world: int = WORLD) -> BufferedRule:
    return BufferedRule((10,) * world, RandomSelector(1), buffer, training)


def answer(rank: int, clock: int, utility: float = 1.0) -> Push:
    return Push(rank, clock, 10, 60, took_s=1.0 + rank, utility=utility)


def begin(rule: FederatedRule, world: int = WORLD) -> dict[int, int]:
    """All clients join, and those that are asked have their clocks."""
    for rank in range(world - 1):
        assert rule.add_member(rank) == Reaction()
    return {reply.rank: reply.clock for reply in rule.add_member(world - 1).replies}


def test_another_client_is_asked_as_soon_as_one_has_answered() -> None:
    rule = make_rule(buffer=2, training=3)
    first, second, third = begin(rule)
    (fourth,) = (reply.rank for reply in rule.push(answer(first, 0)).replies)
    assert fourth not in {first, second, third}
    reaction = rule.push(answer(second, 0))
    (update,) = reaction.updates
    assert ({push.rank for push in update.pushes}, update.clock) == ({first, second}, 0)
    assert reaction.ended is not None
    assert set(reaction.ended.list_clients("accepted")) == {first, second}
    assert [reply.clock for reply in reaction.replies] == [1], "the third and fourth still train"


def test_a_change_counts_less_for_each_update_that_came_before_it() -> None:
    rule = make_rule(buffer=1, training=2, world=2)
    begin(rule, 2)
    for clock in range(3):
        (update,) = rule.push(answer(0, clock)).updates
        assert update.discounts == {0: 1.0}
    (update,) = rule.push(answer(1, 0)).updates
    assert update.discounts == {1: pytest.approx(1 / math.sqrt(1 + 3))}
    assert update.clock == 3


def test_with_all_clients_in_each_update_there_are_rounds() -> None:
    """Then every answer begins with the model that it changes, as in federated averaging."""
    rules = make_rule(3, 3, 3), FederatedRule((10,) * 3, RandomSelector(1), 3, 3)
    assert begin(rules[0], 3) == begin(rules[1], 3)
    for clock in range(4):
        for rank in (2, 0, 1):
            buffered, in_rounds = (rule.push(answer(rank, clock)) for rule in rules)
            ranks = [{reply.rank for reply in each.replies} for each in (buffered, in_rounds)]
            assert ranks[0] == ranks[1]
            pushed = [[each.pushes for each in found.updates] for found in (buffered, in_rounds)]
            assert pushed[0] == pushed[1]
            assert all(set(each.discounts.values()) == {1.0} for each in buffered.updates)


def test_those_left_make_an_update_of_what_they_have() -> None:
    rule = make_rule(buffer=3, training=3, world=3)
    begin(rule, 3)
    assert rule.push(answer(0, 0)).updates == ()
    assert rule.remove_member(1).updates == ()
    reaction = rule.remove_member(2)
    assert [[push.rank for push in each.pushes] for each in reaction.updates] == [[0]]
    assert [(reply.rank, reply.clock) for reply in reaction.replies] == [(0, 1)]


def test_a_client_that_left_with_its_answer_in_the_buffer_is_not_asked() -> None:
    rule = make_rule(buffer=2, training=2, world=3)
    asked = begin(rule, 3)
    gone, other = asked
    (third,) = (reply.rank for reply in rule.push(answer(gone, 0)).replies)
    rule.remove_member(gone)
    reaction = rule.push(answer(other, 0))
    assert {push.rank for push in reaction.updates[0].pushes} == {gone, other}
    assert {reply.rank for reply in reaction.replies} == {other}
    assert third not in {gone, other}


def test_a_training_without_a_usable_answer_ends_with_a_message() -> None:
    rule = make_rule(buffer=2, training=3)
    training = begin(rule)
    for _ in range(MOST_EMPTY_ROUNDS * 3 - 1):
        rank, clock = training.popitem()
        reaction = rule.push(answer(rank, clock, math.nan))
        training |= {reply.rank: reply.clock for reply in reaction.replies}
    last = answer(*training.popitem(), math.nan)
    with pytest.raises(InputError, match="no answer that could be used"):
        rule.push(last)


@given(data=st.data())
def test_it_goes_on_whoever_answers_is_lost_or_comes_back(data: st.DataObject) -> None:
    """No more train than may, every answer is in one update, and somebody always trains."""
    most = data.draw(st.integers(1, WORLD))
    buffer = data.draw(st.integers(1, most))
    rule = make_rule(buffer, most)
    training: dict[int, int] = {}
    present = set(range(WORLD))
    answered, applied = list[tuple[int, int]](), list[tuple[int, int]]()
    numbers: list[int] = []

    def take(reaction: Reaction) -> None:
        for update in reaction.updates:
            assert 1 <= len(update.pushes) <= buffer
            applied.extend((push.rank, push.clock) for push in update.pushes)
            numbers.append(update.clock)
            ages = [update.clock - push.clock for push in update.pushes]
            assert [*update.discounts.values()] == [(1 + age) ** -0.5 for age in ages]
        for reply in reaction.replies:
            assert reply.rank in present
            assert reply.rank not in training
            training[reply.rank] = reply.clock
        assert len(training) <= most

    for rank in range(WORLD):
        take(rule.add_member(rank))
    failures = 0
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["answer", "answer", "answer", "lose", "return"]))
        gone = sorted(set(range(WORLD)) - present)
        able = {"answer": sorted(training), "lose": sorted(present), "return": gone}[what]
        if not able or (what == "lose" and (len(able) == 1 or failures == MOST_EMPTY_ROUNDS - 1)):
            continue
        rank = data.draw(st.sampled_from(able))
        if what == "answer":
            clock = training.pop(rank)
            usable = failures == MOST_EMPTY_ROUNDS - 1 or data.draw(st.booleans())
            failures += not usable
            answered += [(rank, clock)] * usable
            take(rule.push(answer(rank, clock, 1.0 if usable else math.nan)))
        elif what == "lose":
            failures += training.pop(rank, None) is not None
            present.discard(rank)
            take(rule.remove_member(rank))
        else:
            present.add(rank)
            take(rule.add_member(rank))
        assert training
    assert len(applied) == len(set(applied))
    assert set(applied) <= set(answered)
    assert len(answered) - len(applied) < buffer
    assert numbers == list(range(len(numbers)))
