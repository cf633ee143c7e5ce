"""Documents of a run folder: what schema 1 called otherwise is still read."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from laggard.core.run_schema import (
    SCHEMA_VERSION,
    Alarm,
    ChurnEvent,
    Decision,
    Record,
    RunRecord,
    StrategyRecord,
)

RECORD_1 = {
    "schema_version": 1,
    "id": "20261125T000000.000Z-abcdef",
    "scenario": "quickstart",
    "status": "done",
    "command": ["laggard", "run", "quickstart"],
    "seed": 1,
    "strategy": {"name": "hop", "pace": "own", "told": "hop, graph ring", "parameters": {}},
    "versions": {},
    "git": None,
    "testbed": "local",
    "started": "2026-11-25T00:00:00Z",
    "churn": [
        {"rank": 1, "host": "edge.s.1.1", "kind": "left", "asked_s": 2.0, "effective_s": 2.1}
    ],
}


def test_a_record_of_schema_1_is_read_and_written_as_schema_2() -> None:
    record = RunRecord.model_validate_json(json.dumps(RECORD_1))
    assert record.strategy.sync_mode == "asynchronous"
    assert record.strategy.description == "hop, graph ring"
    assert record.churn[0].requested_s == 2.0
    written = json.loads(record.model_dump_json())
    assert written["schema_version"] == SCHEMA_VERSION == 2
    assert RunRecord.model_validate(written) == record


@pytest.mark.parametrize(
    ("kind", "old", "field", "value"),
    [
        (Decision, {"step": 3, "at_s": 1.0, "told": "average all"}, "description", "average all"),
        (
            ChurnEvent,
            {"rank": 0, "host": "a", "kind": "joined", "asked_s": 4.0, "effective_s": 5.0},
            "requested_s",
            4.0,
        ),
        (
            Alarm,
            {
                "number": 1,
                "rank": 0,
                "host": "a",
                "link": None,
                "family": "compute",
                "kind": "dynamic",
                "slowdown": 2.0,
                "confidence": 0.9,
                "since_step": 1,
                "since_s": 1.0,
                "raised_step": 2,
                "raised_s": 2.0,
                "told_s": 2.5,
                "last_step": 9,
                "over_s": 9.5,
            },
            "ended_s",
            9.5,
        ),
        (StrategyRecord, {"name": "x", "pace": "lockstep", "told": "x"}, "sync_mode", "lockstep"),
    ],
)
def test_fields_of_schema_1_are_read(
    kind: type[Record], old: dict[str, object], field: str, value: object
) -> None:
    assert getattr(kind.model_validate(old), field) == value


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        Decision.model_validate({"step": 3, "at_s": 1.0, "said": "average all"})
