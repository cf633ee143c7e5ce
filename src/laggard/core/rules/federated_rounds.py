"""Rounds of a federated training: who is asked, whose answers count, and when the next one begins.

In a round, some clients get the model, train on their own samples, and answer with the change of
their model. The answers of the first `clients` of them become one update; a round may ask more
(over-commitment), whose later answers are dropped. McMahan et al., AISTATS 2017; Bonawitz et al.,
SysML 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.core.errors import InputError
from laggard.core.rules.server_rule import Push, Reaction, ServerReply, Update
from laggard.core.run_schema import AnswerOutcome, RoundAnswer, RoundResult
from laggard.core.selection.round_forecast import RoundForecast
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientChoice,
    ClientResult,
    ClientSelection,
    ClientSelector,
)
from laggard.core.span_schema import NOBODY

MOST_EMPTY_ROUNDS = 10
"""Rounds in a row without a usable answer after which training cannot recover."""


@dataclass
class FederatedRule:
    """Rule of a server that trains in rounds (see `ServerUpdateRule`).

    A worker is answered when it is asked to take part in a round. Before the first round, the rule
    waits until all expected workers have joined. It raises InputError after ten rounds in a row
    without a usable answer, since the model would stay as it is for ever.

    Attributes:
        samples: samples of each client.
        selector: selection of the clients of a round.
        clients: answers that make a round, at least 1.
        invited: clients that a round asks, at least `clients`.
        deadline_s: seconds after which a round ends with the answers that it has; None for no
            limit. The server calls `expire` then.
        turn: number of rounds that have begun, repeated ones too.
        forecast: forecast of the clients' rounds; without one, a client that has not answered yet
            is expected to take as long as the others on average.
    """

    samples: Sequence[int]
    selector: ClientSelector
    clients: int
    invited: int
    deadline_s: float | None = None
    turn: int = 0
    forecast: RoundForecast | None = None
    _round: int = 0
    _expected: set[int] = field(init=False)
    _idle: set[int] = field(default_factory=set)
    _asked: set[int] = field(default_factory=set)
    _failed: set[int] = field(default_factory=set)
    _accepted: list[Push] = field(default_factory=list)
    _selection: ClientSelection | None = None
    _empty_rounds: int = 0
    _took_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._expected = set(range(len(self.samples)))

    def push(self, push: Push) -> Reaction:
        """Handle the answer of a client (see `ServerUpdateRule`)."""
        self._idle.add(push.rank)
        if math.isfinite(push.took_s) and push.took_s > 0:
            self._took_s[push.rank] = push.took_s
        if push.rank not in self._asked:
            self.selector.report(ClientResult(push.rank, "late", push.took_s))
            return self._continue(push.rank, (push,))
        self._asked.discard(push.rank)
        result = ClientResult(push.rank, "accepted", push.took_s, push.utility)
        if push.samples < 1 or result.is_failure:
            self._fail(push.rank, push.took_s)
            return self._continue(push.rank, (push,))
        self.selector.report(result)
        self._accepted.append(push)
        return self._continue(push.rank)

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a client that is gone (see `ServerUpdateRule`)."""
        self._expected.discard(rank)
        self._idle.discard(rank)
        if rank in self._asked:
            self._asked.discard(rank)
            self._fail(rank, 0.0)
        return self._continue(rank)

    def add_member(self, rank: int) -> Reaction:
        """Let a client wait until it is asked (see `ServerUpdateRule`)."""
        self._expected.discard(rank)
        self._idle.add(rank)
        return self._continue(rank)

    def expire(self, turn: int) -> Reaction:
        """End a round whose deadline has come, unless it has ended already.

        Args:
            turn: value of `turn` when it began.
        """
        if turn != self.turn or self._selection is None:
            return Reaction()
        ended, updates = self._end_round(self._selection)
        return Reaction(updates, self._begin_round(NOBODY), ended=ended)

    def _fail(self, rank: int, took_s: float) -> None:
        self._failed.add(rank)
        self.selector.report(ClientResult(rank, "failed", took_s))

    def _continue(self, cause: int, dropped: tuple[Push, ...] = ()) -> Reaction:
        """End the round if enough have answered, and begin the next one if none is in progress."""
        if self._selection is None:
            return Reaction(replies=self._begin_round(cause), dropped=dropped)
        if self._asked and len(self._accepted) < self.clients:
            return Reaction(dropped=dropped)
        ended, updates = self._end_round(self._selection)
        return Reaction(updates, self._begin_round(cause), dropped, ended)

    def _end_round(self, selection: ClientSelection) -> tuple[RoundResult, tuple[Update, ...]]:
        accepted = sorted(self._accepted, key=lambda push: push.rank)
        ended = self._describe_round(selection)
        # Those that were asked and have not answered are late from now on.
        self._asked.clear()
        self._failed.clear()
        self._accepted.clear()
        self._selection = None
        self._empty_rounds = 0 if accepted else self._empty_rounds + 1
        if self._empty_rounds == MOST_EMPTY_ROUNDS:
            raise _make_empty_error()
        if not accepted:
            return ended, ()
        self._round += 1
        return ended, (Update(tuple(accepted), 1.0),)

    def _describe_round(self, selection: ClientSelection) -> RoundResult:
        accepted = {push.rank: push for push in self._accepted}

        def describe(choice: ClientChoice) -> RoundAnswer:
            push = accepted.get(choice.client)
            outcome: AnswerOutcome = "failed" if choice.client in self._failed else "unanswered"
            return RoundAnswer(
                rank=choice.client,
                reason=choice.reason,
                outcome=outcome if push is None else "accepted",
                took_s=None if push is None else push.took_s,
                clipped=push is not None and push.clipped,
                energy_j=None
                if self.forecast is None
                else self.forecast.compute_energy_j(choice.client),
            )

        return RoundResult(round=self._round, answers=tuple(map(describe, selection.choices)))

    def _begin_round(self, cause: int) -> tuple[ServerReply, ...]:
        if self._expected:
            return ()
        selection = self.selector.select(self._list_candidates(), self.invited)
        if not selection.clients:
            return ()
        self._selection = selection
        return self._reply_to_selected(selection, cause)

    def _list_candidates(self) -> list[ClientCandidate]:
        forecast = self.forecast
        if forecast is None:
            known = [*self._took_s.values()]
            guess_s = sum(known) / len(known) if known else 1.0
            return [
                ClientCandidate(rank, self.samples[rank], self._took_s.get(rank, guess_s))
                for rank in sorted(self._idle)
            ]
        predicted_s = forecast.predict(self._took_s)
        return [
            ClientCandidate(
                rank,
                self.samples[rank],
                predicted_s[rank],
                forecast.compute_energy_j(rank),
                forecast.compute_price(rank, predicted_s[rank]),
            )
            for rank in sorted(self._idle)
        ]

    def _reply_to_selected(self, selection: ClientSelection, cause: int) -> tuple[ServerReply, ...]:
        self.turn += 1
        self._asked |= set(selection.clients)
        self._idle -= self._asked
        return tuple(
            ServerReply(rank, self._round, NOBODY if rank == cause else cause)
            for rank in selection.clients
        )


