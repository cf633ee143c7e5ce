"""Variants of a scenario whose runs tell its stalls. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from laggard.core.errors import InputError
from laggard.core.span_schema import WARM_UP_STEPS
from laggard.core.yaml_source import to_json
from laggard.scenario.load import Scenario
from laggard.scenario.overrides import parse_file

ALONE, WARM, COLD, TOGETHER, TIER = "alone", "warm", "cold", "all", "tier "
"""Names of the variants; that of a tier has the tier's name at its end."""

_NO_EVALUATION = 10**12

Section = dict[str, JsonValue]
Variant = dict[str, JsonValue]


def plan_variants(scenario: Scenario, steps: int) -> Mapping[str, Variant]:
    """Return the keys and values of every variant by its name.

    Args:
        scenario: the scenario, which trains.
        steps: steps of each run that count.

    Raises:
        InputError: fewer samples in a step than workers.
    """
    workload = _read_section(scenario, "workload")
    # One step more, since the last one ends the training.
    for rule in ("churn", "checkpoint_every"):
        workload.pop(rule, None)
    workload |= {"stop": {"steps": steps + WARM_UP_STEPS + 1}, "evaluate_every": _NO_EVALUATION}
    each, tiers = _count_samples(scenario), _list_tiers(scenario)
    given = workload.get("placement")
    placement: Section = dict(given) if isinstance(given, dict) else {}
    # Workers that never meet need no server.
    apart: Section = {key: value for key, value in placement.items() if key != "server"}
    # The workers train for themselves: their models are averaged in the last step only.
    local: Section = {"name": "local_sgd", "steps": steps + WARM_UP_STEPS + 1}
    variants: dict[str, Section] = {
        ALONE: {
            "strategy": local,
            "placement": {**apart, "per_host": 1},
            "batch_size": each * len(set(scenario.ranks)),
            "samples": "prepared",
        },
        WARM: {"strategy": local, "placement": apart, "samples": "warm"},
        COLD: {"strategy": local, "placement": apart, "samples": "cold"},
    }
    for tier, hosts in tiers.items():
        if len(hosts) > 1:
            own: Section = {**placement, "workers": list(dict.fromkeys(hosts))}
            if scenario.workload.strategy.uses_server:
                own["server"] = hosts[0]
            variants[TIER + tier] = {
                "placement": own,
                "batch_size": each * len(hosts),
                "samples": "prepared",
            }
    if len(tiers) > 1:
        variants[TOGETHER] = {"samples": "prepared"}
    batch: Section = {"batch_size": each * len(scenario.ranks)}
    static = _list_static(scenario)
    return {
        name: {"workload": {**workload, **batch, **changed}, **static}
        for name, changed in variants.items()
    }


def list_ignored(scenario: Scenario) -> Sequence[str]:
    """Return sentences about what the variants leave out."""
    notes = []
    if scenario.changes:
        notes.append("timed changes of heterogeneity.yaml are left out: these are steady stalls")
    if scenario.workload.churn_entries:
        notes.append("workers that leave or join are left out: all are present here")
    return notes


def _count_samples(scenario: Scenario) -> int:
    """Return the samples of one worker in a step."""
    batch, workers = scenario.workload.batch_size, len(scenario.ranks)
    if batch < workers:
        raise InputError(
            f"{scenario.name}: {batch} samples in a step are too few for {workers} workers — give"
            f" more, for example with --set workload.batch_size={8 * workers}"
        )
    return batch // workers


def _list_tiers(scenario: Scenario) -> Mapping[str, Sequence[str]]:
    """Return the host of every worker by tier, in rank order."""
    tiers: defaultdict[str, list[str]] = defaultdict(list)
    for rank in scenario.ranks:
        tiers[rank.layer].append(rank.name)
    return tiers


def _list_static(scenario: Scenario) -> Variant:
    """Return the heterogeneity without what changes in time, if the scenario has any."""
    if not scenario.changes:
        return {}
    section = _read_section(scenario, "heterogeneity")
    section.pop("dynamic", None)
    return {"heterogeneity": section}


def _read_section(scenario: Scenario, name: str) -> Section:
    file = f"{name}.yaml"
    value = to_json(parse_file(name, scenario.files()[file], file).value)
    assert isinstance(value, dict)
    return dict(value)
