"""Batches shared out by speed: the allocation against all there are, the estimate against costs
that were made up, and real trainings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from laggard.workloads.balancing.allocation import AffineCost, allocate_samples, estimate_slowest_s
from laggard.workloads.balancing.balancer import EXCHANGE_GROUP
from laggard.workloads.balancing.cost_estimator import MAX_FIXED_BATCHES, CostEstimator
from laggard.workloads.datasets.partition import split_evenly
from laggard.workloads.output.worker_output import read_lines
from tests.workloads.test_allreduce import one_process, run_case

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery, Train, Training

costs = st.builds(
    AffineCost,
    fixed_s=st.floats(0, 10) | st.integers(0, 5).map(float),
    sample_s=st.floats(1e-3, 10) | st.integers(1, 5).map(float),
)


def all_splits(batch: int, ranks: int, least: int) -> Iterator[tuple[int, ...]]:
    """Every way to share out a batch, in which nobody gets fewer than the model needs, but
    nothing."""
    for sizes in itertools.product(range(batch + 1), repeat=ranks - 1):
        split = (*sizes, batch - sum(sizes))
        if split[-1] >= 0 and (batch < least or all(size == 0 or size >= least for size in split)):
            yield split


@given(st.lists(costs, min_size=1, max_size=3), st.integers(0, 9), st.integers(1, 2))
def test_no_other_split_has_a_shorter_slowest_step(
    ranks: list[AffineCost], batch: int, least: int
) -> None:
    sizes = allocate_samples(ranks, batch, least)
    assert sizes in set(all_splits(batch, len(ranks), least))
    best_s = min(
        estimate_slowest_s(ranks, split, least) for split in all_splits(batch, len(ranks), least)
    )
    assert estimate_slowest_s(ranks, sizes, least) == pytest.approx(best_s, rel=1e-12)


@given(st.lists(costs, min_size=1, max_size=8), st.integers(0, 5000), st.integers(1, 2))
def test_a_sample_moved_makes_its_taker_the_slower(
    ranks: list[AffineCost], batch: int, least: int
) -> None:
    """Of large batches, of which not all splits can be tried: nobody can give a sample away with a
    gain."""
    sizes = allocate_samples(ranks, batch, least)
    assert sum(sizes) == batch
    assert all(size == 0 or size >= min(least, batch) for size in sizes)
    assume(batch >= len(ranks) * least)
    for giver, taker in itertools.permutations(range(len(ranks)), 2):
        if sizes[giver] > least:
            assert ranks[taker].estimate_s(sizes[taker] + 1) >= ranks[giver].estimate_s(
                sizes[giver]
            ) * (1 - 1e-12)


@given(st.lists(costs, min_size=2, max_size=8), st.integers(1, 2000), st.floats(1.01, 50))
def test_who_gets_slower_gets_no_more_samples(
    ranks: list[AffineCost], batch: int, times: float
) -> None:
    first, *others = ranks
    slower = AffineCost(first.fixed_s * times, first.sample_s * times)
    assume(batch >= len(ranks))
    assert allocate_samples([slower, *others], batch)[0] <= allocate_samples(ranks, batch)[0]


@given(costs, st.integers(1, 12), st.integers(0, 500), st.integers(1, 2))
def test_of_equal_costs_shares_are_even(
    cost: AffineCost, ranks: int, batch: int, least: int
) -> None:
    assume(batch >= ranks * least)
    assert allocate_samples([cost] * ranks, batch, least) == split_evenly(batch, ranks)


@pytest.mark.parametrize(
    ("ranks", "batch", "least", "expected"),
    [
        ([AffineCost(0, 4), AffineCost(0, 1)], 10, 1, (2, 8)),
        ([AffineCost(30, 1), AffineCost(10, 1)], 40, 1, (10, 30)),
        # Above the others' level with its fixed part alone: the sample that it would compute as
        # padding.
        ([AffineCost(100, 1), AffineCost(0, 1), AffineCost(0, 1)], 21, 1, (1, 10, 10)),
        ([AffineCost(100, 1), AffineCost(0, 1), AffineCost(0, 1)], 22, 2, (2, 10, 10)),
        # Too few for all: the quickest, and none of them a single one where two are needed.
        ([AffineCost(9, 1), AffineCost(0, 1), AffineCost(0, 2)], 2, 1, (0, 1, 1)),
        ([AffineCost(9, 1), AffineCost(0, 1), AffineCost(0, 2)], 5, 2, (0, 3, 2)),
        ([AffineCost(9, 1), AffineCost(0, 1)], 1, 2, (0, 1)),
        ([AffineCost(9, 1), AffineCost(0, 1)], 0, 2, (0, 0)),
        ([AffineCost(1, 1)], 7, 1, (7,)),
        ([AffineCost(0, 1e-9), AffineCost(0, 1e9)], 10_000_000, 1, (9_999_999, 1)),
    ],
)
def test_shares(
    ranks: Sequence[AffineCost], batch: int, least: int, expected: tuple[int, ...]
) -> None:
    assert allocate_samples(ranks, batch, least) == expected


@pytest.mark.parametrize(
    ("fixed_s", "sample_s"), [(-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0), (1.0, float("inf"))]
)
def test_costs_that_are_none_are_refused(fixed_s: float, sample_s: float) -> None:
    with pytest.raises(ValueError, match="both must be finite"):
        AffineCost(fixed_s, sample_s)


def about(cost: AffineCost) -> object:
    return pytest.approx((cost.fixed_s, cost.sample_s), rel=1e-6)


def parts(capacity: CostEstimator) -> tuple[float, float]:
    found = capacity.estimate()
    assert found is not None
    return found.fixed_s, found.sample_s


def shown(
    capacity: CostEstimator,
    cost: AffineCost,
    sizes: Sequence[int],
    noise: float = 0.0,
    seed: int = 1,
) -> CostEstimator:
    dice = random.Random(seed)
    for size in sizes:
        capacity.observe(size, cost.estimate_s(size) * (1 + dice.uniform(-noise, noise)))
    return capacity


@given(st.floats(1e-4, 1), st.floats(1e-5, 1e-2), st.integers(4, 40))
def test_steps_of_two_sizes_give_both_parts(fixed_s: float, sample_s: float, size: int) -> None:
    truth = AffineCost(fixed_s, sample_s)
    assume(truth.estimate_s(2 * size) > 1.01 * truth.estimate_s(size))
    assert parts(shown(CostEstimator(16), truth, [size] * 5 + [2 * size] * 5)) == about(truth)


@given(st.integers(0, 2**32), st.floats(0.25, 4))
def test_noise_and_disturbed_steps_do_not_count(seed: int, load: float) -> None:
    """A tenth of noise and two steps that took five times as long: what comes of it for the sizes
    seen is right to a tenth."""
    truth = AffineCost(0.02 * load, 0.001 * load)
    capacity = shown(CostEstimator(16), truth, [40] * 4, 0.1, seed)
    capacity.observe(40, 5 * truth.estimate_s(40))
    shown(capacity, truth, [20] * 4, 0.1, seed + 1)
    capacity.observe(20, 5 * truth.estimate_s(20))
    found = shown(capacity, truth, [20] * 3, 0.1, seed + 2).estimate()
    assert found is not None
    assert found.estimate_s(20) == pytest.approx(truth.estimate_s(20), rel=0.1)
    assert found.estimate_s(40) == pytest.approx(truth.estimate_s(40), rel=0.25)


def test_of_one_size_the_ratio_is_the_one_that_was_assumed() -> None:
    capacity = shown(CostEstimator(16, ratio=30.0), AffineCost(0.0, 0.1), [10] * 3)
    assert parts(capacity) == about(AffineCost(0.75, 0.025))
    assert CostEstimator(16).estimate() is None


@given(st.sampled_from([0.2, 0.5, 2.0, 4.0]), st.integers(4, 12))
def test_a_change_of_speed_is_believed_after_two_steps_and_the_ratio_kept(
    times: float, before: int
) -> None:
    usual, changed = AffineCost(0.02, 0.001), AffineCost(0.02 * times, 0.001 * times)
    capacity = shown(CostEstimator(16), usual, [20] * 4 + [40] * before)
    assert parts(capacity) == about(usual)
    shown(capacity, changed, [40])
    assert capacity.is_outlier
    assert parts(capacity) == about(usual)
    shown(capacity, changed, [40])
    assert parts(capacity) == about(changed)
    assert not capacity.is_outlier


def test_slow_moments_that_come_and_go_count_by_their_part_of_the_time() -> None:
    """A quarter of the steps takes four times as long: the first such moments are followed, the
    others are not; a change that stays is, later."""
    capacity, usual, slow = CostEstimator(32), AffineCost(0.0, 0.01), AffineCost(0.0, 0.04)
    shown(capacity, usual, [20] * 13)
    shown(capacity, slow, [20] * 4)
    assert parts(capacity) == about(slow)
    found = []
    for _ in range(4):
        shown(capacity, usual, [20] * 12)
        shown(capacity, slow, [20] * 4)
        found.append(parts(capacity)[1])
    assert found[-1] == pytest.approx(0.75 * 0.01 + 0.25 * 0.04, rel=0.01)
    assert not capacity.is_outlier
    assert capacity.error > 0.1
    shown(capacity, slow, [20] * 32)
    assert parts(capacity) == about(slow)


def test_the_first_step_of_a_size_tells_nothing() -> None:
    capacity = CostEstimator(16)
    for size in (20, 40):
        capacity.observe(size, 9.0)
        shown(capacity, AffineCost(0.02, 0.001), [size] * 4)
    assert parts(capacity) == about(AffineCost(0.02, 0.001))
    assert not capacity.is_outlier


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_the_error_is_that_of_repeated_estimates(noise: float) -> None:
    """Against the spread of what many runs of nine steps find."""
    dice, usuals, errors = random.Random(1), [], []
    for _ in range(400):
        capacity = CostEstimator(16)
        for _ in range(10):
            capacity.observe(20, 0.04 * (1 + dice.gauss(0, noise)))
        usuals.append(sum(parts(capacity)[part] * (1, 20)[part] for part in range(2)))
        errors.append(capacity.error)
    assert float(np.median(errors)) == pytest.approx(np.std(usuals) / 0.04, rel=0.25)


def test_more_samples_never_take_less_time_nor_is_any_for_nothing() -> None:
    flat = CostEstimator(16)
    for size in [20] * 4 + [40] * 4:
        flat.observe(size, 1.0 - size * 0.001)
    found = flat.estimate()
    assert found is not None
    assert found.sample_s == pytest.approx(
        found.estimate_s(40) / (40 * MAX_FIXED_BATCHES), rel=0.01
    )


SKEWED = {"sample_s": [1.0, 4.0, 2.5]}


def test_gradients_of_uneven_shares_are_those_of_one_process(
    forkery: Forkery, tmp_path: Path
) -> None:
    """In float64; the shares change in every step, and the last batch of an epoch is small."""
    run_case(
        forkery, "uneven", tmp_path, 3, model="cnn", samples=45, batch_size=20, steps=6, **SKEWED
    )
    expected, _ = one_process("cnn", 45, 20, 6)
    for rank in range(3):
        weights = np.load(tmp_path / f"result-{rank}.npz")["weights"]
        np.testing.assert_allclose(weights, expected, atol=1e-9, rtol=0)


def test_local_steps_of_uneven_shares_weigh_every_sample_alike(
    forkery: Forkery, tmp_path: Path
) -> None:
    """Averaged in each step they are the all-reduce's, momentum and changing shares included."""
    settings = {
        "model": "mlp",
        "samples": 45,
        "batch_size": 20,
        "steps": 6,
        "momentum": 0.9,
        **SKEWED,
    }
    cases = {
        "own": {"strategy": {"name": "local_sgd", "steps": 1}},
        "all": {"strategy": {"name": "allreduce"}},
    }
    run_case(forkery, "uneven", tmp_path, 3, cases=cases, **settings)
    weights = [np.load(tmp_path / name / "result-1.npz")["weights"] for name in cases]
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-9, rtol=0)


