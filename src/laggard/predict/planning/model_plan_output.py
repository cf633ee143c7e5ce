"""A plan of a model as text, and as a document for machines."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from laggard.core.text.text_columns import align_columns
from laggard.predict.planning.model_plan import PlannedModel
from laggard.workloads.planning.placements import BlockPlacement, ReplicaAverage
from laggard.workloads.planning.plan_file import build_plan_file
from laggard.workloads.planning.plan_memory import compute_memory
from laggard.workloads.planning.step_tasks import list_flows

if TYPE_CHECKING:
    from pydantic import JsonValue


def format_planned_model(planned: PlannedModel) -> str:
    """Format a plan as a sentence, its blocks, and the plans that it is compared with."""
    lines = [format_reason(planned), *_format_blocks(planned), *_format_comparison(planned)]
    if planned.exact is not None:
        lines.append(planned.exact.format_certificate())
    lines += [f"note: {each}" for each in (_name_idle_hosts(planned), planned.note) if each]
    return "\n".join(lines)


def _name_idle_hosts(planned: PlannedModel) -> str | None:
    """Return where workers must be placed, if the plan leaves hosts out."""
    every = [each.name for each in planned.problem.devices]
    used = build_plan_file(planned.problem, planned.found).hosts
    if len(used) == len(every):
        return None
    names = ", ".join(used)
    return f"the plan leaves hosts out; to train by it, set placement.workers to [{names}]"


def format_reason(planned: PlannedModel) -> str:
    """Format what a plan does, and why."""
    name, known_s = find_best_baseline(planned)
    step_s = planned.found.step_s
    what = "; ".join(_describe_runs(planned))
    speed = "the only plan that is possible" if name is None else f"{known_s / step_s:.2f}x"
    beside = "" if name is None else f" as fast as {name}"
    sent = _count_sent(planned)
    links = f", and {sent / 1e6:.3g} MB pass over links in a step" if sent else ""
    return f"{planned.scenario.name}: {what}. A step takes {step_s:.4g} s, {speed}{beside}{links}."


def find_best_baseline(planned: PlannedModel) -> tuple[str | None, float]:
    """Return the fastest known plan and its seconds; None if none is possible."""
    name = min(planned.baselines_s, key=lambda each: planned.baselines_s[each])
    seconds = planned.baselines_s[name]
    return (name, seconds) if math.isfinite(seconds) else (None, math.inf)


def _count_sent(planned: PlannedModel) -> float:
    """Return the bytes that pass over links in a step."""
    problem, plan = planned.problem, planned.found.plan
    total = 0.0
    for edge in problem.edges:
        before, after = plan.placements[edge.src], plan.placements[edge.dst]
        for micro_batch in range(plan.micro_batches):
            flows = list_flows(before, after, micro_batch, plan.micro_batches)
            # Outputs pass forward, and gradients of the same size back.
            total += 2 * edge.sample_bytes * sum(count for src, dst, count in flows if src != dst)
    for block, placement in zip(problem.blocks, plan.placements, strict=True):
        # A server gets and sends the parameters of each other replica; a ring passes as much.
        total += 2 * (len(placement.devices) - 1) * block.parameter_bytes
    return total


def _describe_runs(planned: PlannedModel) -> list[str]:
    """Return a phrase for each run of blocks with one placement."""
    placements, phrases = planned.found.plan.placements, []
    first = 0
    for placement, run in groupby(placements):
        count = len(list(run))
        last = first + count - 1
        which = f"block {first + 1}" if count == 1 else f"blocks {first + 1} to {last + 1}"
        phrases.append(f"{which} on {_format_devices(planned, placement)}")
        first = last + 1
    return phrases


def _format_devices(planned: PlannedModel, placement: BlockPlacement) -> str:
    names = [planned.problem.devices[device].name for device in placement.devices]
    if placement.average is ReplicaAverage.NONE:
        return names[0]
    ways = {
        ReplicaAverage.SERVER: "a parameter server",
        ReplicaAverage.ALL_REDUCE: "all-reduce",
    }
    counts = [count for count in placement.samples if count]
    shares = "equal" if max(counts) - min(counts) <= 1 else "proportional"
    return f"{len(names)} devices with {shares} shares and {ways[placement.average]}"


def _format_blocks(planned: PlannedModel) -> list[str]:
    rows = [["block", "operations", "parameters", "samples on its devices"]]
    problem = planned.problem
    for number, (block, placement) in enumerate(
        zip(problem.blocks, planned.found.plan.placements, strict=True), start=1
    ):
        samples = ", ".join(
            f"{problem.devices[device].name} {placement.samples[device]}"
            for device in placement.devices
        )
        rows.append([f"{number}", block.name, f"{block.parameter_bytes / 1e6:.3g} MB", samples])
    return list(align_columns(rows))


def _format_comparison(planned: PlannedModel) -> list[str]:
    rows = [["plan", "step", "of this plan"]]
    step_s = planned.found.step_s
    rows.append(["this plan", f"{step_s:.4g} s", "100 %"])
    for name, seconds in sorted(planned.baselines_s.items(), key=lambda each: each[1]):
        possible = math.isfinite(seconds)
        rows.append(
            [
                name,
                f"{seconds:.4g} s" if possible else "impossible",
                f"{100 * seconds / step_s:.0f} %" if possible else "",
            ]
        )
    return list(align_columns(rows))


def build_model_plan_document(planned: PlannedModel) -> dict[str, JsonValue]:
    """Return a plan as a document."""
    exact, problem = planned.exact, planned.problem
    memory = compute_memory(problem, planned.found.plan)
    return {
        "scenario": planned.scenario.name,
        "step_s": planned.found.step_s,
        "micro_batches": planned.found.plan.micro_batches,
        "blocks": [
            {
                "name": block.name,
                "samples": {
                    problem.devices[device].name: placement.samples[device]
                    for device in placement.devices
                },
                "average": placement.average.value,
                "server": None
                if placement.server is None
                else problem.devices[placement.server].name,
            }
            for block, placement in zip(problem.blocks, planned.found.plan.placements, strict=True)
        ],
        "memory_bytes": {
            device.name: needed for device, needed in zip(problem.devices, memory, strict=True)
        },
        "baselines_s": {
            name: seconds if math.isfinite(seconds) else None
            for name, seconds in planned.baselines_s.items()
        },
        "proof": None
        if exact is None
        else {
            "step_s": exact.step_s,
            "bound_s": exact.bound_s,
            "is_optimal": exact.is_optimal,
            "searched_s": exact.searched_s,
        },
        "note": planned.note,
    }
