"""Rounds that are drawn, told from the messages of their clients and what the app says."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from laggard.flower.client_rounds import classify, group_rounds
from laggard.flower.message_log import AppRound, ClientMessage

CLIENTS = 5


@st.composite
def drawn_rounds(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """For each round, the clients that it samples, and those of them that are absent."""
    rounds = []
    for _ in range(draw(st.integers(1, 6))):
        clients = draw(st.permutations(range(CLIENTS)))[: draw(st.integers(1, CLIENTS))]
        absent = [each for each in clients[1:] if draw(st.booleans())]
        rounds.append((list(clients), absent))
    return rounds


def play(rounds: list[tuple[list[int], list[int]]]) -> tuple[list[ClientMessage], list[AppRound]]:
    """What clients and app would write: each round begins after the one before it."""
    messages, reports, now_ns = [], [], 0
    for number, (clients, absent) in enumerate(rounds):
        present = [each for each in clients if each not in absent]
        for i, client in enumerate(present):
            times_ns = (now_ns + i, now_ns + 10 + i, now_ns + 50 + i, now_ns + 60 + i)
            messages.append(ClientMessage(client, "train", *times_ns))
            messages.append(ClientMessage(client, "evaluate", *(each + 100 for each in times_ns)))
        counts = (len(clients), len(present), len(absent))
        reports.append(AppRound(number + 1, now_ns, now_ns + 80, *counts))
        now_ns += 1000
    return messages, reports


@given(rounds=drawn_rounds())
def test_rounds_are_told_apart(rounds: list[tuple[list[int], list[int]]]) -> None:
    messages, reports = play(rounds)
    found = group_rounds(messages, reports)
    expected = [[each for each in clients if each not in absent] for clients, absent in rounds]
    assert [[each.client for each in round_.messages] for round_ in found] == expected
    assert [round_.report for round_ in found] == reports
    assert [round_.number for round_ in found] == list(range(len(rounds)))


@given(rounds=drawn_rounds())
def test_a_round_that_nobody_was_there_for_is_left_out(
    rounds: list[tuple[list[int], list[int]]],
) -> None:
    messages, reports = play([*rounds, ([0, 1], [])])
    gone_ns = reports[-2].began_ns
    left = [each for each in messages if not gone_ns <= each.began_ns < gone_ns + 1000]
    found = group_rounds(left, reports)
    assert [round_.report for round_ in found] == [*reports[:-2], reports[-1]]


def test_an_app_that_reports_no_rounds_has_those_of_its_clients() -> None:
    messages, _ = play([([0, 1, 2], []), ([2, 0], [])])
    found = group_rounds(messages, ())
    assert [[each.client for each in round_.messages] for round_ in found] == [[0, 1, 2], [2, 0]]
    assert all(round_.accuracy is None and math.isnan(round_.loss) for round_ in found)


def test_loss_and_accuracy_are_those_of_the_app() -> None:
    metrics = {"train": {"my_loss": 0.5}, "evaluate": {"val_accuracy": 0.9, "loss": 1.0}}
    message = ClientMessage(0, "train", 0, 1, 2, 3)
    (one,) = group_rounds([message], [AppRound(1, 0, 9, 1, 1, 0, metrics)])
    assert (one.loss, one.accuracy) == (0.5, 0.9)
    percent = AppRound(1, 0, 9, 1, 1, 0, {"evaluate": {"acc": 90.0}})
    (other,) = group_rounds([message], [percent])
    assert other.accuracy is None, "it would be a percentage, or no accuracy"


def test_what_became_of_a_message() -> None:
    assert classify(ClientMessage(0, "train", 0, 1, 2, 3)) == "accepted"
    assert classify(ClientMessage(0, "train", 0, 1, 2)) == "unanswered"
    assert classify(ClientMessage(0, "train", 0, 1, 2, 3, failed=True)) == "failed"