PACED = """
from unittest import mock
import numpy as np
import torch
from torch import nn
from laggard.workloads.tracing.recorder import Recorder

class Paced(nn.Module):
    \"\"\"A step costs 3 ms and 0.3 ms a sample on the clock that shares are worked out by, which
    stands still otherwise; one rank's four times that, and from step 40 on another's.\"\"\"
    def __init__(self, size, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, classes))
        self.step, self.own_ns = -1, 0
    def forward(self, x):
        if self.training:
            self.step += 1
            rank = torch.initial_seed() - 1_000_003
            slow = rank == (1 if self.step < 40 else 2)
            self.own_ns += (4 if slow else 1) * (3_000_000 + 300_000 * len(x))
        return self.layers(x)

def model(shape, classes):
    paced = Paced(int(np.prod(shape)), classes)
    mock.patch.object(Recorder, "own_ns", property(lambda _: paced.own_ns)).start()
    return paced

def idle(shape, classes):
    paced = Paced(int(np.prod(shape)), classes)
    return paced.layers
"""
USUAL, SLOW, FLIP, RANKS = AffineCost(0.003, 0.0003), AffineCost(0.012, 0.0012), 40, 3
SETTLED = 20
"""Steps after a change of speed: one exchange finds it, and the next the best shares."""
PACED_DIGITS = {
    "model": "paced:model",
    "dataset": "digits",
    "batch_size": 96,
    "evaluate_every": 10**9,
    "stop": {"steps": 72},
}


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Training]:
    folder = tmp_path_factory.mktemp("paced")
    (folder / "paced.py").write_text(PACED)
    return lambda strategy, **changes: train(
        {**PACED_DIGITS, "strategy": strategy, **changes}, RANKS, path=folder
    )


