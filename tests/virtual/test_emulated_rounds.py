"""The same federated training on emulated hosts and in virtual time, with the steps of the former."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laggard.analysis.tables.load_run import RunData, load_run
from tests.virtual.federated_scenario import SHARES, write_federated

if TYPE_CHECKING:
    from tests.command_line import Laggard

pytestmark = pytest.mark.long

WORKLOAD = {
    "strategy": {
        "name": "federated",
        "clients": len(SHARES),
        "local_epochs": 2,
        "energy": {"edge.*": 0.5},
        "tokens": {"fee": 10, "free_riders": "edge.client.1.2"},
    },
    "stop": {"steps": 4},
    "evaluate_every": 10**9,
}


def test_the_same_rounds_are_paid_alike(laggard: Laggard, tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "clients", WORKLOAD)
    emulated = load(laggard.run(folder))
    virtual = load(laggard.run(folder, "--on", "virtual", "--from", str(emulated.folder)))
    assert emulated.ledger == virtual.ledger
    assert len(emulated.ledger) == 2 * len(SHARES) * 4
    for each in (emulated, virtual):
        assert each.federated is not None
        answers = [answer for one in each.federated.rounds for answer in one.answers]
        assert {answer.outcome for answer in answers} == {"accepted"}
        assert all((answer.energy_j or 0) > 0 for answer in answers)
    # What a client takes is in proportion to its share, so the slowest one is known.
    slowest = [
        max(one.answers, key=lambda answer: answer.took_s or 0.0).rank
        for one in virtual.federated.rounds  # type: ignore[union-attr]
    ]
    assert len(set(slowest)) == 1


def load(result: dict[str, object]) -> RunData:
    return load_run(Path(str(result["folder"])))
