"""A ledger adds up to zero, and shows whatever was changed in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.contribution.ledger import (
    POOL,
    LedgerEntry,
    append_entry,
    require_whole_ledger,
    sum_balances,
)
from laggard.core.errors import InputError


def write(*transfers: tuple[int, int]) -> list[LedgerEntry]:
    """Fees of three tokens, and payments."""
    entries: list[LedgerEntry] = []
    last = None
    for number, (rank, paid) in enumerate(transfers):
        fee = append_entry(last, number, rank, "fee", 3)
        last = append_entry(fee, number, rank, "payment", paid, "late")
        entries += [fee, last]
    return entries


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8))
def test_it_adds_up_and_is_whole(transfers: list[tuple[int, int]]) -> None:
    entries = write(*transfers)
    require_whole_ledger(entries)
    balances = sum_balances(entries)
    assert sum(balances.values()) == 0
    for rank, _ in transfers:
        assert balances[rank] == sum(paid - 3 for each, paid in transfers if each == rank)
    assert balances[POOL] == sum(3 - paid for _, paid in transfers)


@given(st.data())
def test_any_change_is_seen(data: st.DataObject) -> None:
    entries = write((0, 4), (1, 2), (0, 9))
    place = data.draw(st.integers(0, len(entries) - 1))
    changed = {
        "tokens": entries[place].tokens + 1,
        "rank": entries[place].rank + 1,
        "round": entries[place].round + 1,
        "remark": "forged",
        "kind": "fee" if entries[place].kind == "payment" else "payment",
        "number": 99,
        "previous": "f" * 64,
        "digest": "f" * 64,
    }
    field = data.draw(st.sampled_from(sorted(changed)))
    entries[place] = entries[place].model_copy(update={field: changed[field]})
    with pytest.raises(InputError, match=r"entry \d of the ledger .* use the original file"):
        require_whole_ledger(entries)


@pytest.mark.parametrize("removed", range(5))
def test_a_missing_entry_is_seen(removed: int) -> None:
    entries = write((0, 4), (1, 2), (0, 9))
    del entries[removed]
    with pytest.raises(InputError, match="does not follow"):
        require_whole_ledger(entries)
