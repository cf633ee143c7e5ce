"""Minimum cuts against all cuts of small networks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.serving.graph_cut import NetworkOperation, compute_cut_s, find_best_cut


@st.composite
def graphs(draw: st.DrawFn) -> list[NetworkOperation]:
    operations = []
    for number in range(draw(st.integers(1, 7))):
        before = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        operations.append(
            NetworkOperation(
                draw(st.integers(0, 50)) / 10,
                draw(st.integers(0, 20)) / 10,
                float(draw(st.integers(1, 100))),
                tuple(sorted(before)),
                needs_sample=not before or draw(st.booleans()),
            )
        )
    return operations


def is_possible(operations: list[NetworkOperation], own: frozenset[int]) -> bool:
    """Return whether no operation of the device needs one of the server."""
    return all(set(operations[number].after) <= own for number in own)


@settings(max_examples=200)
@given(graphs(), st.integers(1, 300), st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0]))
def test_no_possible_cut_is_better(
    operations: list[NetworkOperation], sample_bytes: int, byte_s: float
) -> None:
    found = find_best_cut(operations, sample_bytes, byte_s)
    assert is_possible(operations, found)
    numbers = range(len(operations))
    best = min(
        compute_cut_s(operations, own, sample_bytes, byte_s)
        for mask in range(1 << len(operations))
        if is_possible(operations, own := frozenset(n for n in numbers if mask >> n & 1))
    )
    assert compute_cut_s(operations, found, sample_bytes, byte_s) == pytest.approx(best)


def test_a_tensor_that_two_operations_need_passes_once() -> None:
    operations = [
        NetworkOperation(0.1, 0.1, 100.0, needs_sample=True),
        NetworkOperation(9.0, 0.1, 1.0, (0,)),
        NetworkOperation(9.0, 0.1, 1.0, (0,)),
    ]
    assert compute_cut_s(operations, frozenset({0}), 1e6, 0.01) == pytest.approx(0.3 + 1.0)


def test_an_operation_that_needs_a_later_one_is_refused() -> None:
    with pytest.raises(InputError, match="operation 0 needs"):
        find_best_cut([NetworkOperation(1.0, 1.0, 1.0, (1,))], 1.0, 1.0)
