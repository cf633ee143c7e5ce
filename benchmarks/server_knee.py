"""Knee of trainings with a parameter server, predicted from one to three workers.

    python benchmarks/server_knee.py CM_DARE

CM_DARE has the published measurements of S. Li, R. J. Walls, T. Guo, *Characterizing and modeling
distributed training with transient cloud GPU servers*, ICDCS 2020 (github.com/cake-lab/CM-DARE):
`speed_and_cluster_size`, with the steps per second of up to eight workers of one GPU type and one
server, and `0latency_norm_computation.csv`, with the sizes of the models. The service of each model
is expected from the greatest speeds of the other models; see `core/cost_model/server_queue.py`.
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from laggard.core.cost_model.server_queue import ServiceCost, fit_server_queue

KNOWN, PREDICTED = (1, 2, 3), range(4, 9)
SATURATED = (6, 7, 8)
NAME = re.compile(r"(res15|res32|shakes?big|shakesmall).*worker(\d+)\.csv")
Speeds = Mapping[int, float]


def read_speeds(folder: Path) -> dict[str, dict[int, float]]:
    """Return the median steps per second of each model, by the number of workers."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.iterdir()):
        match = NAME.match(path.name)
        if match is None:
            continue
        with path.open(newline="") as file:
            values = [float(row["Value"]) for row in csv.DictReader(file)]
        # The first fifth warms up.
        steady = values[len(values) // 5 :]
        model = match[1].replace("shakesbig", "shakebig")
        found.setdefault(model, {})[int(match[2])] = statistics.median(steady)
    return found


def read_sizes(path: Path) -> dict[str, tuple[int, float]]:
    """Return the tensors and the bytes of each model."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    columns = {name: place for place, name in enumerate(rows[0])}
    model, parameters = columns["Model (temp)"], columns["Number of Parameters"]
    tensors = next(
        place for name, place in columns.items() if name.startswith("Numb") and place > 7
    )
    return {
        row[model].lower(): (int(row[tensors]), 4.0 * float(row[parameters]))
        for row in rows[1:]
        if row[model] and row[tensors]
    }


def expect_service_s(
    model: str, saturated: Mapping[str, float], sizes: Mapping[str, tuple[int, float]]
) -> float:
    """Return the seconds of a service of a model, from those of all others."""
    others = [(*sizes[each], 1 / speed) for each, speed in saturated.items() if each != model]
    return ServiceCost.fit(others).service_s(*sizes[model])


def saturate(speeds: Speeds) -> float:
    """Return the greatest speed: the median of the largest numbers of workers."""
    return statistics.median(speeds[each] for each in SATURATED)


def judge(speeds: Speeds, expected_s: float) -> Iterator[tuple[int, float]]:
    """Yield each predicted number of workers, and the relative error of its speed."""
    queue = fit_server_queue({each: speeds[each] for each in KNOWN}, expected_s)
    for workers in PREDICTED:
        yield workers, queue.speed(workers) / speeds[workers] - 1


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    data = Path(arguments[0])
    sizes = read_sizes(data / "0latency_norm_computation.csv")
    by_gpu = {gpu: read_speeds(data / "speed_and_cluster_size" / gpu) for gpu in ("p100", "k80")}
    # Eight K80 do not fill the server, so its greatest speed is known from P100 only.
    saturated = {model: saturate(speeds) for model, speeds in by_gpu["p100"].items()}
    errors: list[float] = []
    knees: list[float] = []
    print("| GPU | model | knee | predicted | error of the speed of 4, 5, 6, 7, 8 workers |")
    print("|---|---|---|---|---|")
    for gpu, models in by_gpu.items():
        for model, speeds in models.items():
            expected_s = expect_service_s(model, saturated, sizes)
            queue = fit_server_queue({each: speeds[each] for each in KNOWN}, expected_s)
            alone_s = statistics.median(each / speeds[each] for each in KNOWN)
            true = alone_s * saturated[model]
            found = dict(judge(speeds, expected_s))
            errors += map(abs, found.values())
            shown = f"{true:.1f}" if true < max(PREDICTED) else "above 8"
            if true < max(PREDICTED):
                knees.append(abs(queue.knee - true))
            line = ", ".join(f"{100 * each:+.0f} %" for each in found.values())
            print(f"| {gpu} | {model} | {shown} | {queue.knee:.1f} | {line} |")
    print(
        f"\nknee: largest error {max(knees):.2f} workers; speed: mean error"
        f" {100 * statistics.fmean(errors):.1f} %, median {100 * statistics.median(errors):.1f} %,"
        f" largest {100 * max(errors):.0f} %"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
