"""Plan of a federated training in virtual time: its data, its clients' times, its links."""

from __future__ import annotations

from laggard.core.rules.federated_rounds import FederatedRule
from laggard.predict.planned_training import MessageSizes, plan_training
from laggard.scenario.client_profiles import profile_clients
from laggard.scenario.load import Scenario
from laggard.virtual.client_times import MeasureTimes, measure_client_times
from laggard.virtual.client_trace import ClientTrace
from laggard.virtual.federated_simulation import FederatedSimulation
from laggard.virtual.server_model import ServerModel
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.serving.token_treasury import TokenTreasury
from laggard.workloads.specification.churn import turns
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.streams.plan_partition import plan_partition


def plan_simulation(
    scenario: Scenario, output_dir: WorkerOutputDir, measure: MeasureTimes = measure_client_times
) -> FederatedSimulation:
    """Prepare the data, find the times of clients, and plan the training.

    Args:
        scenario: scenario whose strategy is `federated`.
        output_dir: folder of the prepared data and of the streams.
        measure: source of the clients' times.

    Raises:
        InputError: the model or the data are invalid.
    """
    workload, strategy = scenario.workload, scenario.workload.strategy
    assert isinstance(strategy, FederatedParameters)
    prepare_data(workload, output_dir.folder)
    data = open_data(workload, output_dir.folder)
    tiers = tuple(host.layer for host in scenario.ranks)
    partition = plan_partition(workload, data, len(scenario.ranks), tiers)
    assert isinstance(partition, ClientPartition)
    times = measure(scenario, strategy, partition)
    tokens = strategy.tokens
    treasury = (
        None
        if tokens is None
        else TokenTreasury.create(tokens, scenario.ranks, output_dir, workload.seed)
    )
    free_riders = frozenset() if tokens is None else tokens.list_free_riders(scenario.ranks)
    model = ServerModel(workload, data, partition, output_dir, free_riders)
    messages = MessageSizes(float(model.message_bytes))
    sim_input = plan_training(scenario, [1.0] * partition.world_size, messages, times.handling, 1)
    rule = strategy.create_update_rule(partition, workload.seed)
    assert isinstance(rule, FederatedRule)
    profiles = profile_clients(scenario)
    rule.forecast = strategy.forecast_rounds(profiles, rule.samples, model.message_bytes)
    trace = ClientTrace(
        output_dir,
        model.message_bytes,
        partition.samples,
        strategy.local_epochs,
        partition.world_size,
    )
    return FederatedSimulation(
        sim_input,
        rule,
        model,
        trace,
        tuple(
            0.0 if rank in free_riders else seconds for rank, seconds in enumerate(times.round_s)
        ),
        workload.stop,
        workload.evaluate_every or partition.samples,
        treasury,
        turns(workload.churn_entries, scenario.hosts, scenario.ranks),
    )
