"""Shared devices against all ways to share them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from laggard.core.errors import InputError
from laggard.workloads.scheduling import device_sharing
from laggard.workloads.scheduling.device_sharing import Pair, build_values, share_devices

Together = dict[Pair, tuple[float, float]]


def draw(seed: int, jobs: int, count: int) -> tuple[np.ndarray, Together]:
    """Concave curves, as a fraction of linear speed-up, and pairs of which some are worth it."""
    rng = np.random.default_rng(seed)
    power = rng.uniform(0.2, 1.0, jobs)
    values = rng.uniform(0.5, 2, (jobs, 1)) * np.arange(count + 1) ** power[:, None]
    values[:, 0] = 0.0
    together = {
        pair: tuple(values[list(pair), 1] * rng.uniform(0.4, 1.0, 2))
        for pair in itertools.combinations(range(jobs), 2)
        if rng.random() < 0.7
    }
    return values, together  # type: ignore[return-value]


def enumerate_best(values: np.ndarray, together: Together, count: int) -> float:
    """The greatest sum of all numbers of devices and all pairs."""
    jobs, best = len(values), 0.0
    for size in range(jobs // 2 + 1):
        for pairs in itertools.combinations(together, size):
            paired = [job for pair in pairs for job in pair]
            if len({*paired}) < len(paired) or size > count:
                continue
            single = [job for job in range(jobs) if job not in paired]
            shared = sum(sum(together[pair]) for pair in pairs)
            for numbers in itertools.product(range(count - size + 1), repeat=len(single)):
                if sum(numbers) <= count - size:
                    alone = sum(values[job, n] for job, n in zip(single, numbers, strict=True))
                    best = max(best, shared + alone)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_few_jobs_share_in_the_best_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, count = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    values, together = draw(seed, jobs, count)
    found = share_devices(values, together, count)
    assert found.total == pytest.approx(enumerate_best(values, together, count))
    check(found.devices, found.pairs, count)


def check(devices: tuple[int, ...], pairs: tuple[Pair, ...], count: int) -> None:
    """No device is used twice."""
    paired = [job for pair in pairs for job in pair]
    assert len({*paired}) == len(paired)
    assert all(devices[job] == 1 for job in paired)
    assert sum(devices) - len(pairs) <= count


def test_matchings_at_prices_are_nearly_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        jobs, count = int(rng.integers(2, 8)), int(rng.integers(1, 7))
        values, together = draw(seed, jobs, count)
        best = share_devices(values, together, count).total
        with monkeypatch.context() as patch:
            patch.setattr(device_sharing, "_MOST_EXACT", 0)
            parts.append(share_devices(values, together, count).total / best)
    assert min(parts) >= 0.95
    assert np.median(parts) == pytest.approx(1.0)


def test_many_jobs_are_never_worse_off_for_sharing() -> None:
    values, together = draw(1, 40, 24)
    found = share_devices(values, together, 24)
    check(found.devices, found.pairs, 24)
    assert found.pairs
    assert found.total > share_devices(values, {}, 24).total
    useless = dict.fromkeys(together, (0.001, 0.001))
    assert share_devices(values, useless, 24).total == share_devices(values, {}, 24).total


def test_a_curve_with_few_points_leaves_devices_idle() -> None:
    assert build_values({1: 2.0, 4: 5.0, 9: 7.0}, 5).tolist() == [0, 2, 2, 2, 5, 5]
    for curve in ({}, {0: 1.0}, {1: -1.0}):
        with pytest.raises(InputError, match="scaling curve"):
            build_values(curve, 3)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="column for each number"):
        share_devices(np.zeros((2, 3)), {}, 3)
    with pytest.raises(InputError, match="in order"):
        share_devices(np.zeros((2, 3)), {(1, 0): (1.0, 1.0)}, 2)
