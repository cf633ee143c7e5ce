"""Cost model on measured networks that its fit has not seen; the table is part of the repository,
so the figures are the same on every machine."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from cost_model import TABLE, find_family, hold_out, read_table

DEVICES = read_table(TABLE)


def test_the_table_has_twenty_networks_on_two_devices() -> None:
    rows = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
    assert {device: len(steps) for device, steps in DEVICES.items()} == {"K80": 20, "P100": 20}
    sizes = {(row["model"], row["flops"], row["tensors"]) for row in rows}
    assert len(sizes) == 20  # a network is the same on both devices


@pytest.mark.parametrize(("device", "most", "line"), [("K80", 0.04, 0.25), ("P100", 0.08, 0.29)])
def test_a_network_that_was_left_out_is_predicted(device: str, most: float, line: float) -> None:
    held_out = hold_out(DEVICES[device], lambda step: step.model)
    assert np.mean([each.error for each in held_out]) <= most
    assert np.mean([each.line_error for each in held_out]) == pytest.approx(line, abs=0.005)
    assert np.mean([each.is_covered for each in held_out]) >= 0.9
    assert all(each.is_covered for each in held_out if not each.predicted.is_extrapolated)


@pytest.mark.parametrize("device", DEVICES)
def test_another_family_is_mostly_marked(device: str) -> None:
    held_out = hold_out(DEVICES[device], find_family)
    unmarked = [each for each in held_out if not each.predicted.is_extrapolated]
    assert len(unmarked) <= 2
    assert all(each.error < 0.3 for each in unmarked)
