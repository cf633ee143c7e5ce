"""Tokens of a training in virtual time: balanced, and neither idleness nor false claims pay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laggard.core.contribution.ledger import (
    LedgerEntry,
    require_whole_ledger,
    sum_balances,
)
from tests.virtual.test_federated_simulation import simulate

ROUNDS = 25


def run_with(folder: Path, seed: int, **tokens: object) -> dict[int, int]:
    workload = {
        "births": None,
        "strategy": {"name": "federated", "clients": 4, "tokens": {"fee": 10, **tokens}},
        "optimizer": {"name": "sgd", "lr": 0.02},
        "stop": {"steps": ROUNDS},
        "evaluate_every": 10**9,
        "seed": seed,
    }
    output_dir, _ = simulate(folder, workload)
    lines = output_dir.ledger.read_text().splitlines()
    entries = [LedgerEntry.model_validate(json.loads(line)) for line in lines]
    require_whole_ledger(entries)
    assert len(entries) == 2 * 4 * ROUNDS
    return sum_balances(entries)


@pytest.mark.parametrize("valuation", ["shapley", "leave_one_out"])
def test_free_riders_and_liars_lose(tmp_path: Path, valuation: str) -> None:
    balances = run_with(
        tmp_path,
        1,
        valuation=valuation,
        free_riders="edge.client.1.1",
        claims={"edge.client.1.2": 39},
    )
    assert sum(balances.values()) == 0
    dishonest, honest = [balances[0], balances[1]], [balances[2], balances[3]]
    assert max(dishonest) < min(honest)
    assert max(dishonest) < 0


def test_those_who_are_alike_get_alike(tmp_path: Path) -> None:
    balances = run_with(tmp_path, 2)
    assert sum(balances.values()) == 0
    assert max(map(abs, balances.values())) < 10 * ROUNDS / 2
