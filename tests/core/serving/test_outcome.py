"""Figures of requests that are easy to count."""

from __future__ import annotations

import math

import pytest

from laggard.core.serving.outcome import AnsweredRequest, summarize_requests


def test_figures_of_three_requests() -> None:
    found = summarize_requests(
        [
            AnsweredRequest(0.0, 1.0, alone_s=1.0, deadline_s=2.0),
            AnsweredRequest(1.0, 4.0, alone_s=1.0, deadline_s=2.0),
            AnsweredRequest(2.0, None, alone_s=1.0, deadline_s=2.0),
        ]
    )
    assert (found.requests, found.shed) == (3, 1)
    assert found.mean_s == pytest.approx(2.0)
    assert found.percentiles_s[50] == pytest.approx(2.0)
    assert found.violations == pytest.approx(2 / 3)
    assert found.antt == pytest.approx(2.0)
    assert found.throughput == pytest.approx(0.5)


def test_without_deadlines_nothing_is_violated() -> None:
    found = summarize_requests([AnsweredRequest(0.0, 9.0, alone_s=1.0)])
    assert found.violations is None


def test_if_all_are_shed_there_is_no_latency() -> None:
    found = summarize_requests([AnsweredRequest(0.0, None, 1.0, math.inf)])
    assert (found.mean_s, found.antt, found.throughput) == (None, None, 0.0)
    assert found.percentiles_s == {}
