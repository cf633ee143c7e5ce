"""Ledger of tokens: entries that name the digest of the one before, so that none can be changed.

A changed, removed, added or moved entry breaks the chain from there on, except at the very end,
which only the last digest shows. Balances of all accounts add up to zero.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from laggard.core.errors import InputError
from laggard.core.run_schema import Record

FIRST_DIGEST = "0" * 64
"""Digest before the first entry."""

POOL = -1
"""Account to which fees are paid and from which contributions are paid."""


TransferKind = Literal["fee", "payment"]
"""From a client to the pool of fees, or from it to a client."""


class LedgerEntry(Record):
    """Transfer of tokens between a client and the pool of fees.

    Attributes:
        number: number of the entry, from 0.
        round: round that it belongs to.
        rank: rank of the client.
        kind: `fee` from the client to the pool, `payment` from the pool to the client.
        tokens: tokens that are transferred.
        remark: why a client gets less than its contribution; empty if it does not.
        previous: digest of the entry before.
        digest: SHA-256 of all that, as hexadecimal digits.
    """

    number: int = Field(ge=0)
    round: int = Field(ge=0)
    rank: int = Field(ge=0)
    kind: TransferKind
    tokens: int = Field(ge=0)
    remark: str = ""
    previous: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def append_entry(
    last: LedgerEntry | None,
    in_round: int,
    rank: int,
    kind: TransferKind,
    tokens: int,
    remark: str = "",
) -> LedgerEntry:
    """Return the entry that follows the last one; None stands for an empty ledger."""
    previous = FIRST_DIGEST if last is None else last.digest
    draft = LedgerEntry(
        number=0 if last is None else last.number + 1,
        round=in_round,
        rank=rank,
        kind=kind,
        tokens=tokens,
        remark=remark,
        previous=previous,
        digest=FIRST_DIGEST,
    )
    return draft.model_copy(update={"digest": compute_digest(draft)})


def compute_digest(entry: LedgerEntry) -> str:
    """Return the digest of an entry, computed from its other fields."""
    content = json.dumps(entry.model_dump(exclude={"digest"}), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()


def require_whole_ledger(entries: Iterable[LedgerEntry]) -> None:
    """Require that nobody has changed a ledger.

    Raises:
        InputError: an entry does not follow the one before it, or was changed.
    """
    previous = FIRST_DIGEST
    for number, entry in enumerate(entries):
        if entry.number != number or entry.previous != previous:
            raise InputError(
                f"entry {number} of the ledger does not follow the one before it, so entries were"
                " removed, added or moved — use the original file"
            )
        if entry.digest != compute_digest(entry):
            raise InputError(
                f"entry {number} of the ledger does not have its digest, so it was changed — use"
                " the original file"
            )
        previous = entry.digest


def sum_balances(entries: Iterable[LedgerEntry]) -> dict[int, int]:
    """Return the balance of every account, that of the pool of fees too; they add up to 0."""
    balances = {POOL: 0}
    for entry in entries:
        to_client = entry.tokens if entry.kind == "payment" else -entry.tokens
        balances[entry.rank] = balances.get(entry.rank, 0) + to_client
        balances[POOL] -= to_client
    return balances
