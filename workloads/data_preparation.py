"""Process that prepares the dataset on a machine without an evaluator."""

from __future__ import annotations

from laggard.workloads.datasets import prepare_data
from laggard.workloads.plan import WorkerPlan


def main(argument: str) -> None:
    """Prepare the dataset on one machine.

    Args:
        argument: `WorkerPlan` of any worker of the machine, as JSON.
    """
    plan = WorkerPlan.model_validate_json(argument)
    prepare_data(plan.workload, plan.output_path)
