"""Payment of the clients of a training that has ended, from updates that its server recorded."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from laggard.core.errors import LaggardError
from laggard.core.hosts import Host
from laggard.core.rules.server_rule import Push, Update
from laggard.workloads.clients.round_record import read_rounds
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.evaluator import compute_test_loss
from laggard.workloads.models.one_thread import compute_on_one_thread
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.serving.token_treasury import TokenTreasury
from laggard.workloads.serving.update_record import RecordedUpdate, read_updates
from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.strategies.federated.parameters import FederatedParameters, TokensSpec
from laggard.workloads.workload import Workload
from laggard.workloads.workload_model import build_workload_model

LOGGER = logging.getLogger(__name__)


def pay_recorded_clients(
    workload: Workload,
    clients: Sequence[Host],
    output_dir: WorkerOutputDir,
    *,
    runs_code: bool = True,
) -> None:
    """Measure the contributions of all rounds, pay their clients, and write the ledger.

    If that fails, the log says why, and there is no ledger.

    Args:
        workload: workload of the training.
        clients: host of each client, in rank order.
        output_dir: folder of the server's records.
        runs_code: whether code that the workload names may be executed.
    """
    strategy = workload.strategy
    tokens = strategy.tokens if isinstance(strategy, FederatedParameters) else None
    if tokens is None:
        return
    if not runs_code and any(map(is_callable_name, (workload.model, workload.dataset.name))):
        LOGGER.warning("clients were not paid: this needs the code of the model and the dataset")
        return
    output_dir.ledger.unlink(missing_ok=True)
    try:
        _pay_clients(workload, tokens, clients, output_dir)
    except (LaggardError, OSError, ValueError) as error:
        LOGGER.warning("clients were not paid: %s", error)
        output_dir.ledger.unlink(missing_ok=True)


def _pay_clients(
    workload: Workload, tokens: TokensSpec, clients: Sequence[Host], output_dir: WorkerOutputDir
) -> None:
    # What was prepared on a node stays there.
    prepare_data(workload, output_dir.folder)
    data = open_data(workload, output_dir.folder)
    model = build_workload_model(workload, data)
    treasury = TokenTreasury.create(tokens, clients, output_dir, workload.seed)
    updates = read_updates(output_dir, len(clients))
    recorded: RecordedUpdate | None = None

    def compute_loss(pushes: Sequence[Push], _update: Update) -> float:
        assert recorded is not None
        return compute_test_loss(model, data.test, recorded.preview(pushes))

    missing = 0
    with compute_on_one_thread():
        for each in read_rounds(output_dir, len(clients)):
            has_update = bool(each.result.list_clients("accepted"))
            recorded = next(updates, None) if has_update else None
            missing += has_update and recorded is None
            update = None if recorded is None else recorded.update
            treasury.pay_round(each.result, update, compute_loss)
    if missing:
        LOGGER.warning("the updates of the last %d rounds were not recorded: fees go back", missing)
