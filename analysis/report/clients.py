"""Tables of the clients and rounds of a federated training for the report."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.analysis.findings.federated_result import (
    Participation,
    find_federated_result,
    find_last,
)
from laggard.analysis.report.run_setup import ReportTable
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import RoundResult
from laggard.core.text.text_format import format_seconds

MOST_ROWS = 256
_MOST_NAMED = 12


def build_federated_tables(run: RunData) -> tuple[ReportTable, ...]:
    """Return the tables of clients and of rounds, each with at most 256 rows; none without rounds.

    The clients are those that prolonged rounds most, and the rounds are the first ones.
    """
    result, training = find_federated_result(run), run.federated
    if result is None or training is None:
        return ()
    order = sorted(result.clients, key=lambda each: (-each.prolonged_s, -(each.usual_s or 0.0)))
    clients = tuple(_format_client(each) for each in order[:MOST_ROWS])
    rounds = tuple(_format_rounds(run, training.rounds[:MOST_ROWS]))
    return (
        ReportTable(
            _title("Clients", len(clients), len(order)),
            (
                "Rank",
                "Host",
                "Tier",
                "Selected",
                "Accepted",
                "Too late",
                "Failed",
                "Shortened",
                "Last in the round",
                "Prolonged rounds by",
                "Usual time of an answer",
            ),
            clients,
        ),
        ReportTable(
            _title("Rounds", len(rounds), len(training.rounds)),
            ("Round", "End", "Duration", "Ended by", "Selected, and why"),
            rounds,
        ),
    )


def _title(name: str, shown: int, all_rows: int) -> str:
    return f"{name} ({shown} of {all_rows})" if shown < all_rows else f"{name} ({all_rows})"


def _format_client(client: Participation) -> tuple[str, ...]:
    counts = (
        client.selected,
        client.accepted,
        client.unanswered,
        client.failed,
        client.clipped,
        client.last,
    )
    return (
        str(client.host.rank),
        client.host.host,
        client.host.tier,
        *map(str, counts),
        format_seconds(client.prolonged_s),
        "-" if client.usual_s is None else format_seconds(client.usual_s),
    )


def _format_rounds(run: RunData, rounds: tuple[RoundResult, ...]) -> Iterator[tuple[str, ...]]:
    begun_s = 0.0
    for each in rounds:
        last = find_last(each, begun_s)
        yield (
            str(each.round + 1),
            format_seconds(each.ended_s),
            format_seconds(each.ended_s - begun_s),
            "-" if last is None else run.hosts[last].host,
            _list_selected(run, each),
        )
        begun_s = each.ended_s


def _list_selected(run: RunData, result: RoundResult) -> str:
    """Return the hosts that were selected, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for each in result.answers[:_MOST_NAMED]:
        by_reason.setdefault(each.reason, []).append(run.hosts[each.rank].host)
    more = len(result.answers) - _MOST_NAMED
    listed = "; ".join(f"{', '.join(hosts)} ({reason})" for reason, hosts in by_reason.items())
    return f"{listed}; {more} more" if more > 0 else listed
