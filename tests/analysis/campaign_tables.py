"""Tables of campaigns with known effects, written as `laggard campaign` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from laggard.analysis.campaign.result_table import FIXED_COLUMNS

Cell = dict[str, object]


@dataclass(frozen=True)
class TableSpec:
    """Product of scenarios, strategies and rates, with log-normal makespans.

    A seed makes all setups slower alike (`seed_spread`), and every run has its own noise.
    """

    scenarios: Sequence[str] = ("fog",)
    strategies: Mapping[str, float] = field(
        default_factory=lambda: {"allreduce": 20.0, '{"name": "local_sgd", "steps": 8}': 10.0}
    )
    rates: Mapping[str, float] = field(default_factory=lambda: {"20mbit": 2.0, "100mbit": 1.0})
    repeats: int = 5
    noise: float = 0.05
    seed_spread: float = 0.1
    paired: bool = True
    interaction: float = 1.0
    seed: int = 1


def generate_rows(spec: TableSpec) -> list[Cell]:
    generator = np.random.default_rng(spec.seed)
    luck = generator.normal(0.0, spec.seed_spread, spec.repeats)
    rows: list[Cell] = []
    for scenario in spec.scenarios:
        for strategy, seconds in spec.strategies.items():
            for rate, factor in spec.rates.items():
                both = strategy != next(iter(spec.strategies)) and rate == next(iter(spec.rates))
                for repeat in range(spec.repeats):
                    own = 0.0 if spec.paired else 1000.0 * len(rows)
                    log = luck[repeat] + generator.normal(0.0, spec.noise)
                    makespan = seconds * factor * float(np.exp(log))
                    rows.append(
                        make_cell(
                            len(rows),
                            scenario=scenario,
                            repeat=repeat + 1,
                            seed=int(repeat + 1 + own),
                            makespan_s=makespan * (spec.interaction if both else 1.0),
                            accuracy=min(0.95 + generator.normal(0.0, 0.01), 1.0),
                            lost_share=min(max(0.2 + generator.normal(0.0, 0.02), 0.0), 1.0),
                            **{"workload.strategy": strategy, "network.networks.0.rate": rate},
                        )
                    )
    return rows


def make_cell(number: int, **values: object) -> Cell:
    usual: Cell = {
        "cell": f"{number:012x}",
        "scenario": "fog",
        "variant": "",
        "repeat": 1,
        "seed": 1,
        "attempt": 1,
        "status": "done",
        "reason": "",
        "run": f"run{number}",
        "makespan_s": 10.0,
        "steps": 100,
        "accuracy": 0.95,
        "cost": 2.0,
        "fairness": 0.9,
        "lost_share": 0.2,
        "answer": "The edge hosts compute 4x as slow, and that cost 20 %.",
    }
    return dict.fromkeys(FIXED_COLUMNS) | usual | values


def write_results(folder: Path, rows: Sequence[Cell]) -> Path:
    """Write both files of a campaign, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows))
    pq.write_table(table, folder / "results.parquet")
    texts = [
        {name: "" if value is None else _to_csv(value) for name, value in row.items()}
        for row in rows
    ]
    pyarrow.csv.write_csv(pa.Table.from_pylist(texts), folder / "results.csv")
    return folder


def _to_csv(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
