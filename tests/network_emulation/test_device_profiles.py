"""Speeds of real devices: those of the published list, drawn with a seed."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from laggard.network_emulation.compute.plan_shares import plan_shares
from laggard.network_emulation.device_profiles import draw_device_shares, load_device_groups
from laggard.network_emulation.model import Heterogeneity, HostRule
from tests.network_emulation.emulated import make_hosts


def test_speeds_spread_as_published() -> None:
    """FLASH's list has 307 phones, and a factor of 39 between its tenths."""
    phones = np.array([*load_device_groups()["phones"].values()])
    assert len(phones) == 307
    low, median, high = np.quantile(phones, [0.1, 0.5, 0.9])
    assert high / low == pytest.approx(39, abs=1)
    assert median == pytest.approx(0.04638)
    assert 0 < phones.min() < phones.max() < 1


def test_a_group_is_drawn_with_its_seed() -> None:
    phones = {*load_device_groups()["phones"].values()}
    first = draw_device_shares("phones", 1000, seed=1)
    assert first == draw_device_shares("phones", 1000, seed=1)
    assert first != draw_device_shares("phones", 1000, seed=2)
    assert {*first} <= phones
    assert len({*first}) > 250
    assert np.median(first) == pytest.approx(0.046, rel=0.2)


def test_a_cpu_wins_over_a_device() -> None:
    hosts = [host for host in make_hosts(edge=4) if host.layer == "edge"]
    rules = [
        {"hosts": "edge.*", "device": "google_pixel_4"},
        {"hosts": hosts[1].name, "device": "google_pixel_4", "cpu": "50%"},
        {"hosts": hosts[2].name, "device": "phones", "seed": 5},
    ]
    shares = plan_shares(Heterogeneity.model_validate({"deterministic": rules}), hosts)
    drawn = draw_device_shares("phones", 1, 5)[0]
    assert [*shares.values()] == [0.3329, 0.5, drawn, 0.3329]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"hosts": "all", "device": "google_pixel_5"}, "unknown device"),
        ({"hosts": "all", "device": "google_pixel_4", "seed": 1}, "drawn with a seed"),
        ({"hosts": "all", "seed": 1}, "drawn with a seed"),
        ({"hosts": "all", "device": "phones", "seed": -1}, "greater than or equal to 0"),
    ],
)
def test_what_is_no_device_is_refused(rule: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HostRule.model_validate(rule)
