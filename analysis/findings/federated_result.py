"""Result of a federated training: who took part in its rounds, and how accurate it is for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.core.files.input_files import JsonDocument
from laggard.core.run_schema import ClientAccuracies, FederatedTraining, RoundResult
from laggard.core.selection.fairness import compute_jain_index
from laggard.core.text.text_format import (
    format_count,
    format_list,
    format_percent,
    format_seconds,
)

_CLOCK_TOLERANCE = 0.01
"""Part of a round by which the durations of its answers may exceed it, by other clocks."""

_LEAST_SHARE = 0.01
"""Part of the makespan from which a client's slow answers are told."""


@dataclass(frozen=True)
class Participation:
    """Part of a client in all rounds.

    Attributes:
        host: its host.
        selected: rounds that selected it.
        accepted: rounds in which its answer became part of the model.
        unanswered: rounds that ended before its answer.
        failed: rounds in which it was lost, or its answer could not be used.
        clipped: rounds in which its answer was shortened.
        last: rounds that its answer ended, because it was the last one that the round needed.
        prolonged_s: seconds by which these rounds took longer than with the answer before it.
        usual_s: median seconds of its accepted answers; None if there is none.
        energy_j: joules that its computing took; None if they are not known.
    """

    host: RankHost
    selected: int
    accepted: int
    unanswered: int
    failed: int
    clipped: int
    last: int
    prolonged_s: float
    usual_s: float | None
    energy_j: float | None


@dataclass(frozen=True)
class FederatedResult:
    """Result of a federated training.

    Attributes:
        rounds: rounds that changed the model.
        clients: part of each client, in rank order.
        jain_index: Jain's index of how often the clients were selected.
        makespan_s: end of the last round.
        accuracies: accuracies for the clients in the last evaluation; None if they are unknown.
    """

    rounds: int
    clients: tuple[Participation, ...]
    jain_index: float
    makespan_s: float
    accuracies: ClientAccuracies | None

    def average_by_tier(self) -> Mapping[str, float]:
        """Return how often a client of each tier was selected on average."""
        selected: dict[str, list[int]] = {}
        for each in self.clients:
            selected.setdefault(each.host.tier, []).append(each.selected)
        return {tier: sum(own) / len(own) for tier, own in selected.items()}

    def sum_energy_by_tier(self) -> Mapping[str, float]:
        """Return the joules that the clients of each tier took; only tiers where they are known."""
        energy_j: dict[str, float] = {}
        for each in self.clients:
            if each.energy_j is not None:
                tier = each.host.tier
                energy_j[tier] = energy_j.get(tier, 0.0) + each.energy_j
        return energy_j


def find_federated_result(run: RunData) -> FederatedResult | None:
    """Return the result of a federated training; None if it was another one, or had no round."""
    return run.memoize(_find_federated_result)


def _find_federated_result(run: RunData) -> FederatedResult | None:
    if run.federated is None or not run.federated.rounds:
        return None
    return summarize_rounds(run.federated, run.hosts)


def summarize_rounds(training: FederatedTraining, hosts: Sequence[RankHost]) -> FederatedResult:
    """Summarize the rounds of a federated training, of which there must be one at least.

    Args:
        training: rounds and evaluations.
        hosts: host of each client, in rank order.
    """
    counts = Counter(
        (answer.rank, answer.outcome) for each in training.rounds for answer in each.answers
    )
    clipped = Counter(
        answer.rank for each in training.rounds for answer in each.answers if answer.clipped
    )
    lasts = Counter(find_last(each, begun_s) for each, begun_s in list_begins(training))
    prolonged_s = _sum_prolongations(training)
    took_s, energy_j = _list_durations(training), _sum_energy(training)
    clients = tuple(
        Participation(
            host,
            sum(counts[host.rank, outcome] for outcome in ("accepted", "unanswered", "failed")),
            counts[host.rank, "accepted"],
            counts[host.rank, "unanswered"],
            counts[host.rank, "failed"],
            clipped[host.rank],
            lasts[host.rank],
            prolonged_s.get(host.rank, 0.0),
            float(np.median(took_s[host.rank])) if host.rank in took_s else None,
            energy_j.get(host.rank),
        )
        for host in hosts
    )
    return FederatedResult(
        sum(bool(each.list_clients("accepted")) for each in training.rounds),
        clients,
        compute_jain_index([each.selected for each in clients]),
        training.rounds[-1].ended_s,
        training.evaluations[-1] if training.evaluations else None,
    )


def list_begins(training: FederatedTraining) -> Sequence[tuple[RoundResult, float]]:
    """Return each round with the time at which it began, which is the end of the one before it."""
    ends_s = (each.ended_s for each in training.rounds)
    return list(zip(training.rounds, (0.0, *ends_s), strict=False))


def find_last(result: RoundResult, begun_s: float) -> int | None:
    """Return the client whose accepted answer ended a round, because it took longest.

    Args:
        result: the round.
        begun_s: time at which it began; 0 for the first one.

    Returns:
        The client; None if no answer was accepted, or if that one began before the round, as with a
        buffer of answers.
    """
    accepted = [each for each in result.answers if each.outcome == "accepted"]
    if not accepted:
        return None
    last = max(accepted, key=lambda each: each.took_s or 0.0)
    most_s = (result.ended_s - begun_s) * (1 + _CLOCK_TOLERANCE)
    return last.rank if begun_s == 0 or (last.took_s or 0.0) <= most_s else None


