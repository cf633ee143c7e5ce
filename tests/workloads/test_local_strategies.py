"""Strategies whose ranks train by themselves for a while: against the textbook in one process, and
their real trainings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.core.rules.synchronization import PeriodicSynchronization, group_ranks_by_tier
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.models import build_model
from tests.workloads.test_allreduce import run_case

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery, Train, Training

TIERS = ["cloud", "edge", "edge"]
SAMPLES, BATCH, STEPS = 45, 20, 7
WHOLE = {"name": "topk", "fraction": 1.0}


@given(st.integers(0, 200), st.integers(1, 30), st.none() | st.integers(0, 200))
def test_meetings_are_every_so_many_steps_and_in_the_last(
    step: int, every: int, last: int | None
) -> None:
    limit = 10_000 if last is None or step > last else last
    expected = next(s for s in range(step, 20_000) if (s + 1) % every == 0 or s == limit)
    rule = PeriodicSynchronization(every, last)
    assert rule.next(step) == expected
    assert rule.is_due(step) == (expected == step)
    assert PeriodicSynchronization(every, last, after=step + 1).next(step) == step


def test_ranks_of_tiers() -> None:
    assert group_ranks_by_tier(["cloud", "edge", "cloud", "fog", "edge"]) == ((0, 2), (1, 4), (3,))


class Textbook:
    """Replicas of one model in one process, in float64; every rank's weight is its share of the
    batch."""

    def __init__(self, model: str, momentum: float, *, by_samples: bool = False) -> None:
        self.by_samples, self.in_tier, self.in_all = (
            by_samples,
            np.zeros(len(TIERS)),
            np.zeros(len(TIERS)),
        )
        first = build_model(model, (1, 8, 8), 10, 3).double()
        self.nets = [copy.deepcopy(first) for _ in TIERS]
        self.optimizers = [
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum) for net in self.nets
        ]
        random = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, 1, 8, 8, generator=random).double()
        self.labels = torch.randint(0, 10, (SAMPLES,), generator=random)
        self.outer, self.velocity = self.weights(0), torch.zeros_like(self.weights(0))

    def local_step(self, step: int) -> None:
        for rank, (net, optimizer) in enumerate(zip(self.nets, self.optimizers, strict=True)):
            share = Partition(SAMPLES, BATCH, len(TIERS), 7).share(step, rank)
            optimizer.zero_grad()
            loss = cross_entropy(
                net(self.inputs[share.indices]), self.labels[share.indices], reduction="sum"
            )
            (
                loss
                * (1 / len(share.indices) if self.by_samples else len(TIERS) / share.batch_size)
            ).backward()
            optimizer.step()
            self.in_tier[rank] += len(share.indices)
            self.in_all[rank] += len(share.indices)

    def weights(self, rank: int) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.nets[rank].parameters()).detach().clone()

    def average(self, ranks: list[int]) -> None:
        self.set(ranks, self.mean(ranks))

    def mean(self, ranks: list[int]) -> torch.Tensor:
        """By the samples since the ranks' last average, where samples count."""
        whole = len(ranks) == len(TIERS)
        counts = (
            (self.in_all if whole else self.in_tier)[ranks]
            if self.by_samples
            else np.ones(len(ranks))
        )
        self.in_tier[ranks] = 0
        if whole:
            self.in_all[:] = 0
        return sum(
            self.weights(rank) * part
            for rank, part in zip(ranks, counts / counts.sum(), strict=True)
        )

    def set(self, ranks: list[int], weights: torch.Tensor) -> None:
        for rank in ranks:
            nn.utils.vector_to_parameters(weights.clone(), self.nets[rank].parameters())

    def outer_step(self, lr: float, momentum: float) -> None:
        """Nesterov's momentum as Sutskever et al. (ICML 2013) rewrite it, and torch implements
        it."""
        moved = self.outer - self.mean([0, 1, 2])
        self.velocity = momentum * self.velocity + moved
        self.outer = self.outer - lr * (moved + momentum * self.velocity)
        self.set([0, 1, 2], self.outer)


Rule = Callable[[Textbook, int], None]


def local_sgd(book: Textbook, step: int) -> None:
    if (step + 1) % 3 == 0 or step == STEPS - 1:
        book.average([0, 1, 2])


def post_local_sgd(book: Textbook, step: int) -> None:
    if step < 2 or (step + 1) % 3 == 0 or step == STEPS - 1:
        book.average([0, 1, 2])


def hierarchical(book: Textbook, step: int) -> None:
    if (step + 1) % 4 == 0 or step == STEPS - 1:
        book.average([0, 1, 2])
    elif (step + 1) % 2 == 0:
        book.average([1, 2])


def diloco(book: Textbook, step: int) -> None:
    if (step + 1) % 3 == 0 or step == STEPS - 1:
        book.outer_step(0.7, 0.9)


RULES: list[tuple[dict[str, object], Rule]] = [
    ({"name": "local_sgd", "steps": 3}, local_sgd),
    ({"name": "local_sgd", "steps": 3, "after": 2}, post_local_sgd),
    ({"name": "hierarchical", "tier_steps": 2, "wan_steps": 4}, hierarchical),
    ({"name": "diloco", "steps": 3}, diloco),
    ({"name": "local_sgd", "steps": 3, "compress": WHOLE}, local_sgd),
    (
        {"name": "hierarchical", "tier_steps": 2, "wan_steps": 4, "compress": WHOLE},
        hierarchical,
    ),
    ({"name": "diloco", "steps": 3, "compress": WHOLE}, diloco),
    ({"name": "local_sgd", "steps": 3, "balanced_batches": True}, local_sgd),
    (
        {"name": "hierarchical", "tier_steps": 2, "wan_steps": 4, "balanced_batches": True},
        hierarchical,
    ),
    ({"name": "diloco", "steps": 3, "balanced_batches": True}, diloco),
]
EVERY_STEP = [{"name": "local_sgd", "steps": 1}, {"name": "hierarchical", "wan_steps": 1}]


