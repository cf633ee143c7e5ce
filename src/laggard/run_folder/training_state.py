"""Progress of a training, for the display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laggard.run_folder.display import TrainingState
from laggard.workloads.output.worker_output import Scalar
from laggard.workloads.specification.training import Stop


def build_training_state(
    lines: Sequence[Mapping[str, Scalar]], elapsed_s: float, stop: Stop
) -> TrainingState:
    """Compute the progress of training from the lines of the first rank and of the evaluator.

    Args:
        lines: lines of `progress.jsonl`; the line of a step counts the samples of all ranks so
            far.
        elapsed_s: virtual seconds since the first step began.
        stop: stopping rule; the remaining time follows from its steps and time at the speed so
            far.
    """
    steps = [line for line in lines if line.get("samples") is not None]
    accuracies = [value for line in lines if isinstance(value := line.get("accuracy"), float)]
    last = steps[-1] if steps else {}
    step, samples, loss = (last.get(key) for key in ("step", "samples", "loss"))
    done = int(step) + 1 if isinstance(step, int) else 0
    fractions = [
        done / stop.steps if stop.steps else 0.0,
        elapsed_s / stop.time_s if stop.time_s else 0.0,
    ]
    fraction = min(1.0, max(fractions))
    return TrainingState(
        step=done,
        fraction=fraction,
        samples_per_s=samples / elapsed_s if isinstance(samples, int) and elapsed_s > 0 else None,
        loss=float(loss) if isinstance(loss, int | float) else None,
        accuracy=accuracies[-1] if accuracies else None,
        elapsed_s=elapsed_s,
        remaining_s=elapsed_s * (1 / fraction - 1) if fraction > 0 else None,
    )
