"""Result of the tokens of a federated training: what clients have at the end, and who was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import IntArray
from laggard.analysis.tables.load_run import RankHost
from laggard.core.contribution.ledger import POOL, LedgerEntry, sum_balances
from laggard.core.files.input_files import JsonDocument
from laggard.core.text.text_format import format_count, format_list

_MOST_NAMED = 4


@dataclass(frozen=True)
class TokenResult:
    """Tokens of the clients of a training.

    Attributes:
        balances: tokens of each client at the end, by rank; 0 for one that was never selected.
        cut: number of payments of each client that were cut because of a claim, by rank.
        pool: tokens that were paid in and not paid out; 0 unless a run ended between two entries.
    """

    balances: tuple[int, ...]
    cut: tuple[int, ...]
    pool: int


def summarize_ledger(ledger: Sequence[LedgerEntry], clients: int) -> TokenResult | None:
    """Return the result of a ledger; None without one."""
    if not ledger:
        return None
    balances, cut = sum_balances(ledger), [0] * clients
    for entry in ledger:
        cut[entry.rank] += bool(entry.remark)
    return TokenResult(
        tuple(balances.get(rank, 0) for rank in range(clients)), tuple(cut), balances[POOL]
    )


def accumulate_balances(ledger: Sequence[LedgerEntry], clients: int) -> tuple[IntArray, IntArray]:
    """Return the rounds of a ledger, [R], and the clients' balances after each, [R, clients]."""
    rounds = sorted({entry.round for entry in ledger})
    place = {number: at for at, number in enumerate(rounds)}
    changes = np.zeros((len(rounds), clients), dtype=np.int64)
    for entry in ledger:
        tokens = entry.tokens if entry.kind == "payment" else -entry.tokens
        changes[place[entry.round], entry.rank] += tokens
    return np.array(rounds, dtype=np.int64), changes.cumsum(axis=0)


def build_token_document(result: TokenResult | None) -> JsonDocument:
    """Return the result for programs; None without tokens."""
    if result is None:
        return None
    return {"balances": [*result.balances], "cut": [*result.cut], "pool": result.pool}


def format_tokens(result: TokenResult | None, hosts: Sequence[RankHost]) -> tuple[str, ...]:
    """Return sentences about the tokens; nothing without tokens."""
    if result is None:
        return ()
    most, least = (
        choose(range(len(hosts)), key=result.balances.__getitem__) for choose in (max, min)
    )
    first = (
        f"Of the tokens, {hosts[most].host} (rank {most}) gained most ({result.balances[most]:+})"
        f" and {hosts[least].host} (rank {least}) lost most ({result.balances[least]:+})."
    )
    named = [hosts[rank].host for rank, cut in enumerate(result.cut) if cut]
    if not named:
        return (first,)
    shown = named if len(named) <= _MOST_NAMED else [*named[:_MOST_NAMED], "others"]
    cuts = format_count(sum(result.cut), "payment")
    return (first, f"{cuts.capitalize()} to {format_list(shown)} were cut because of their claims.")
