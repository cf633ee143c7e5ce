"""Process of one node; the fork server calls `main` in the node's host."""

from __future__ import annotations

from functools import partial

from laggard.layers_services.local.held_command import request_hold
from laggard.workloads.inference.serving_node import serve
from laggard.workloads.inference.serving_plan import ServingPlan


def main(argument: str) -> None:
    """Serve as one node.

    Args:
        argument: `ServingPlan` as JSON.
    """
    plan = ServingPlan.model_validate_json(argument)
    serve(plan, partial(request_hold, plan.control_folder, plan.hosts[plan.node]))
