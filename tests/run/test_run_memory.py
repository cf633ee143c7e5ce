"""A run whose worker is too big for its host ends with a message that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.core.run_schema import RunRecord
from tests.command_line import SMALL, Laggard, needs_tun
from tests.faults import Fault, holds

pytestmark = [needs_tun, pytest.mark.long]


@holds(Fault.WORKER_TOO_BIG)
def test_a_worker_too_big_for_its_host_fails_and_says_why(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    memory = SMALL["heterogeneity.yaml"] + '  - {hosts: "edge.trainer.1.2", memory: 250MiB}\n'
    answer = laggard.run(
        make_scenario(heterogeneity=memory), "--set", "workload.model=resnet18", status=1
    )
    record = RunRecord.model_validate_json((Path(str(answer["folder"])) / "run.json").read_bytes())
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.startswith("rank 2 on edge.trainer.1.2: holds ")
    assert (
        "edge.trainer.1.2 has only 250 MiB of memory — raise `memory` in heterogeneity.yaml"
        in record.error
    )
    assert "Traceback" not in record.error
