"""Rounds of a Flower app: which client answered in which of them, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.core.run_schema import AnswerOutcome
from laggard.flower.message_log import TRAIN, AppRound, ClientMessage


@dataclass(frozen=True)
class ClientRound:
    """Round as its clients saw it.

    Attributes:
        number: its number, from 0.
        messages: message to train of each selected client, in order of time.
        report: what the strategy of the app said of it; None if it said nothing.
    """

    number: int
    messages: tuple[ClientMessage, ...]
    report: AppRound | None

    @property
    def answered(self) -> tuple[ClientMessage, ...]:
        """Return the messages with a usable answer, the latest last."""
        usable = [each for each in self.messages if classify(each) == "accepted"]
        return tuple(sorted(usable, key=lambda each: each.sent_ns or 0))

    @property
    def ended_ns(self) -> int:
        """Return the time of its last answer, or of its last message if it had none."""
        return max(each.sent_ns or each.received_ns for each in self.messages)

    @property
    def loss(self) -> float:
        """Return the mean training loss that the app reported; NaN if it reported none."""
        return self._find_metric(TRAIN, "loss", float("inf"))

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy that the app reported, from 0 to 1; None if it reported none."""
        found = self._find_metric("evaluate", "acc", 1.0)
        return found if found >= 0 else None

    def _find_metric(self, kind: str, part: str, most: float) -> float:
        metrics = self.report.metrics.get(kind, {}) if self.report is not None else {}
        values = [value for name, value in metrics.items() if part in name.lower()]
        return values[0] if values and values[0] <= most else float("nan")


def classify(message: ClientMessage) -> AnswerOutcome:
    """Return what became of a message of a client."""
    if message.failed:
        return "failed"
    return "unanswered" if message.sent_ns is None else "accepted"


def group_rounds(
    messages: Sequence[ClientMessage], reports: Sequence[AppRound]
) -> tuple[ClientRound, ...]:
    """Group the training messages of all clients into rounds.

    A round ends when as many clients were selected as it sampled, when its answers were aggregated,
    or when a client is selected again. So it is also known for an app that reports no rounds, and
    if some of the clients that it sampled were absent.

    Args:
        messages: messages of all clients; those of other kinds are left out.
        reports: what the strategy of the app said of its rounds, in order.
    """
    rounds: list[ClientRound] = []
    selected: list[ClientMessage] = []
    number = 0

    def find_report() -> AppRound | None:
        return reports[number] if number < len(reports) else None

    def close() -> None:
        nonlocal number
        if selected:
            rounds.append(ClientRound(len(rounds), tuple(selected), find_report()))
            selected.clear()
        number += 1

    for message in sorted(messages, key=lambda each: each.began_ns):
        if message.kind != TRAIN:
            continue
        if any(each.client == message.client for each in selected):
            close()
        while _is_over(find_report(), message.began_ns, len(selected)):
            close()
        selected.append(message)
    if selected:
        close()
    return tuple(rounds)


def _is_over(report: AppRound | None, now_ns: int, selected: int) -> bool:
    """Return whether a round had ended before a client was selected at a time."""
    if report is None:
        return False
    is_full = report.sampled is not None and selected >= report.sampled > 0
    return is_full or (report.aggregated_ns is not None and report.aggregated_ns < now_ns)
