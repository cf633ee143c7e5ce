"""Contributions of clients in recorded rounds: sampled Shapley values against the exact ones.

    python benchmarks/contribution.py

Eight clients with unequal samples of the digits train ten rounds, with five seeds. In every round
their Shapley values are computed exactly, from all 256 coalitions, and from 20 random orders, each
with its reverse, as for more than eight clients. Payments count what a client has contributed so
far, so the sums are compared too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from laggard.core.contribution.client_contributions import measure_contributions
from laggard.core.rules.server_rule import Push, Update
from laggard.virtual.server_model import ServerModel
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.models.one_thread import compute_on_one_thread
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.workload import Workload

CLIENTS, ROUNDS, ORDERS, SEEDS = 8, 10, 20, range(1, 6)


def main() -> None:
    """Print the rank correlations of every seed."""
    print("| seed | lowest of a round | median of the rounds | sum of all rounds |")
    print("|---|---|---|---|")
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder, compute_on_one_thread():
            exact, sampled = measure(seed, Path(folder))
        rounds = [correlate(*each) for each in zip(exact, sampled, strict=True)]
        whole = correlate(np.sum(exact, axis=0), np.sum(sampled, axis=0))
        print(f"| {seed} | {min(rounds):.3f} | {np.median(rounds):.3f} | {whole:.3f} |")


def correlate(exact: Sequence[float], sampled: Sequence[float]) -> float:
    """Return Spearman's rank correlation."""
    return float(spearmanr(exact, sampled).statistic)


def measure(seed: int, folder: Path) -> tuple[list[list[float]], list[list[float]]]:
    """Return the exact and the sampled values of all clients in each round."""
    workload = Workload.model_validate(
        {
            "model": "mlp",
            "dataset": "digits",
            "births": {"concentration": 0.3},
            "optimizer": {"name": "sgd", "lr": 0.05},
            "strategy": {"name": "federated", "clients": CLIENTS},
            "seed": seed,
        }
    )
    prepare_data(workload, folder)
    data = open_data(workload, folder)
    partition = plan_partition(workload, data, CLIENTS, ("edge",) * CLIENTS)
    assert isinstance(partition, ClientPartition)
    model = ServerModel(workload, data, partition, WorkerOutputDir(folder))
    exact, sampled = [], []
    for step in range(ROUNDS):
        update = train_round(model, step)
        known, drawn = value_round(model, update, np.random.default_rng((seed, step)))
        exact.append([known[client] for client in range(CLIENTS)])
        sampled.append([drawn[client] for client in range(CLIENTS)])
        model.keeper.apply(update)
    return exact, sampled


def train_round(model: ServerModel, step: int) -> Update:
    """Train all clients, and return the update of their answers."""
    begun, pushes = model.keeper.read().clone(), []
    for client in range(CLIENTS):
        answer = model.train(client, step, begun)
        model.keeper.hold(answer.push, answer.vector)
        pushes.append(answer.push)
    return Update(tuple(pushes), 1.0)


def value_round(
    model: ServerModel, update: Update, rng: np.random.Generator
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return the exact and the sampled value of each client."""
    pushes: Mapping[int, Push] = {push.rank: push for push in update.pushes}
    nothing = model.compute_loss((), update)

    def gain(coalition: frozenset[int]) -> float:
        chosen = [pushes[client] for client in sorted(coalition)]
        return nothing - model.compute_loss(chosen, update) if chosen else 0.0

    exact, sampled = (
        measure_contributions(gain, range(CLIENTS), "shapley", rng, ORDERS, most_exact=most)
        for most in (CLIENTS, 0)
    )
    return (
        {client: each.value for client, each in exact.items()},
        {client: each.value for client, each in sampled.items()},
    )


if __name__ == "__main__":
    main()
