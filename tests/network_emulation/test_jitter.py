"""The tables of jitter against iproute2's own files and the distributions' theory."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.network_emulation.jitter import (
    REACH,
    SPREAD,
    Distribution,
    build_offset_table,
    delay_grid_ms,
    median_of_sum_ms,
)

TABLES: tuple[Distribution, ...] = ("normal", "pareto")


def iproute2s(distribution: Distribution) -> list[float]:
    (path,) = {
        path
        for lib in ("lib", "lib/*", "lib64", "share")
        for path in Path("/usr").glob(f"{lib}/tc/{distribution}.dist")
    }
    lines = path.read_text(encoding="ascii").splitlines()
    return [int(word) / 8192 for line in lines if not line.startswith("#") for word in line.split()]


@pytest.mark.parametrize(("distribution", "digits"), [("normal", 1), ("pareto", 0)])
def test_both_backends_draw_from_the_same_table(distribution: Distribution, digits: int) -> None:
    theirs, ours = iproute2s(distribution), build_offset_table(distribution)
    assert len(theirs) == len(ours)
    assert max(abs(a - b) for a, b in zip(theirs, ours, strict=True)) <= digits / 8192


def test_moments_are_the_theorys() -> None:
    normal, pareto = map(build_offset_table, TABLES)
    assert statistics.fmean(normal) == pytest.approx(0, abs=1e-3)
    assert statistics.pstdev(normal) == pytest.approx(1, abs=1e-3)
    assert statistics.median(pareto) == pytest.approx(4 / 3 * (2 ** (1 / 3) - 1.5), abs=1e-3)
    # Cut at 4, where u = 4.5^-3: the integrals of x and x^2 up to there by hand, for x = 4/3
    # (u^(-1/3) - 3/2).
    cut = 4.5**-3
    tail = 1.5 * cut ** (2 / 3)  # of u^(-1/3)
    mean = 4 / 3 * (1.5 - tail - 1.5 * (1 - cut)) + 4 * cut
    square = 16 / 9 * (3 * (1 - cut ** (1 / 3)) - 3 * (1.5 - tail) + 2.25 * (1 - cut)) + 16 * cut
    assert statistics.fmean(pareto) == pytest.approx(mean, abs=1e-3)
    assert statistics.pstdev(pareto) == pytest.approx(math.sqrt(square - mean**2), abs=2e-3)


@pytest.mark.parametrize("distribution", TABLES)
def test_a_table_is_ordered_and_within_reach(distribution: Distribution) -> None:
    table = build_offset_table(distribution)
    assert list(table) == sorted(table)
    assert max(table) <= REACH[distribution]
    overtaking = (
        sum(a - b > SPREAD[distribution] for a in table[::16] for b in table[::16]) / 256**2
    )
    assert 0 < overtaking < 0.009


@given(
    st.floats(0, 100), st.floats(0, 50), st.sampled_from(["uniform", *TABLES]), st.integers(1, 40)
)
def test_a_link_without_jitter_adds_only_its_delay(
    delay: float, jitter: float, distribution: Distribution, count: int
) -> None:
    grid = delay_grid_ms(delay, jitter, distribution)
    assert min(grid) >= 0
    alone, with_more = median_of_sum_ms(grid, (0.0,), count), median_of_sum_ms(grid, (7.0,), count)
    assert with_more == pytest.approx((alone[0] + 7.0, alone[1]))
    assert delay_grid_ms(delay, 0.0, distribution) == (delay,)
