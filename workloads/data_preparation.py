"""Process that prepares the dataset on a machine without an evaluator."""

from __future__ import annotations

from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import WorkerPlan


def main(argument: str) -> None:
    """Prepare the dataset on one machine, and the initial model if no rank builds the whole of it.

    Args:
        argument: `WorkerPlan` of any worker of the machine, as JSON.
    """
    plan = WorkerPlan.model_validate_json(argument)
    prepare_data(plan.workload, plan.output_path)
    if plan.workload.strategy.divides_model:
        from laggard.workloads.models.initial_model import write_model
        from laggard.workloads.workload_model import build_workload_model

        model = build_workload_model(plan.workload, open_data(plan.workload, plan.output_path))
        write_model(WorkerOutputDir(plan.output_path).initial_model, model)
