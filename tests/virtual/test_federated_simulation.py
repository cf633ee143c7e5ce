"""Federated trainings in virtual time: the model against one process, the times against a sum."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.errors import InputError
from laggard.core.hosts import Host
from laggard.core.run_schema import RoundResult
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.scenario.load import load_scenario
from laggard.virtual.client_times import ClientTimes, compute_client_times
from laggard.virtual.federated_simulation import FederatedSimulation
from laggard.virtual.plan_simulation import plan_simulation
from laggard.workloads.clients.round_record import read_rounds
from laggard.workloads.datasets import open_data
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.model_state import load_state
from laggard.workloads.models.one_thread import compute_on_one_thread
from laggard.workloads.output.training_end import read_training_end
from laggard.workloads.output.worker_output import WorkerOutputDir, read_lines
from laggard.workloads.workload_model import build_workload_model
from tests.virtual.federated_scenario import SHARES, write_federated
from tests.workloads.test_federated import train_alone

NO_HANDLING = MessageHandling(packing_s_per_mb=0.0, applying_s_per_mb=0.0)


class KnownSpeed:
    """A core that takes a millisecond for a step, and a tenth of one for each sample."""

    def step_s(self, client: Host, samples: int) -> float:
        # The first clients of the scenario are the first of these shares.
        *_, number = client.name.split(".")
        return (0.001 + 0.0001 * samples) / SHARES[int(number) - 1]

    def overhead_s(self, client: Host, samples: int) -> float:
        return 0.0


take_known_times = partial(compute_client_times, KnownSpeed(), NO_HANDLING)


def simulate(
    folder: Path, workload: dict[str, object] | None = None
) -> tuple[WorkerOutputDir, FederatedSimulation]:
    scenario = load_scenario(write_federated(folder / "scenario", workload))
    output_dir = WorkerOutputDir(folder / "workers")
    output_dir.folder.mkdir()
    simulation = plan_simulation(scenario, output_dir, take_known_times)
    simulation.train()
    return output_dir, simulation


def list_rounds(output_dir: WorkerOutputDir) -> list[tuple[RoundResult, float]]:
    return [(each.result, each.time_ns / 1e9) for each in read_rounds(output_dir, len(SHARES))]


def test_a_round_takes_what_its_slowest_client_takes(tmp_path: Path) -> None:
    """Two messages over a link of its own, and the steps on its share of a core."""
    output_dir, simulation = simulate(tmp_path)
    link_s = 2 * (0.010 + simulation.sim_input.message_bytes * FRAMING_OVERHEAD * 8 / 10e6)
    begun_s = 0.0
    for result, ended_s in list_rounds(output_dir):
        expected = {each.rank: link_s + simulation.round_s[each.rank] for each in result.answers}
        assert {each.rank: each.took_s for each in result.answers} == pytest.approx(expected)
        assert ended_s - begun_s == pytest.approx(max(expected.values()))
        begun_s = ended_s
    done = read_training_end(output_dir.done)
    assert done is not None
    assert (done.steps, done.stopped_by, done.versions) == (4, "steps", 4)
    assert done.makespan_s == pytest.approx(begun_s)


def test_rounds_on_one_link_share_its_rate(tmp_path: Path) -> None:
    """All clients compute equally long, so that a shared link of the server has both messages of a
    round at once, on the way there and back."""
    folder = write_federated(tmp_path / "scenario", {"births": None, "stop": {"steps": 1}})
    shared = "\n- {between: ['edge.*', 'cloud.*'], shared: 10mbit}"
    with (folder / "heterogeneity.yaml").open("a") as file:
        file.write(shared)
    output_dir = WorkerOutputDir(tmp_path / "workers")
    output_dir.folder.mkdir()

    def take_equal_times(*_: object) -> ClientTimes:
        return ClientTimes(NO_HANDLING, (1.0,) * len(SHARES))

    simulation = plan_simulation(load_scenario(folder), output_dir, take_equal_times)
    simulation.train()
    one_s = simulation.sim_input.message_bytes * FRAMING_OVERHEAD * 8 / 10e6
    ((result, ended_s),) = list_rounds(output_dir)
    assert [each.took_s for each in result.answers] == pytest.approx([0.02 + 1 + 4 * one_s] * 2)
    assert ended_s == pytest.approx(0.02 + 1 + 4 * one_s)


def test_the_model_is_that_of_one_process(tmp_path: Path) -> None:
    strategy = {"name": "federated", "clients": 3, "local_epochs": 2, "proximal": 0.1}
    three = {
        "strategy": strategy,
        "stop": {"steps": 3},
        "save_weights": True,
        "evaluate_every": 10**9,
        "placement": {"workers": [f"edge.client.1.{i}" for i in (1, 2, 3)], "server": "cloud.*"},
    }
    output_dir, _ = simulate(tmp_path, three)
    workload = load_scenario(tmp_path / "scenario").workload
    with compute_on_one_thread():
        alone = train_alone(workload, output_dir.folder)
    found = load_state(output_dir.weights)["model"]
    vector = torch.cat([each.flatten() for each in found.values()])  # type: ignore[attr-defined]
    assert vector.numpy() == pytest.approx(alone.numpy(), rel=1e-4, abs=1e-5)


def test_the_same_seed_gives_the_same_training(tmp_path: Path) -> None:
    for selection in ("oort", "utility_aware"):
        strategy = {
            "name": "federated",
            "clients": 2,
            "over_commitment": 1.5,
            "selection": selection,
        }
        twice = [
            simulate(
                tmp_path / f"{selection}{number}", {"strategy": strategy, "stop": {"steps": 8}}
            )
            for number in range(2)
        ]
        first, second = (list_rounds(output_dir) for output_dir, _ in twice)
        assert first == second
        assert len(first) == 8
        evaluated = [read_lines(output_dir.evaluations) for output_dir, _ in twice]
        assert evaluated[0] == evaluated[1]


def test_accuracy_and_time_end_a_training(tmp_path: Path) -> None:
    output_dir, _ = simulate(tmp_path / "good", {"stop": {"accuracy": 0.5, "steps": 500}})
    done = read_training_end(output_dir.done)
    assert done is not None
    assert done.stopped_by == "accuracy"
    assert (done.accuracy or 0) >= 0.5
    output_dir, _ = simulate(tmp_path / "short", {"stop": {"time": "20s"}})
    done = read_training_end(output_dir.done)
    assert done is not None
    assert done.stopped_by == "time"
    assert done.makespan_s == 20
    rounds = list_rounds(output_dir)
    assert len(rounds) > 1
    assert rounds[-1][1] < 20


def test_a_training_without_a_round_in_its_time_ends_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no round ended within the 0\.01 s of stop\.time"):
        simulate(tmp_path, {"stop": {"time": "10ms"}})


def test_a_round_ends_at_its_deadline(tmp_path: Path) -> None:
    """The slowest client needs longer than a second, so that no round with it has its answer."""
    strategy = {"name": "federated", "clients": 2, "deadline": "1s"}
    output_dir, simulation = simulate(tmp_path, {"strategy": strategy, "stop": {"steps": 12}})
    begun_s, late = 0.0, 0
    for result, ended_s in list_rounds(output_dir):
        took_s = {each.rank: each.took_s for each in result.answers}
        if set(result.list_clients("accepted")) != set(took_s):
            late += 1
            assert ended_s - begun_s == pytest.approx(1)
        else:
            assert ended_s - begun_s < 1
        begun_s = ended_s
    assert late
    assert max(simulation.round_s) > 1


def test_too_long_changes_are_shortened_and_told(tmp_path: Path) -> None:
    free = simulate(tmp_path / "free", {"stop": {"steps": 1}})[1]
    strategy = {"name": "federated", "clients": 4, "clip": 0.05}
    output_dir, simulation = simulate(
        tmp_path / "clipped", {"strategy": strategy, "stop": {"steps": 3}}
    )
    for result, _ in list_rounds(output_dir):
        assert {each.clipped for each in result.answers} == {True}
    begun = read_first_model(tmp_path / "free")
    # Three rounds of changes of at most 0.05 each, whose mean is no longer than they are.
    moved = float(torch.linalg.vector_norm(simulation.model.keeper.read() - begun))
    assert 0 < moved <= 3 * 0.05 * 1.001
    assert float(torch.linalg.vector_norm(free.model.keeper.read() - begun)) > 0.05


def read_first_model(folder: Path) -> torch.Tensor:
    """The model before all rounds, shape [parameters]."""
    workload = load_scenario(folder / "scenario").workload
    data = open_data(workload, folder / "workers")
    return FlatState(build_workload_model(workload, data)).read()


def test_late_answers_are_dropped_and_traced(tmp_path: Path) -> None:
    strategy = {"name": "federated", "clients": 1, "over_commitment": 2}
    output_dir, _ = simulate(tmp_path, {"strategy": strategy, "stop": {"steps": 20}})
    rounds = list_rounds(output_dir)
    assert any(result.list_clients("unanswered") for result, _ in rounds)
    assert all(len(result.list_clients("accepted")) == 1 for result, _ in rounds)


def test_with_a_buffer_nobody_waits_for_the_slowest_client(tmp_path: Path) -> None:
    """The fast clients answer again and again while the slow one trains."""
    strategy = {"name": "federated", "clients": 4, "local_epochs": 2}
    _, rounds = simulate(tmp_path / "rounds", {"strategy": strategy, "stop": {"steps": 8}})
    output_dir, _ = simulate(
        tmp_path / "buffered", {"strategy": {**strategy, "buffer": 2}, "stop": {"steps": 8}}
    )
    done = read_training_end(output_dir.done)
    assert done is not None
    assert (done.steps, done.versions) == (8, 8)
    assert done.makespan_s < 0.5 * rounds.loop.now_s
    updates = list_rounds(output_dir)
    assert [result.round for result, _ in updates] == list(range(8))
    took_s = {answer.rank: answer.took_s for result, _ in updates for answer in result.answers}
    assert took_s[0] is not None
    assert took_s[0] < done.makespan_s / 4


def test_with_all_clients_in_a_buffer_it_is_federated_averaging(tmp_path: Path) -> None:
    strategy = {"name": "federated", "clients": 4, "local_epochs": 2}
    states = []
    for name, more in (("rounds", {}), ("buffered", {"buffer": 4})):
        _, simulation = simulate(tmp_path / name, {"strategy": {**strategy, **more}})
        states.append(simulation.model.keeper.read())
    assert torch.equal(*states)
