"""A whole run on hosts of which one has a slow drive, and another's slows down for a while: what is
said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from laggard.core.run_schema import FidelityCheck, Finding
from tests.command_line import SMALL, Laggard, needs_tun

pytestmark = [needs_tun, pytest.mark.long]

HETEROGENEITY = """
deterministic:
  - {hosts: "*", cpu: 30%, read: 4MB/s}
  - {hosts: "cloud.*", write: 2MB/s}
  - {hosts: "edge.trainer.1.2", read: 200kB/s, read_latency: 4ms}
dynamic:
  - {at: 2.5s, for: 2.5s, hosts: "edge.trainer.1.1", read: 100kB/s}
"""
SECONDS = 12
SAMPLE_BYTES = 64


@pytest.fixture
def folder(laggard: Laggard, make_scenario: Callable[..., Path]) -> Path:
    four = SMALL["layers_services.yaml"].replace("quantity: 2", "quantity: 3")
    near = SMALL["network.yaml"].replace("delay: 5ms", "delay: 1ms")
    scenario = make_scenario(layers_services=four, network=near, heterogeneity=HETEROGENEITY)
    settings = (
        "model=mlp",
        "batch_size=128",
        f"stop={{time: {SECONDS}s}}",
        "evaluate_every=1000000",
        "checkpoint_every=30",
    )
    answer = laggard.run(
        scenario, *(part for setting in settings for part in ("--set", f"workload.{setting}"))
    )
    assert answer["status"] in {"done", "unfaithful"}
    return Path(str(answer["folder"]))


def test_slow_drives_are_held_and_recorded(folder: Path) -> None:
    _check_promises(folder)
    _check_fetches(folder)
    _check_finding(folder)


def _check_promises(folder: Path) -> None:
    checks = [
        FidelityCheck.model_validate(each)
        for each in json.loads((folder / "fidelity.json").read_text())
    ]
    storage = [(each.src, each.unit, each.requested) for each in checks if each.kind == "storage"]
    assert sorted(storage) == [
        ("cloud.trainer.1.1", "MB/s", 2.0),
        ("cloud.trainer.1.1", "MB/s", 4.0),
        ("edge.trainer.1.1", "MB/s", 4.0),
        ("edge.trainer.1.2", "MB/s", 0.2),
        ("edge.trainer.1.2", "ms", 4.0),
        ("edge.trainer.1.3", "MB/s", 4.0),
    ]
    begin, end = pq.read_table(folder / "events.parquet").to_pylist()
    assert [(each["quantity"], each["src"], each["value"]) for each in (begin, end)] == [
        ("read_mb_per_s", "edge.trainer.1.1", 0.1),
        ("read_mb_per_s", "edge.trainer.1.1", 4.0),
    ]
    assert (begin["requested_s"], end["requested_s"]) == (2.5, 5.0)
    assert all(each["requested_s"] <= each["effective_s"] for each in (begin, end))


def _check_fetches(folder: Path) -> None:
    """No fetch or checkpoint takes less than the latency and the bytes over the bandwidth, from
    the moment that the event took effect."""
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    fetches = spans[(spans.phase == "fetch") & (spans.work == 32)]
    events = pq.read_table(folder / "events.parquet").to_pandas()
    begin_ns, end_ns = (events.effective_s * 1e9).tolist()
    within = (fetches.start_ns >= begin_ns) & (fetches.start_ns + fetches.dur_ns <= end_ns)
    for rank, during, latency_ms, mb_per_s in (
        (0, fetches.step >= 0, 0.0, 4.0),
        (1, within, 0.0, 0.1),
        (1, fetches.start_ns > end_ns, 0.0, 4.0),
        (2, fetches.step >= 0, 4.0, 0.2),
    ):
        took_ms = fetches[(fetches["rank"] == rank) & during].dur_ns / 1e6
        expected_ms = latency_ms + 32 * SAMPLE_BYTES / mb_per_s / 1e3
        assert len(took_ms) > 0
        assert took_ms.min() >= expected_ms - 0.01
    checkpoints, size = (
        spans[spans.phase == "checkpoint"],
        (folder / "checkpoint.pt").stat().st_size,
    )
    assert list(checkpoints.step) == list(range(29, int(spans.step.max()) + 1, 30))
    assert (checkpoints.dur_ns / 1e6).min() >= 0.99 * size / 2e3
    counted = {
        each["host"]: each for each in json.loads((folder / "counters.json").read_text())["drives"]
    }
    assert {each["read_accesses"] for each in counted.values()} == {int(spans.step.max()) + 1}
    assert (
        counted["cloud.trainer.1.1"]["read_bytes"]
        >= len(fetches[fetches["rank"] == 0]) * 32 * SAMPLE_BYTES
    )


def _check_finding(folder: Path) -> None:
    """The drive that is slow throughout is found, and the change is not taken for one such."""
    found = [
        Finding.model_validate(each)
        for each in json.loads((folder / "stragglers.json").read_text())
    ]
    slow_throughout = {
        each.host for each in found if (each.family, each.kind) == ("storage", "deterministic")
    }
    assert "edge.trainer.1.2" in slow_throughout
    assert "edge.trainer.1.1" not in slow_throughout