@dataclass
class BufferedRule(FederatedRule):
    """Rule of a server that follows its clients without rounds (FedBuff).

    `invited` clients train at any time: as soon as one has answered, another is selected. `clients`
    answers, which began with different versions of the model, become one update. The change of an
    answer counts 1 / sqrt(1 + s), where s is the number of updates since its client was selected. A
    client whose answer waits for its update is not selected again before. J. Nguyen et al.,
    "Federated learning with buffered asynchronous aggregation", AISTATS 2022; with `clients` of 1,
    the staleness function of FedAsync (C. Xie et al., OPT 2020).
    """

    _choices: dict[int, ClientChoice] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _failures: int = 0

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a client that is gone, whose earlier answer still counts."""
        self._gone.add(rank)
        return super().remove_member(rank)

    def add_member(self, rank: int) -> Reaction:
        """Let a client wait until it is asked (see `ServerUpdateRule`)."""
        self._gone.discard(rank)
        return super().add_member(rank)

    def _fail(self, rank: int, took_s: float) -> None:
        super()._fail(rank, took_s)
        self._failures += 1
        if self._failures == MOST_EMPTY_ROUNDS * self.invited:
            raise _make_empty_error()

    def _continue(self, cause: int, dropped: tuple[Push, ...] = ()) -> Reaction:
        """Make an update if enough have answered, and let others begin."""
        self._idle -= {push.rank for push in self._accepted}
        flushed = self._flush() if len(self._accepted) >= self.clients else None
        replies = self._select_more(cause)
        if flushed is None and self._accepted and not (replies or self._asked):
            # Nobody else is there, so the buffer would stay as it is.
            flushed, replies = self._flush(), self._select_more(cause)
        if flushed is None:
            return Reaction(replies=replies, dropped=dropped)
        ended, update = flushed
        return Reaction((update,), replies, dropped, ended)

    def _select_more(self, cause: int) -> tuple[ServerReply, ...]:
        """Select as many idle clients as may train beside those that do."""
        wanted = self.invited - len(self._asked)
        if self._expected or wanted < 1 or not self._idle:
            return ()
        selection = self.selector.select(self._list_candidates(), wanted)
        self._choices |= {choice.client: choice for choice in selection.choices}
        return self._reply_to_selected(selection, cause)

    def _flush(self) -> tuple[RoundResult, Update]:
        """Make one update of the answers in the buffer, whose clients may be selected again."""
        accepted = tuple(sorted(self._accepted, key=lambda push: push.rank))
        over = {push.rank for push in accepted} | self._failed
        ended = self._describe_round(ClientSelection(tuple(self._choices[each] for each in over)))
        discounts = {push.rank: (1 + self._round - push.clock) ** -0.5 for push in accepted}
        update = Update(accepted, 1.0, self._round, discounts)
        self._idle |= {push.rank for push in accepted} - self._gone
        self._failed.clear()
        self._accepted.clear()
        self._failures = 0
        self._round += 1
        return ended, update


def _make_empty_error() -> InputError:
    return InputError(
        f"federated: {MOST_EMPTY_ROUNDS} rounds in a row had no answer that could be used;"
        " clients were lost or took longer than the deadline, or their losses or weights"
        " are not finite — lower optimizer.lr or strategy.server.lr, or give more time with"
        " strategy.deadline"
    )