def name_of(strategy: Mapping[str, object]) -> str:
    return "-".join(map(str, strategy.values())).translate(str.maketrans("", "", "{}':, "))


@pytest.fixture(scope="module")
def results(forkery: Forkery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each strategy, all trained by the same three processes: uneven batches (45
    samples by 20), momentum, and a last step off the rhythm."""
    folder = tmp_path_factory.mktemp("uneven")
    strategies = [*(strategy for strategy, _ in RULES), *EVERY_STEP, {"name": "allreduce"}]
    settings = {
        "model": "mlp",
        "samples": SAMPLES,
        "batch_size": BATCH,
        "steps": STEPS,
        "momentum": 0.9,
        "tiers": TIERS,
    }
    cases = {name_of(strategy): {"strategy": strategy} for strategy in strategies}
    run_case(forkery, "uneven", folder, 3, cases=cases, **settings)
    return folder


@pytest.mark.parametrize(("strategy", "rule"), RULES)
def test_a_strategy_does_what_its_paper_says(
    results: Path, strategy: Mapping[str, object], rule: Rule
) -> None:
    book = Textbook("mlp", 0.9, by_samples="balanced_batches" in strategy)
    for step in range(STEPS):
        book.local_step(step)
        rule(book, step)
    for rank in range(3):
        weights = np.load(results / name_of(strategy) / f"result-{rank}.npz")["weights"]
        np.testing.assert_allclose(weights, book.weights(rank).numpy(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("strategy", EVERY_STEP, ids=name_of)
def test_averaging_in_every_step_is_data_parallel_training(
    results: Path, strategy: Mapping[str, object]
) -> None:
    """SGD's momentum is linear, so the mean of the models is the model of the mean gradient."""
    weights = [
        np.load(results / name / "result-1.npz")["weights"]
        for name in (name_of(strategy), "allreduce")
    ]
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-9, rtol=0)


DIGITS = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 96,
    "optimizer": {"lr": 0.02},
    "stop": {"steps": 240},
    "evaluate_every": 10**9,
}


@pytest.fixture(scope="module")
def baseline(train: Train) -> Training:
    return train(DIGITS, 4)


@pytest.mark.parametrize(
    ("strategy", "meetings"),
    [
        pytest.param(
            {"name": "local_sgd", "steps": 8}, list(range(7, 240, 8)), marks=pytest.mark.long
        ),
        ({"name": "hierarchical", "tier_steps": 2, "wan_steps": 9}, [*range(8, 240, 9), 239]),
        pytest.param(
            {"name": "diloco", "steps": 20}, list(range(19, 240, 20)), marks=pytest.mark.long
        ),
    ],
)
def test_digits_are_learnt_as_well_as_with_all_reduce(
    train: Train, baseline: Training, strategy: Mapping[str, object], meetings: list[int]
) -> None:
    """And ranks speak to each other in the steps in which they meet, and in no others."""
    training = train({**DIGITS, "strategy": strategy}, 4, tiers=["cloud", "cloud", "edge", "edge"])
    done, ddp = training.done(), baseline.done()
    assert done["samples"] == ddp["samples"]
    assert done["accuracy"] >= ddp["accuracy"] - 0.01
    spans = training.table("spans")
    comm = spans[spans.phase == "comm"]
    everywhere = comm[comm.group == (4 if strategy["name"] == "hierarchical" else 0)]
    assert sorted(set(everywhere.step)) == meetings
    if strategy["name"] == "hierarchical":
        assert set(everywhere["rank"]) == {0, 2}
        within = comm[comm.group < 2]
        assert sorted(set(within.step)) == sorted({*meetings, *range(1, 240, 2)})
        assert (within["rank"] // 2 == within.group).all()
    else:
        assert sorted(set(comm.step)) == meetings
    parameters = sum(p.numel() * 4 for p in build_model("mlp", (1, 8, 8), 10, 1).parameters())
    assert set(comm.bytes) == {parameters}
    assert set(spans[spans.phase == "evaluate"].step) == {meetings[-1]}


def test_between_meetings_the_mean_of_the_ranks_models_is_evaluated(train: Train) -> None:
    strategy = {"name": "local_sgd", "steps": 4}
    workload = {**DIGITS, "stop": {"steps": 30}, "evaluate_every": 96 * 3, "strategy": strategy}
    training = train(workload, 2)
    evaluated = training.table("steps").dropna(subset=["accuracy"])
    partition = Partition(1437, 96, 2, 1)
    assert sorted(set(evaluated.step)) == [
        *(step for step in range(29) if partition.evaluates_after(step, 96 * 3)),
        29,
    ]
    assert not list(training.output_dir.folder.glob("snapshot-*"))
    assert evaluated.accuracy.iloc[-1] > evaluated.accuracy.iloc[0]


def test_time_ends_training_in_a_step_in_which_all_meet(train: Train) -> None:
    workload = {**DIGITS, "stop": {"time": "1s"}, "strategy": {"name": "local_sgd", "steps": 7}}
    training = train(workload, 3)
    done = training.done()
    assert done["stopped_by"] == "time"
    assert done["steps"] % 7 == 0
    assert set(training.table("steps").groupby("rank").step.max()) == {done["steps"] - 1}