@pytest.fixture(scope="module")
def even_shares(trained: Callable[..., Training]) -> Training:
    return trained("allreduce", model="paced:idle")


def follow_speed(sizes: pd.DataFrame, slow: int) -> bool:
    """Whether the slowest step of all takes as long as it must, in each of these steps.

    What a step costs is known after steps of two sizes; until then shares are near the best.
    """
    ranks = [SLOW if rank == slow else USUAL for rank in range(RANKS)]
    best_s = estimate_slowest_s(ranks, allocate_samples(ranks, 96))
    taken_s = [estimate_slowest_s(ranks, [int(size) for size in row]) for row in sizes.to_numpy()]
    return max(taken_s) < 1.1 * best_s


def sizes_by_step(training: Training) -> pd.DataFrame:
    sizes = training.table("steps").pivot_table(index="step", columns="rank", values="samples")
    assert set(sizes.sum(axis=1)) == {96, 93}
    return sizes[sizes.sum(axis=1) == 96]


def mean_losses(training: Training) -> np.ndarray:
    steps = training.table("steps")
    return (steps.loss * steps.samples).groupby(steps.step).sum().to_numpy()


def test_a_slow_rank_gets_fewer_samples_and_a_change_of_speed_is_followed(
    trained: Callable[..., Training], even_shares: Training
) -> None:
    training = trained("balanced_batches")
    sizes, spans = sizes_by_step(training), training.table("spans")
    assert (sizes.loc[:5] == 32).all(axis=None)
    assert follow_speed(sizes.loc[24 : FLIP - 1], 1)
    assert follow_speed(sizes.loc[FLIP + SETTLED :], 2)
    exchanges = spans[(spans.phase == "comm") & (spans.group == EXCHANGE_GROUP)]
    assert set(exchanges.groupby("step").size()) == {RANKS}
    assert set(exchanges.bytes) == {RANKS * 4 * 8}
    assert len(set(exchanges.step)) < 72 / 4
    changes = sizes.index[1:][(sizes.diff().iloc[1:] != 0).any(axis=1)]
    assert {step - 1 for step in changes} <= set(exchanges.step)
    decided = read_lines(training.output_dir.decisions)
    assert {line["step"] for line in decided} >= {step - 1 for step in changes}
    assert "of 96 samples, by speed" in str(decided[0]["description"])
    assert training.done()["samples"] == even_shares.done()["samples"]
    assert training.done()["accuracy"] == pytest.approx(even_shares.done()["accuracy"], abs=0.01)
    np.testing.assert_allclose(mean_losses(training), mean_losses(even_shares), rtol=1e-3)