def _sum_prolongations(training: FederatedTraining) -> Mapping[int, float]:
    """Return by how many seconds each client's last answers came after the ones before them."""
    prolonged_s: dict[int, float] = {}
    for each, begun_s in list_begins(training):
        took_s = sorted(answer.took_s for answer in each.answers if answer.took_s is not None)
        last = find_last(each, begun_s)
        if last is not None and len(took_s) > 1:
            prolonged_s[last] = prolonged_s.get(last, 0.0) + took_s[-1] - took_s[-2]
    return prolonged_s


def _list_durations(training: FederatedTraining) -> Mapping[int, Sequence[float]]:
    """Return the seconds of each client's accepted answers."""
    took_s: dict[int, list[float]] = {}
    for each in training.rounds:
        for answer in each.answers:
            if answer.took_s is not None:
                took_s.setdefault(answer.rank, []).append(answer.took_s)
    return took_s


def _sum_energy(training: FederatedTraining) -> Mapping[int, float]:
    """Return the joules of each client's rounds; only clients for which they are known."""
    energy_j: dict[int, float] = {}
    for each in training.rounds:
        for answer in each.answers:
            if answer.energy_j is not None:
                energy_j[answer.rank] = energy_j.get(answer.rank, 0.0) + answer.energy_j
    return energy_j


def build_federated_document(result: FederatedResult | None) -> JsonDocument:
    """Return the result for programs; None if the training was not federated."""
    if result is None:
        return None
    accuracies = result.accuracies
    return {
        "rounds": result.rounds,
        "jain_index": result.jain_index,
        "mean_accuracy": None if accuracies is None else accuracies.mean,
        "worst_accuracy": None if accuracies is None else accuracies.worst,
        "worst_rank": None if accuracies is None else accuracies.worst_rank,
        "tiers": {**result.average_by_tier()},
        "energy_j": {**result.sum_energy_by_tier()},
        "clients": [
            {
                "rank": each.host.rank,
                "selected": each.selected,
                "accepted": each.accepted,
                "unanswered": each.unanswered,
                "failed": each.failed,
                "clipped": each.clipped,
                "last": each.last,
                "prolonged_s": each.prolonged_s,
                "usual_s": each.usual_s,
                "energy_j": each.energy_j,
            }
            for each in result.clients
        ],
    }


def format_rounds(result: FederatedResult | None) -> tuple[str, ...]:
    """Return sentences about the rounds; nothing if the training was not federated."""
    if result is None:
        return ()
    return (
        _format_participation(result),
        *_format_slowest(result),
        *_format_lost_answers(result),
        *_format_energy(result),
        *_format_accuracies(result),
    )


def _format_participation(result: FederatedResult) -> str:
    selected = [each.selected for each in result.clients]
    averages = result.average_by_tier()
    least, most = min(selected), max(selected)
    spread = f"between {least} and {most} times" if least < most else format_count(most, "time")
    by_tier = (
        f", on average {format_list([f'{mean:.3g} in {tier}' for tier, mean in averages.items()])}"
        if len(averages) > 1
        else ""
    )
    return (
        f"In {format_count(result.rounds, 'round')}, each client was selected {spread}{by_tier}"
        f" (Jain's index {result.jain_index:.2f}; 1 means all equally often)."
    )


def _format_slowest(result: FederatedResult) -> tuple[str, ...]:
    """Return a sentence about the client whose answers prolonged rounds most, if that matters."""
    most = max(result.clients, key=lambda each: each.prolonged_s)
    share = most.prolonged_s / result.makespan_s if result.makespan_s > 0 else 0.0
    if share < _LEAST_SHARE:
        return ()
    return (
        (
            f"{most.host.host} (rank {most.host.rank}) was the last to answer in"
            f" {format_count(most.last, 'round')}, which took {format_seconds(most.prolonged_s)}"
            f" longer for that ({format_percent(share)} of the makespan)."
        ),
    )


def _format_lost_answers(result: FederatedResult) -> tuple[str, ...]:
    selected = sum(each.selected for each in result.clients)
    late = sum(each.unanswered for each in result.clients)
    failed = sum(each.failed for each in result.clients)
    parts = [
        f"{number} of {selected} {what}"
        for number, what in (
            (late, "clients had not answered when their round ended"),
            (failed, "were lost or answered with what cannot be used"),
        )
        if number
    ]
    told = (f"{format_list(parts)}.",) if parts else ()
    most = max(result.clients, key=lambda each: each.clipped)
    if not most.clipped:
        return told
    clipped = sum(each.clipped for each in result.clients)
    return (
        *told,
        (
            f"{clipped} of {selected} answers changed the model by more than allowed and were"
            f" shortened, {most.clipped} of them by {most.host.host} (rank {most.host.rank})."
        ),
    )


def _format_energy(result: FederatedResult) -> tuple[str, ...]:
    energy_j = result.sum_energy_by_tier()
    if not energy_j:
        return ()
    by_tier = format_list([f"{_round(joules)} in {tier}" for tier, joules in energy_j.items()])
    each_tier = f": {by_tier}" if len(energy_j) > 1 else ""
    return (f"The clients' computing took {_round(sum(energy_j.values()))} J{each_tier}.",)


def _round(number: float) -> str:
    """Format a number with three significant digits, such as 11,500."""
    return f"{float(f'{number:.3g}'):,.10g}"


def _format_accuracies(result: FederatedResult) -> tuple[str, ...]:
    accuracies = result.accuracies
    if accuracies is None:
        return ()
    worst = result.clients[accuracies.worst_rank].host
    return (
        (
            f"At the end, the accuracy on each client's own classes was"
            f" {format_percent(accuracies.mean)} on average, and lowest for {worst.host} (rank"
            f" {worst.rank}): {format_percent(accuracies.worst)}."
        ),
    )