@pytest.mark.parametrize(
    ("strategy", "every"),
    [
        ({"name": "local_sgd", "steps": 4}, 4),
        pytest.param(
            {"name": "hierarchical", "tier_steps": 1, "wan_steps": 4}, 4, marks=pytest.mark.long
        ),
        pytest.param({"name": "diloco", "steps": 5}, 5, marks=pytest.mark.long),
    ],
)
def test_ranks_that_meet_seldom_change_shares_when_they_meet(
    trained: Callable[..., Training], strategy: dict[str, object], every: int
) -> None:
    training = trained({**strategy, "balanced_batches": {"every": 2}}, stop={"steps": 36})
    sizes = sizes_by_step(training)
    changes = sizes.index[1:][(sizes.diff().iloc[1:] != 0).any(axis=1)]
    assert len(changes) >= 1
    assert all(step % every == 0 for step in changes)
    assert follow_speed(sizes.loc[24:36], 1)


def computed_by_step(training: Training) -> pd.DataFrame:
    """Samples that ranks computed in each step, by what their forward passes say; of steps with a
    whole batch that all have taken."""
    spans = training.table("spans")
    computed = (
        spans[spans.phase == "forward"]
        .pivot_table(index="step", columns="rank", values="work")
        .dropna()
    )
    assert set(computed.sum(axis=1)) == {96, 93}
    return computed[computed.sum(axis=1) == 96]


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "ring_allreduce"},
        {"name": "parameter_server"},
        pytest.param({"name": "bounded_staleness", "staleness": 2}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_shares_follow_speeds_over_the_transport_of_messages(
    trained: Callable[..., Training], even_shares: Training, strategy: Mapping[str, object]
) -> None:
    """With a server, whose workers are not all in the same step, and among ranks without
    collectives: no sample is taken twice, and each weighs the same, whoever takes it."""
    training = trained({**strategy, "balanced_batches": True})
    computed = computed_by_step(training)
    assert (computed.loc[:5] == 32).all(axis=None)
    assert follow_speed(computed.loc[24 : FLIP - 1], 1)
    followed = computed.loc[FLIP + SETTLED : 70]
    assert len(followed) > 8
    assert follow_speed(followed, 2)
    assert followed[1].median() > 32
    assert "of 96 samples, by speed" in str(
        read_lines(training.output_dir.decisions)[0]["description"]
    )
    if strategy["name"] in ("ring_allreduce", "parameter_server"):
        assert training.done()["samples"] == even_shares.done()["samples"]
        np.testing.assert_allclose(mean_losses(training), mean_losses(even_shares), rtol=1e-3)


@pytest.mark.long
def test_shares_follow_speeds_of_ranks_that_are_left_behind(
    trained: Callable[..., Training],
) -> None:
    """When they do depends on how far behind a rank is, which says late that it is slow."""
    strategy = {"name": "backup_workers", "backups": 1, "balanced_batches": True}
    training = trained(strategy, stop={"steps": 150})
    computed = computed_by_step(training)
    assert (computed.loc[:5] == 32).all(axis=None)
    assert (computed != 32).any(axis=None)
    assert "of 96 samples, by speed" in str(
        read_lines(training.output_dir.decisions)[0]["description"]
    )
